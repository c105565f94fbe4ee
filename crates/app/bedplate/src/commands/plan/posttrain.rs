//! `bedplate plan posttrain`: where the time of a reinforcement learning step goes, and the best split of GPUs.

use bedplate_catalog::Catalog;
use bedplate_deploy::Supply;
use bedplate_deploy::posttrain::{PostTraining, RlAnswer, RlStep, RolloutBatch, Sharing, posttrain};
use bedplate_perf::Constants;
use bedplate_perf::serving::{Engine, ServingConstants, WeightFormat};
use bedplate_replay::requests::Lengths;
use bedplate_terminal::html::{Bar, Report, Segment, bars};
use bedplate_terminal::present::{Column, Facts, Table, wrap};
use bedplate_terminal::{CliError, Console, choice, files, length};
use bedplate_units::{Dollars, Seconds, grouped};
use serde_json::{Value, json};

use crate::served::{ENGINES, Payment, WEIGHTS, load_model};
use bedplate_replay::requests::grammar::{self, MOST_TOKENS};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate plan posttrain --model llama-3.1-8b --cluster p5en.48xlarge:2 --osl 200..4000
  bedplate plan posttrain --model llama-3.3-70b --cluster p5en.48xlarge:16 --prompts 256 \\
      --samples 16 --isl 1000 --osl 500..8000 --updates 4 --reward 20s --report rl.html

Colocated: all GPUs roll out and then train. Separate: some roll out the next
step while the others train on the last one, so rollouts use a policy that is
one step old. See docs/plan-serve.md.")]
pub(crate) struct Arguments {
    /// A built-in name, a config.json or its folder
    #[arg(long, value_name = "NAME|FILE")]
    model: String,
    /// INSTANCE:COUNT or a cluster file
    #[arg(long, value_name = "CLUSTER")]
    cluster: String,
    /// Prompts of a step
    #[arg(long, default_value_t = 128)]
    prompts: u32,
    /// Answers to each prompt
    #[arg(long, default_value_t = 8)]
    samples: u16,
    /// Tokens of a prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = length::<u32>(MOST_TOKENS))]
    isl: u32,
    /// Tokens of an answer: `2000`, or `200..4000` for lengths in between
    #[arg(long, value_name = "TOKENS", default_value = "200..4000", value_parser = grammar::lengths)]
    osl: Lengths,
    /// Time to judge all answers of a step
    #[arg(long, default_value = "0s")]
    reward: Seconds,
    /// Extra forward passes over every answer: old and reference policy
    #[arg(long, default_value_t = 2)]
    passes: u32,
    /// Optimizer steps that share the rollouts of a step
    #[arg(long, default_value_t = 1)]
    updates: u32,
    /// Formats of rollout weights to choose from
    #[arg(long, value_parser = choice(&WEIGHTS), value_delimiter = ',', default_value = "bf16")]
    precision: Vec<WeightFormat>,
    /// The engine for rollouts
    #[arg(long, value_parser = choice(&ENGINES), default_value = "vllm")]
    engine: Engine,
    #[command(flatten)]
    payment: Payment,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Write an HTML page with plots to this file
    #[arg(long, value_name = "FILE")]
    report: Option<String>,
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let model = load_model(&arguments.model)?;
    let clusters = std::slice::from_ref(&arguments.cluster);
    let supplies = arguments.payment.supplies(clusters, catalog)?;
    let (serving, training) = (ServingConstants::builtin(), Constants::builtin());
    let question = PostTraining {
        model: &model,
        batch: RolloutBatch {
            prompts: arguments.prompts,
            samples: arguments.samples,
            input: arguments.isl,
            output: arguments.osl,
        },
        engine: arguments.engine,
        weights: arguments.precision.clone(),
        reward: arguments.reward,
        passes: arguments.passes,
        updates: arguments.updates,
        serving: &serving,
        training: &training,
        seed: arguments.seed,
    };
    let answer = posttrain(&question, &supplies[0])?;
    let found = Found { question: &question, supply: &supplies[0], answer };
    if let Some(path) = &arguments.report {
        files::write_text(path, &found.page().html())?;
        console.say(&format!("wrote {path}"));
    }
    match console.is_json() {
        true => console.json(&found.json()),
        false => found.show(console),
    }
}

struct Found<'a> {
    question: &'a PostTraining<'a>,
    supply: &'a Supply,
    answer: RlAnswer,
}

fn sharing(step: &RlStep) -> String {
    match step.sharing {
        Sharing::Colocated { is_offloaded: false } => "colocated".into(),
        Sharing::Colocated { is_offloaded: true } => "colocated, offloaded".into(),
        Sharing::Separate => format!("{} + {}", step.rollout_gpus, step.training_gpus),
    }
}

impl Found<'_> {
    fn title(&self) -> String {
        format!(
            "{} on {} GPUs of {}: {} answers per step",
            self.question.model.transformer.name,
            self.supply.gpus(),
            self.supply.name,
            grouped(self.question.batch.sequences())
        )
    }

    fn show(&self, console: &mut Console) -> Result<(), CliError> {
        console.line(&wrap(&self.title(), console.width().unwrap_or(usize::MAX)).join("\n"))?;
        console.text(&self.facts().render(console.width()))?;
        console.line("")?;
        console.table(&self.table())?;
        for (gpus, reason) in &self.answer.refused {
            let what = match *gpus == self.supply.gpus() {
                true => "colocated".to_owned(),
                false => format!("{gpus} GPUs for rollouts"),
            };
            console.say(&format!("{what}: {reason}"));
        }
        Ok(())
    }

    fn facts(&self) -> Facts {
        let best = self.answer.best();
        let who = match best.sharing {
            Sharing::Colocated { is_offloaded: false } => {
                "all GPUs roll out, then train; training state stays in GPU memory".to_owned()
            }
            Sharing::Colocated { is_offloaded: true } => {
                "all GPUs roll out, then train; training state waits in host memory".to_owned()
            }
            Sharing::Separate => format!(
                "{} GPUs roll out the next step while {} train on the last",
                best.rollout_gpus, best.training_gpus
            ),
        };
        let mut facts = Facts::default();
        facts
            .add("best split", who)
            .add("step", format!("{:.3}; GPUs work {:.0}% of it", best.total, best.busy() * 100.0))
            .add("rollouts", format!("{:.3} on {} x {}", best.rollout, best.replicas, best.rollout_layout))
            .add("rewards", format!("{:.3}", best.reward))
            .add("training", format!("{:.3} with {}", best.training, best.layout))
            .add("weights", format!("{:.3} until the rollout replicas have the new ones", best.sync));
        let hourly = self.supply.dollars_per_hour(self.supply.gpus());
        facts.add_known(
            "cost",
            hourly.map(|hourly| {
                let step = hourly / 3600.0 * best.total.get();
                format!("{} per step, {}/h", Dollars::new(step), Dollars::new(hourly))
            }),
        );
        facts
    }

    fn table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::left("ROLLOUT + TRAIN", 0),
            Column::right("STEP", 0),
            Column::right("ROLLOUT", 0),
            Column::right("REWARD", 1),
            Column::right("TRAINING", 0),
            Column::right("WEIGHTS", 0),
            Column::right("BUSY", 0),
            Column::left("REPLICAS", 2),
            Column::left("LAYOUT", 3),
        ]);
        for step in &self.answer.steps {
            table.row(vec![
                sharing(step),
                format!("{:.3}", step.total),
                format!("{:.3}", step.rollout),
                format!("{:.3}", step.reward),
                format!("{:.3}", step.training),
                format!("{:.3}", step.sync),
                format!("{:.0}%", step.busy() * 100.0),
                format!("{} x {}", step.replicas, step.rollout_layout),
                step.layout.to_string(),
            ]);
        }
        table
    }

    fn page(&self) -> Report {
        let mut report = Report::new("Plan for post-training", &self.title());
        report.section("The answer", "The split with the shortest step.").facts(self.facts().rows());
        report
            .section(
                "Where the time of a step goes",
                "Colocated, the parts follow each other; in separate pools, rollouts and training run side \
                 by side, and the outline is what the shorter one waits.",
            )
            .chart(&bars(&self.answer.steps.iter().flat_map(rows).collect::<Vec<_>>(), None))
            .table(&self.table().cells());
        report
    }

    fn json(&self) -> Value {
        let step = |step: &RlStep| {
            json!({
                "sharing": match step.sharing {
                    Sharing::Colocated { .. } => "colocated",
                    Sharing::Separate => "separate",
                },
                "offloaded": step.sharing == Sharing::Colocated { is_offloaded: true },
                "rollout_gpus": step.rollout_gpus,
                "training_gpus": step.training_gpus,
                "rollout_replica": step.rollout_layout.to_string(),
                "rollout_replicas": step.replicas,
                "training_layout": step.layout.to_string(),
                "step_s": step.total.get(),
                "rollout_s": step.rollout.get(),
                "reward_s": step.reward.get(),
                "training_s": step.training.get(),
                "weights_s": step.sync.get(),
                "busy": step.busy(),
            })
        };
        json!({
            "model": self.question.model.transformer.name,
            "machine": self.supply.name,
            "gpus": self.supply.gpus(),
            "answers": self.question.batch.sequences(),
            "best": step(self.answer.best()),
            "steps": self.answer.steps.iter().map(step).collect::<Vec<_>>(),
            "refused": self.answer.refused
                .iter()
                .map(|(gpus, reason)| json!({ "rollout_gpus": gpus, "reason": reason }))
                .collect::<Vec<_>>(),
        })
    }
}

/// One bar for colocated GPUs, two for pools.
fn rows(step: &RlStep) -> Vec<Bar> {
    let part = |name: &str, time: Seconds, kind: usize| Segment {
        name: name.to_owned(),
        length: time.get(),
        kind,
        is_hidden: false,
    };
    let idle = |time: f64| Segment { name: "waits".into(), length: time.max(0.0), kind: 6, is_hidden: true };
    let total = step.total.get();
    let bar =
        |label: String, segments: Vec<Segment>, remark: String| Bar { label, start: 0.0, segments, remark };
    let rollout = [part("rollouts", step.rollout, 0), part("rewards", step.reward, 1)];
    let sync = part("weights", step.sync, 3);
    match step.sharing {
        Sharing::Colocated { .. } => {
            let mut segments = Vec::from(rollout);
            segments.extend([part("training", step.training, 2), sync]);
            vec![bar(sharing(step), segments, format!("{:.3}", step.total))]
        }
        Sharing::Separate => {
            let ahead = step.rollout.get() + step.reward.get() + step.sync.get();
            let mut first = Vec::from(rollout);
            first.extend([sync, idle(total - ahead)]);
            let second = vec![part("training", step.training, 2), idle(total - step.training.get())];
            vec![
                bar(format!("{} roll out", step.rollout_gpus), first, format!("{:.3}", step.total)),
                bar(format!("{} train", step.training_gpus), second, String::new()),
            ]
        }
    }
}
