//! `bedplate plan choose`: which machines to use.

use bedplate_catalog::{Catalog, Purchase};
use bedplate_diag::{Class, Diagnostic, Page};
use bedplate_goodput::{RunLimits, checkpoint_bytes};
use bedplate_perf::Workload;
use bedplate_search::{
    BatchSize, MachineChoice, Objection, Offer, Reliability, SearchError, TrainingNeed, Uncalibrated, choose,
    usual_batch, usual_sequence,
};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, length};
use bedplate_units::{Dollars, Tokens, grouped};
use serde_json::{Value, json};

use super::constants;
use super::question::FormatArguments;
use super::task::TaskArguments;
use super::whole_run::RunArguments;
use crate::models;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate plan choose --model llama-3.1-70b --tokens 2T --deadline 30d
  bedplate plan choose --model llama-3.1-8b --tokens 1T --budget '$500K' --purchase capacity-block
  bedplate plan choose --model mixtral-8x7b --tokens 1T --deadline 14d --budget '$2M'

It tries every machine of the catalog in growing numbers with its best layout,
failures included, and chooses the cheapest that meets the deadline, or without
a deadline the fastest within the budget. Without --purchase each machine is
bought on demand or as a capacity block, whichever is cheaper. Costs are those of
whole machines for the terms that they are sold for, and of storage.")]
pub(crate) struct Arguments {
    /// A built-in name, a config.json or its folder
    #[arg(long, value_name = "NAME|FILE")]
    model: String,
    #[command(flatten)]
    task: TaskArguments,
    /// Tokens per sequence, as 8192 or 8k [default: 8192, for fine-tuning 4096, or the model's context if shorter]
    #[arg(long, value_parser = length::<u64>(100_000_000))]
    seq: Option<u64>,
    /// Tokens per optimizer step, in whole sequences that divide well [default: as for `plan train`]
    #[arg(long, value_name = "TOKENS")]
    batch_tokens: Option<Tokens>,
    #[command(flatten)]
    format: FormatArguments,
    /// Try at most this many GPUs
    #[arg(long, default_value_t = 16_384)]
    max_gpus: u32,
    /// Also choose chips without training measurements
    #[arg(long)]
    any_chip: bool,
    #[command(flatten)]
    constants: constants::Choice,
    #[command(flatten, next_help_heading = "The whole run")]
    run: RunArguments,
}

#[derive(Debug, thiserror::Error)]
#[error("the length of the run is missing")]
struct NoTokens;

pub(super) static NO_TOKENS: Page = Page {
    code: "plan/no-tokens",
    class: Class::Usage,
    meaning: "The number of tokens that a run trains on decides how long it takes and what it costs, and it was not given.",
    remedy: "give them, as in `--tokens 2T`",
};

impl Diagnostic for NoTokens {
    fn page(&self) -> &'static Page {
        &NO_TOKENS
    }
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let model = models::load(&arguments.model)?;
    let constants = arguments.constants.load()?;
    let run = &arguments.run;
    catalog.refuse_unknown_region(run.region.as_deref())?;
    let task = arguments.task.task();
    let sequence = arguments.seq.unwrap_or_else(|| usual_sequence(&model, task));
    let workload = Workload { sequence, task, ..Workload::default() };
    let bytes = checkpoint_bytes(&model, workload.optimizer);
    let reliability = Reliability::assumed(&run.assumptions(), bytes, catalog)?;
    let need = TrainingNeed {
        model: &model,
        tokens: run.tokens.ok_or(NoTokens)?,
        workload,
        batch: arguments.batch_tokens.map_or_else(|| usual_batch(&model, task), BatchSize::Tokens),
        constants: &constants,
        limits: RunLimits { deadline: run.deadline, budget: run.budget },
        purchase: run.purchase,
        region: run.region.as_deref(),
        precision: arguments.format.chosen(),
        max_gpus: arguments.max_gpus,
        reliability: Some(&reliability),
        uncalibrated: if arguments.any_chip { Uncalibrated::Choose } else { Uncalibrated::List },
    };
    let choice = match choose(&need, catalog) {
        Ok(choice) => choice,
        Err(error) => {
            if let (SearchError::NoMachine { others, .. }, false) = (&error, console.is_json()) {
                console.table(&others_table(others))?;
            }
            return Err(error.into());
        }
    };
    if console.is_json() {
        return console.json(&choice_json(&choice));
    }
    let best = &choice.best;
    console.line(&format!(
        "{} sequences of {} tokens a step\n{} x {} ({} GPUs): {}, {}, layout {}",
        grouped(best.global_batch),
        grouped(need.workload.sequence),
        best.units,
        best.machine,
        grouped(best.gpus.into()),
        best.time,
        cost_text(best),
        best.candidate.layout
    ))?;
    console.line("")?;
    let (shown, of) = (shown_of(&choice), choice.front.len());
    console.table(&front_table(&choice, &shown))?;
    if shown.len() < of {
        console.say(&format!("{} of {of} are shown, by rising cost; --json has all", shown.len()));
    }
    if shown.iter().any(|offer| !offer.is_calibrated) {
        console.say("~ no training measurement of such chips supports this prediction");
    }
    console.line("")?;
    console.table(&others_table(&choice.others))?;
    if run.purchase.is_none() {
        console.say(
            "each machine at the cheaper of its on-demand and capacity-block prices; blocks must be available",
        );
    }
    Ok(())
}

/// The cost, and how the machine is bought where that is not on demand.
fn cost_text(offer: &Offer) -> String {
    match (offer.cost, offer.purchase) {
        (Some(cost), Some(Purchase::OnDemand) | None) => cost.to_string(),
        (Some(cost), Some(purchase)) => format!("{cost} {}", purchase.name()),
        (None, _) => "no price known".into(),
    }
}

/// Rows of the front that are shown.
const MOST_SHOWN: usize = 12;

/// The cheapest offers of the front, and the chosen one wherever it is.
fn shown_of(choice: &MachineChoice) -> Vec<&Offer> {
    let mut shown: Vec<&Offer> = choice.front.iter().take(MOST_SHOWN).collect();
    if choice.front.len() > MOST_SHOWN && !shown.contains(&&choice.best) {
        shown.pop();
        shown.push(&choice.best);
    }
    shown
}

/// The machines of an offer; `~` marks chips of which no training was measured.
fn machines_of(offer: &Offer) -> String {
    let mark = if offer.is_calibrated { "" } else { "~" };
    format!("{mark}{} x {}", offer.units, offer.machine)
}

fn front_table(choice: &MachineChoice, shown: &[&Offer]) -> Table {
    let mut table = Table::new(vec![
        Column::left("NOT BEATEN IN TIME, COST AND MEMORY", 0),
        Column::right("GPUS", 0),
        Column::right("SEQUENCES", 2),
        Column::right("TIME", 0),
        Column::right("COST", 0),
        Column::left("LAYOUT", 1),
    ]);
    for offer in shown {
        let chosen = if **offer == choice.best { " (chosen)" } else { "" };
        table.row(vec![
            machines_of(offer) + chosen,
            offer.gpus.to_string(),
            offer.global_batch.to_string(),
            format!("{:.3}", offer.time),
            cost_text(offer),
            offer.candidate.layout.to_string(),
        ]);
    }
    table
}

fn others_table(others: &[(String, Objection)]) -> Table {
    let mut table = Table::new(vec![Column::left("NOT CHOSEN", 0), Column::left("WHY", 0)]);
    for (machine, objection) in others {
        table.row(vec![machine.clone(), objection_text(objection)]);
    }
    table
}

fn objection_text(objection: &Objection) -> String {
    match objection {
        Objection::MissingFigure { what } => what.chars().take(50).collect(),
        Objection::FitsNowhere { up_to_gpus } => format!("fits on no number up to {up_to_gpus} GPUs"),
        Objection::TooSlow { offer, by } => format!("{by:.3} too late, even with {} GPUs", offer.gpus),
        Objection::OverBudget { offer, by } => format!("{by} over the budget with {} GPUs", offer.gpus),
        Objection::Uncalibrated { offer } => {
            format!("not calibrated; {:.3} on {} GPUs", offer.time, offer.gpus)
        }
        Objection::UnknownPrice { offer } => format!("no price; {:.3} on {} GPUs", offer.time, offer.gpus),
        Objection::Beaten { offer } => {
            format!("{:.3}, {} on {} GPUs", offer.time, cost_text(offer), offer.gpus)
        }
    }
}

fn choice_json(choice: &MachineChoice) -> Value {
    let offer = |offer: &Offer| {
        json!({
            "machine": offer.machine,
            "units": offer.units,
            "gpus": offer.gpus,
            "global_batch": offer.global_batch,
            "layout": offer.candidate.layout.to_string(),
            "step_s": offer.candidate.seconds.get(),
            "time_s": offer.time.get(),
            "goodput": offer.goodput,
            "cost_usd": offer.cost.map(Dollars::get),
            "machines_usd": offer.machines.map(Dollars::get),
            "is_calibrated": offer.is_calibrated,
            "purchase": offer.purchase.map(Purchase::name),
        })
    };
    let others = choice
        .others
        .iter()
        .map(|(machine, objection)| json!({ "machine": machine, "why": objection_text(objection) }));
    json!({
        "best": offer(&choice.best),
        "front": choice.front.iter().map(offer).collect::<Vec<_>>(),
        "others": others.collect::<Vec<_>>(),
    })
}
