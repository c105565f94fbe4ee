//! `bedplate plan train`: the best layouts for a training run.

use std::collections::BTreeMap;

use bedplate_catalog::Catalog;
use bedplate_drivers::submit_here;
use bedplate_goodput::WholeRun;
use bedplate_layout::{ComputePrecision, Layout};
use bedplate_perf::{ExpertRouting, Fit, Generation, Hardware, PredictedStep};
use bedplate_search::{
    GpuScaling, LayoutCandidate, PlanOptions, Priced, ScalingPoint, SearchAnswer, SearchError, Setup, Space,
    TrainingPlan, WhatIf,
};
use bedplate_terminal::html::Report;
use bedplate_terminal::present::{Column, Facts, Table, wrap};
use bedplate_terminal::{CliError, Console, choice, files};
use bedplate_units::{Bytes, Count, grouped};
use serde_json::{Map, Value, json};

use super::launch::LaunchOf;
use super::question::{Loaded, Question};
use super::waterfall::waterfall;
use super::whole_run::{self, RunArguments};
use super::{explanation, launch, offer, page};
use crate::connection::Connection;
use crate::job_file::{expects_line, read_file};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate plan train --model llama-3.1-405b --cluster p5.48xlarge:2048 --tokens 15T
  bedplate plan train --model llama-3.1-70b --cluster p5.48xlarge:8 --explain dp2.tp4.sp.pp8.zero1
  bedplate plan train --model mixtral-8x7b --cluster p5en.48xlarge:16 --precision fp8 --launch
  bedplate plan train --model llama-3.1-8b --cluster p5.48xlarge:2 --launch megatron-lm > start.sh
  bedplate plan train --model llama-3.1-8b --cluster p5.48xlarge:2 --no-rdma
  bedplate plan train --model llama-3.1-70b --cluster p5.48xlarge:64 --scaling strong
  bedplate plan train --model llama-3.1-70b --cluster p5.48xlarge:64 --tokens 2T --report plan.html
  bedplate plan train --model llama-3.1-8b --cluster p5.48xlarge:2 --submit job.toml
  bedplate plan train --model llama-3.1-8b --submit job.sbatch --context site

For a Slurm (--context NAME, or --cluster context:NAME) the plan uses nodes
that Slurm could give now: as many as the job asks for, free ones under as few
switches as possible. The prediction goes into the job's comment, and the
layout into its variable BEDPLATE_LAYOUT.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(super) question: Question,
    /// Price this layout instead of the best one
    #[arg(long)]
    layout: Option<String>,
    /// How many layouts to list
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    top: u64,
    /// Explain why this layout is not the best one, and what would change that
    #[arg(long, value_name = "LAYOUT")]
    explain: Option<String>,
    /// Price the layout with another network, domain, memory, sequence or offload
    #[arg(long)]
    what_if: bool,
    /// The same on as many GPUs of another instance or UltraServer; may be repeated
    #[arg(long, value_name = "NAME")]
    what_if_machine: Vec<String>,
    /// The best layout at other numbers of GPUs
    #[arg(long, value_enum)]
    scaling: Option<ScalingKind>,
    /// Print only what starts this plan with a trainer, the report on standard error; without a value for every trainer
    #[arg(long, value_name = "TRAINER", num_args = 0..=1, default_missing_value = "all", value_parser = choice(&LaunchOf::ALL))]
    launch: Option<LaunchOf>,
    /// Write an HTML page with plots: step, memory, scaling, front, sensitivity
    #[arg(long, value_name = "FILE")]
    report: Option<String>,
    /// Submit this job file or batch script with the prediction attached; `job show` compares the two
    #[arg(long, value_name = "JOB")]
    submit: Option<String>,
    #[command(flatten, next_help_heading = "The whole run")]
    run: RunArguments,
    #[command(flatten)]
    connection: Connection,
}

impl Arguments {
    /// Where a job goes: the cluster that is named, else the one that was planned for.
    pub(super) fn connection(&self) -> Result<Connection, CliError> {
        let planned = self.question.cluster.as_deref().and_then(|text| text.strip_prefix("context:"));
        Ok(match planned.filter(|_| !self.connection.is_named()) {
            Some(name) => Connection::named(name),
            None => self.connection.clone(),
        })
    }
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ScalingKind {
    /// The same batch, faster
    Strong,
    /// The same batch per GPU
    Weak,
}

impl ScalingKind {
    fn scaling(self) -> GpuScaling {
        match self {
            ScalingKind::Strong => GpuScaling::Strong,
            ScalingKind::Weak => GpuScaling::Weak,
        }
    }
}

impl Arguments {
    /// The requested what-ifs; a report has the usual ones.
    fn questions(&self, setup: &Setup<'_>, catalog: &Catalog) -> Result<Vec<WhatIf>, CliError> {
        let mut questions = Vec::new();
        if self.what_if || self.report.is_some() {
            questions.extend(WhatIf::usual(setup));
            questions.extend(WhatIf::offload_over_c2c(catalog));
        }
        for name in &self.what_if_machine {
            let known = catalog.ultraserver(name).map(|found| &found.name);
            let known = known.or_else(|_| catalog.instance(name).map(|found| &found.name))?;
            questions.extend(WhatIf::machine(known, catalog));
        }
        Ok(questions)
    }
}

impl Arguments {
    /// Whether a layout is given that uses every GPU.
    fn names_layout_of(&self, loaded: &Loaded) -> bool {
        let given = [&self.layout, &self.explain].into_iter().flatten();
        let mut layouts = given.filter_map(|text| text.parse::<Layout>().ok());
        layouts.any(|layout| layout.world() == u64::from(loaded.hardware.gpus))
    }
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let planned = arguments.submit.as_deref().map(read_file).transpose()?.map(|(job, _)| job);
    let cluster = offer::cluster(arguments, planned.as_ref(), catalog, console)?;
    let loaded = arguments.question.load(cluster, catalog)?;
    let loaded =
        if arguments.names_layout_of(&loaded) { loaded } else { arguments.question.with_idle_gpus(loaded) };
    let plan = Plan::make(arguments, &loaded, catalog)?;
    if let Some(path) = &arguments.report {
        files::write_text(path, &plan.page().html())?;
        console.say(&format!("wrote {path}"));
    }
    let is_within_limits = plan.whole_run.as_ref().is_none_or(|run| run.judgement.is_met());
    let is_possible = is_within_limits && plan.found.step.fit.is_possible();
    // What cannot run as planned is not submitted.
    let submitted = match planned.filter(|_| is_possible) {
        Some(mut job) => {
            // For the job's own script: which layout it was planned with.
            let layout = plan.found.layout.to_string();
            job.environment.set.entry("BEDPLATE_LAYOUT".to_owned()).or_insert(layout);
            let driver = arguments.connection()?.driver()?;
            job.expected = Some(plan.found.step.time);
            let submitted = submit_here(job, &*driver)?;
            console.say_notes(driver.remarks());
            Some(submitted)
        }
        None => None,
    };
    if console.is_json() {
        let mut json = plan.json();
        if let Some(submitted) = &submitted {
            json["submitted"] = json!(submitted);
        }
        console.json(&json)?;
    } else if let Some(of) = arguments.launch {
        let started = launch::launch(of, &plan.found.layout, &loaded)?;
        plan.show(&mut console.aside())?;
        // A comment everywhere; `bedplate submit` finds it in a script.
        let carried = "# in the script or job file, so that `bedplate submit` attaches this prediction";
        console.line(&format!("{started}\n\n{carried}\n{}", expects_line(&plan.found.step.time)))?;
    } else {
        plan.show(console)?;
    }
    if let Some(submitted) = submitted {
        console.say(&format!("submitted as job {0}; `bedplate job show {0}` compares", submitted.label));
    }
    if is_possible { Ok(()) } else { Err(CliError::Refused) }
}

/// The search over the whole space, its slices spread over the cores.
fn price_on_all_cores(space: &Space, limit: usize) -> Priced {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let priced = std::thread::scope(|scope| {
        let slices = space.slices(cores);
        let workers: Vec<_> =
            slices.into_iter().map(|slice| scope.spawn(|| space.price(slice, limit))).collect();
        let results = workers.into_iter().map(|worker| worker.join().expect("pricing does not panic"));
        results.reduce(Priced::merge)
    });
    priced.unwrap_or_else(|| space.price(0..0, limit))
}

/// The user's layout in the requested number format.
fn in_format(text: &str, precision: ComputePrecision) -> Result<Layout, CliError> {
    let mut layout: Layout = text.parse()?;
    if layout.precision == ComputePrecision::default() {
        layout.precision = precision;
    }
    Ok(layout)
}

/// The results.
struct Plan<'a> {
    loaded: &'a Loaded,
    found: TrainingPlan,
    whole_run: Option<WholeRun>,
    /// What the machines cost in an hour.
    hourly: Option<String>,
}

impl<'a> Plan<'a> {
    fn make(arguments: &Arguments, loaded: &'a Loaded, catalog: &Catalog) -> Result<Self, CliError> {
        let setup = loaded.setup();
        let layout = |text: &String| in_format(text, loaded.precision);
        let usual = arguments.report.as_ref().map(|_| GpuScaling::Strong);
        let options = PlanOptions {
            layout: arguments.layout.as_ref().map(layout).transpose()?,
            top: arguments.top as usize,
            explain: arguments.explain.as_deref().map(str::parse).transpose()?,
            what_ifs: arguments.questions(&setup, catalog)?,
            scaling: arguments.scaling.map(ScalingKind::scaling).or(usual),
        };
        let found =
            TrainingPlan::make(&setup, &loaded.axes(), &loaded.small_axes(), &options, price_on_all_cores)?;
        let whole_run = arguments.run.whole_run(loaded, &found.layout, &found.step, catalog)?;
        let hourly = arguments.run.hourly(loaded, (&found.layout, &found.step), catalog);
        Ok(Self { loaded, found, whole_run, hourly })
    }

    /// The word for what computes.
    fn holder(&self) -> &'static str {
        match self.loaded.hardware.generation {
            Generation::Host if self.loaded.hardware.gpus > 1 => "rank",
            Generation::Host => "host",
            _ => "GPU",
        }
    }

    fn title(&self) -> String {
        let gpus = match self.holder() {
            "GPU" => format!(" ({} GPUs)", grouped(self.loaded.hardware.gpus.into())),
            _ => String::new(),
        };
        format!(
            "{} on {}{gpus}, {} sequences of {} tokens",
            self.loaded.model.name,
            self.loaded.cluster.name(),
            grouped(self.loaded.workload.global_batch),
            grouped(self.loaded.workload.sequence)
        )
    }

    fn show(&self, console: &mut Console) -> Result<(), CliError> {
        console.line(&wrap(&self.title(), console.width().unwrap_or(usize::MAX)).join("\n"))?;
        console.text(&self.facts().render(console.width()))?;
        console.line("\nWhere the time of a step goes")?;
        console.text(&waterfall(&self.found.step.time))?;
        console.line(&format!("\nWhat a {} holds", self.holder()))?;
        console.text(&self.memory_facts().render(console.width()))?;
        if let Some(whole_run) = &self.whole_run {
            console
                .text(&format!("\nThe whole run\n{}", whole_run::facts(whole_run).render(console.width())))?;
        }
        console.line("")?;
        console.table(&self.ranking())?;
        console.say(&account(&self.found.answer));
        for remark in self.loaded.remarks.iter().chain(&self.tipped()) {
            console.say(&format!("note: {remark}"));
        }
        if self.loaded.workload.sequence > self.loaded.model.max_context {
            console.say(&format!("note: the model's context is {} tokens", self.loaded.model.max_context));
        }
        if self.loaded.model.is_mixture() && self.loaded.workload.routing == ExpertRouting::Balanced {
            console.say("balanced routing is assumed, as benchmarks force it; for real routing try --routing-skew 1.25");
        }
        if !self.found.scaling.is_empty() {
            console.line("")?;
            console.table(&scaling_table(&self.found.scaling))?;
        }
        if let Some(sensitivity) = &self.found.sensitivity {
            console.line("")?;
            console.table(&explanation::counterfactual_table(&sensitivity.counterfactuals))?;
        }
        if let Some(explained) = &self.found.explanation {
            explanation::show(explained, console)?;
        }
        Ok(())
    }

    fn launch_settings(&self) -> Vec<(&'static str, String)> {
        launch::settings(&self.found.layout, self.loaded)
    }

    fn facts(&self) -> Facts {
        let step = &self.found.step;
        let each = step.tokens_per_second_per_gpu();
        let all = Count((each * step.gpus as f64) as u64);
        let certainty = match self.found.interval {
            Some(interval) => {
                let (soonest, latest) = (step.seconds() / interval.high, step.seconds() / interval.low);
                format!("80 % interval {soonest:.3} to {latest:.3}")
            }
            None => "no training run on such chips was measured, so expect a larger error than usual".into(),
        };
        let mut facts = Facts::default();
        facts
            .add("layout", self.found.layout.to_string())
            .add("step", format!("{}; {certainty}", step.seconds()))
            .add("throughput", format!("{all} tokens/s, {each:.0} per GPU"));
        // Frozen weights have no gradients, so the usual FLOPs count would overstate MFU for adapters.
        if !self.loaded.workload.task.trains_adapters() {
            facts.add("MFU", self.mfu_text(each));
        }
        if let Some(part) = step.time.limit() {
            facts.add("limited by", format!("{part}, {:.0}% of the step", step.time.share(part) * 100.0));
        }
        facts.add("memory", fit_text(step, Bytes::new(self.loaded.hardware.memory)));
        if let (Some(hourly), None) = (&self.hourly, &self.whole_run) {
            facts.add("machines", format!("{hourly}; --tokens 1T says days and dollars of a whole run"));
        }
        let left_out = Hardware::left_out_of(&self.loaded.cluster);
        if left_out > 0 {
            facts.add("left out", format!("{left_out} GPUs on nodes that take no work or have failed GPUs"));
        }
        facts
    }

    fn memory_facts(&self) -> Facts {
        let mut facts = Facts::default();
        for (part, bytes) in self.found.step.memory.parts() {
            facts.add(part, bytes.to_string());
        }
        facts.add("together", self.found.step.memory.total().to_string());
        facts
    }

    fn mfu(&self, tokens_per_second: f64) -> f64 {
        self.loaded.setup().mfu(tokens_per_second, self.found.layout.precision)
    }

    fn format_mfu(&self, tokens_per_second: f64) -> Option<(&'static str, f64)> {
        self.loaded.setup().format_mfu(tokens_per_second, self.found.layout.precision)
    }

    fn mfu_text(&self, tokens_per_second: f64) -> String {
        let is_wide = self.found.layout.precision == ComputePrecision::Fp32 && self.holder() != "GPU";
        let name = if is_wide { "fp32" } else { "bf16" };
        let mut text = format!("{:.1}% of the {name} peak", self.mfu(tokens_per_second) * 100.0);
        if let Some((name, share)) = self.format_mfu(tokens_per_second) {
            text += &format!(", {:.1}% of the {name} peak", share * 100.0);
        }
        text + ", causal attention"
    }

    fn ranking(&self) -> Table {
        let mut table = Table::new(vec![
            Column::right("#", 0),
            Column::left("LAYOUT", 0),
            Column::right("STEP", 0),
            Column::right("MFU", 0),
            Column::right("MEMORY", 0),
            Column::left("FIT", 1),
        ]);
        for (index, candidate) in self.found.answer.best.iter().enumerate() {
            let each = self.found.step.tokens / candidate.seconds.get() / self.found.step.gpus as f64;
            table.row(vec![
                (index + 1).to_string(),
                candidate.layout.to_string(),
                candidate.seconds.to_string(),
                if self.loaded.workload.task.trains_adapters() {
                    "-".into()
                } else {
                    format!("{:.1}%", self.mfu(each) * 100.0)
                },
                candidate.memory.to_string(),
                self.note_on(candidate),
            ]);
        }
        table
    }

    /// How it fits, and whether the model can tell it from the first.
    fn note_on(&self, candidate: &LayoutCandidate) -> String {
        let best = &self.found.answer.best[0];
        let is_tie = candidate.layout != best.layout && candidate.is_tie_of(best);
        format!("{}{}", candidate.fit.name(), if is_tie { ", a tie" } else { "" })
    }

    /// Why the fastest prediction is not the answer, where it is not.
    fn tipped(&self) -> Option<String> {
        let tipped = self.found.answer.tipped(&self.loaded.setup())?;
        let faster = (self.found.answer.best[0].seconds / tipped.fastest.seconds - 1.0) * 100.0;
        let mut reasons: Vec<&str> = tipped.doubts.iter().map(|each| each.reason()).collect();
        reasons.dedup();
        let fastest = tipped.fastest.layout;
        Some(format!("{fastest} is predicted {faster:.1}% faster, but {}", reasons.join(", ")))
    }

    /// The plan as a page with plots.
    fn page(&self) -> Report {
        let mut report = Report::new(&format!("Plan: {}", self.loaded.model.name), &self.title());
        report
            .section("The answer", "Predicted by the performance model; no GPU was used.")
            .facts(self.facts().rows());
        if let Some(whole_run) = &self.whole_run {
            report
                .section("The whole run", "With failures, checkpoints and recovery as published or given.")
                .facts(whole_run::facts(whole_run).rows());
        }
        report
            .section("Where the time of a step goes", "Outlines show work hidden behind other work.")
            .chart(&page::step_chart(&self.found.step.time));
        let available = Bytes::new(self.loaded.hardware.memory);
        report
            .section(&format!("What a {} holds", self.holder()), "The dashed line is the usable memory.")
            .chart(&page::memory_chart(&self.found.step.memory, available))
            .facts(self.memory_facts().rows());
        report
            .section("Time against memory", "Layouts that no other dominates.")
            .chart(&page::front_chart(&self.found.answer.front));
        if !self.found.scaling.is_empty() {
            report
                .section("Scaling", "The best layout at each number of GPUs, and ideal scaling.")
                .chart(&page::scaling_chart(&self.found.scaling))
                .table(&scaling_table(&self.found.scaling).cells());
        }
        if let Some(sensitivity) = &self.found.sensitivity {
            report
                .section("What would change it", "This layout in setups that differ in one thing.")
                .chart(&page::sensitivity_chart(&sensitivity.counterfactuals))
                .table(&explanation::counterfactual_table(&sensitivity.counterfactuals).cells());
        }
        report.section("The best layouts", &account(&self.found.answer)).table(&self.ranking().cells());
        for (software, settings) in self.launch_settings() {
            report.section(&format!("Settings for {software}"), "").listing(&settings);
        }
        report
    }

    fn json(&self) -> Value {
        let step = &self.found.step;
        let candidate = |candidate: &LayoutCandidate| {
            json!({
                "layout": candidate.layout.to_string(),
                "step_s": candidate.seconds.get(),
                "memory_bytes": candidate.memory.get(),
                "fit": candidate.fit.name(),
            })
        };
        let parts = step.time.parts().map(|(part, span)| {
            let value = json!({ "exposed_s": span.exposed.get(), "hidden_s": span.hidden.get() });
            (part.name().to_owned(), value)
        });
        let memory =
            step.memory.parts().into_iter().map(|(part, bytes)| (part.to_owned(), json!(bytes.get())));
        let list = |candidates: &[LayoutCandidate]| candidates.iter().map(candidate).collect::<Vec<_>>();
        let counts = &self.found.answer.counts;
        json!({
            "model": self.loaded.model.name,
            "cluster": self.loaded.cluster.name(),
            "gpus": step.gpus,
            "question": self.loaded.planned().to_json(),
            "sequence": self.loaded.workload.sequence,
            "global_batch": self.loaded.workload.global_batch,
            "layout": self.found.layout.to_string(),
            "step_s": step.seconds().get(),
            "step_s_interval_80": self.found.interval.map(|interval| [
                (step.seconds() / interval.high).get(),
                (step.seconds() / interval.low).get(),
            ]),
            "tokens_per_s_per_gpu": step.tokens_per_second_per_gpu(),
            "mfu": (!self.loaded.workload.task.trains_adapters()).then(|| self.mfu(step.tokens_per_second_per_gpu())),
            "mfu_of_format_peak": self.format_mfu(step.tokens_per_second_per_gpu()).map(|(_, share)| share),
            "limited_by": step.time.limit().map(|part| part.name()),
            "breakdown": parts.collect::<Map<_, _>>(),
            "memory_bytes": memory.collect::<Map<_, _>>(),
            "memory_total_bytes": step.memory.total().get(),
            "memory_usable_bytes": self.loaded.hardware.memory,
            "fit": step.fit.name(),
            "run": self.whole_run.as_ref().map(whole_run::json),
            "best": list(&self.found.answer.best),
            "tipped": self.tipped(),
            "remarks": self.loaded.remarks,
            "pareto_front": list(&self.found.answer.front),
            "searched": {
                "layouts": counts.priced,
                "fits": counts.fits,
                "tight": counts.tight,
                "too_large": counts.too_large,
                "refused_branches": self.found.answer.refusals.branches(),
            },
            "launch": self.launch_settings().into_iter().collect::<BTreeMap<_, _>>(),
            "scaling": self.found.scaling.iter().map(scaling_json).collect::<Vec<_>>(),
            "sensitivity": self.found.sensitivity.as_ref().map(explanation::json),
            "explanation": self.found.explanation.as_ref().map(explanation::json),
        })
    }
}

fn scaling_table(points: &[ScalingPoint]) -> Table {
    let mut table = Table::new(vec![
        Column::right("GPUS", 0),
        Column::right("SEQUENCES", 1),
        Column::right("STEP", 0),
        Column::right("TOKENS/S", 0),
        Column::right("EFFICIENCY", 0),
        Column::left("LAYOUT", 0),
    ]);
    for point in points {
        let (step, rate, efficiency, layout) = match &point.outcome {
            Ok(scaled) => (
                scaled.candidate.seconds.to_string(),
                Count(scaled.rate.get() as u64).to_string(),
                format!("{:.0}%", scaled.efficiency * 100.0),
                scaled.candidate.layout.to_string(),
            ),
            Err(SearchError::DoesNotFit { .. }) => {
                (String::new(), String::new(), String::new(), "does not fit".into())
            }
            Err(_) => (String::new(), String::new(), String::new(), "no legal layout".into()),
        };
        table.row(vec![
            point.gpus.to_string(),
            point.global_batch.to_string(),
            step,
            rate,
            efficiency,
            layout,
        ]);
    }
    table
}

fn scaling_json(point: &ScalingPoint) -> Value {
    let scaled = point.outcome.as_ref().ok();
    json!({
        "gpus": point.gpus,
        "global_batch": point.global_batch,
        "layout": scaled.map(|scaled| scaled.candidate.layout.to_string()),
        "step_s": scaled.map(|scaled| scaled.candidate.seconds.get()),
        "tokens_per_s": scaled.map(|scaled| scaled.rate.get()),
        "efficiency": scaled.map(|scaled| scaled.efficiency),
    })
}

fn fit_text(step: &PredictedStep, usable: Bytes) -> String {
    let share = share_text(step.memory.total(), usable);
    match step.fit {
        Fit::Fits { .. } => format!("fits: {share}"),
        Fit::Tight { spare } => format!("tight: {share}; {spare} to spare is less than the prediction error"),
        Fit::DoesNotFit { over } if step.is_near_miss() => {
            format!(
                "does not fit: {share}; {over} too much is within the prediction error, so it may still fit"
            )
        }
        Fit::DoesNotFit { over } => format!("does not fit: {share}, {over} too much"),
    }
}

/// `68.7 of 84.9 GB usable`.
fn share_text(used: Bytes, usable: Bytes) -> String {
    match usable.get() >= 1e9 {
        true => format!("{:.1} of {:.1} GB usable", used.get() / 1e9, usable.get() / 1e9),
        false => format!("{used} of {usable} usable"),
    }
}

/// A summary of the search.
fn account(answer: &SearchAnswer) -> String {
    let counts = &answer.counts;
    let mut text = format!(
        "searched {} layouts: {} fit, {} are tight, {} are too large",
        grouped(counts.priced),
        grouped(counts.fits),
        grouped(counts.tight),
        grouped(counts.too_large)
    );
    if let Some(first) = answer.refusals.first() {
        text += &format!("; refused most often: {}", first.refusal);
    }
    text
}
