//! `bedplate plan choose`: which machines at all.

use bedplate_catalog::{Catalog, Purchase, StorageClass};
use bedplate_goodput::{Limits, Published, Recovery, Store};
use bedplate_layout::ComputePrecision;
use bedplate_perf::{Constants, Workload};
use bedplate_search::{Choice, Need, Objection, Offer, Reliability, Uncalibrated, choose};
use bedplate_units::{Bytes, Dollars, Seconds, Tokens, grouped};
use serde_json::{Value, json};

use crate::choice::choice;
use crate::commands::model;
use crate::console::Console;
use crate::present::{Column, Table};
use crate::stop::Stop;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate plan choose --model llama-3.1-70b --tokens 2T --deadline 30d
  bedplate plan choose --model llama-3.1-8b --tokens 1T --budget '$500K' --purchase capacity-block
  bedplate plan choose --model mixtral-8x7b --tokens 1T --deadline 14d --budget '$2M'

Every machine of the catalog is tried in growing numbers with its best layout, failures included. The
cheapest that meets the deadline is chosen; without a deadline the fastest within the budget.")]
pub(super) struct Arguments {
    /// A built-in name or a config.json
    #[arg(long, value_name = "NAME|FILE")]
    model: String,
    /// Tokens of the whole run
    #[arg(long)]
    tokens: Tokens,
    /// Finish within this time
    #[arg(long, value_name = "TIME")]
    deadline: Option<Seconds>,
    /// Spend no more than this
    #[arg(long, value_name = "DOLLARS")]
    budget: Option<Dollars>,
    /// Tokens per sequence
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    seq: u64,
    /// Tokens per optimizer step
    #[arg(long, value_name = "TOKENS", default_value = "4M")]
    batch_tokens: Tokens,
    /// Train in fp8 where the chip has it
    #[arg(long)]
    fp8: bool,
    #[arg(long, value_parser = choice(&Purchase::ALL), default_value = "on-demand")]
    purchase: Purchase,
    /// Prices of this region only
    #[arg(long)]
    region: Option<String>,
    /// Try no more GPUs than this
    #[arg(long, default_value_t = 16_384)]
    max_gpus: u32,
    /// May choose chips that no training measurement has calibrated
    #[arg(long)]
    any_chip: bool,
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), Stop> {
    let model = model::load(&arguments.model)?;
    let constants = Constants::builtin();
    let reliability = reliability(catalog.storage_class("fsx-lustre-persistent-1000")?);
    let global_batch = ((arguments.batch_tokens.get() / arguments.seq as f64).round() as u64).max(1);
    let need = Need {
        model: &model,
        tokens: arguments.tokens,
        workload: Workload { sequence: arguments.seq, global_batch, ..Workload::default() },
        constants: &constants,
        limits: Limits { deadline: arguments.deadline, budget: arguments.budget },
        purchase: arguments.purchase,
        region: arguments.region.as_deref(),
        precision: if arguments.fp8 { ComputePrecision::Fp8 } else { ComputePrecision::Bf16 },
        max_gpus: arguments.max_gpus,
        reliability: Some(&reliability),
        uncalibrated: if arguments.any_chip { Uncalibrated::Choose } else { Uncalibrated::List },
    };
    let choice = choose(&need, catalog)?;
    if console.is_json() {
        return console.json(&choice_json(&choice));
    }
    let best = &choice.best;
    console.line(&format!(
        "{} x {} ({} GPUs): {}, {}, layout {}",
        best.units,
        best.machine,
        grouped(best.gpus.into()),
        best.time,
        cost_text(best),
        best.candidate.layout
    ))?;
    console.line("")?;
    console.table(&front_table(&choice.front))?;
    console.line("")?;
    console.table(&others_table(&choice))
}

/// What a run meets with: the published failure rate, and checkpoints to a large Lustre file system.
fn reliability(lustre: &StorageClass) -> Reliability {
    let published = Published::builtin();
    Reliability {
        failures_per_gpu_day: published.usual_rate().map_or(0.0, |rate| rate.per_gpu_day()),
        store: Store::shared(lustre, Bytes::tb(100.0)),
        stall: Seconds::new(5.0),
        recovery: Recovery::restart(&published),
    }
}

fn cost_text(offer: &Offer) -> String {
    offer.cost.map_or("no price known".into(), |cost| cost.to_string())
}

fn front_table(front: &[Offer]) -> Table {
    let mut table = Table::new(vec![
        Column::left("NOT BEATEN IN TIME, COST AND MEMORY", 0),
        Column::right("GPUS", 0),
        Column::right("TIME", 0),
        Column::right("COST", 0),
        Column::left("LAYOUT", 1),
    ]);
    for offer in front.iter().take(12) {
        table.row(vec![
            format!("{} x {}", offer.units, offer.machine),
            offer.gpus.to_string(),
            format!("{:.3}", offer.time),
            cost_text(offer),
            offer.candidate.layout.to_string(),
        ]);
    }
    table
}

fn others_table(choice: &Choice) -> Table {
    let mut table = Table::new(vec![Column::left("NOT CHOSEN", 0), Column::left("WHY", 0)]);
    for (machine, objection) in &choice.others {
        table.row(vec![machine.clone(), objection_text(objection)]);
    }
    table
}

fn objection_text(objection: &Objection) -> String {
    match objection {
        Objection::MissingFigure { what } => what.chars().take(50).collect(),
        Objection::FitsNowhere { up_to_gpus } => format!("fits on no number up to {up_to_gpus} GPUs"),
        Objection::TooSlow { offer, by } => format!("{by:.3} too late, even with {} GPUs", offer.gpus),
        Objection::TooDear { offer, by } => format!("{by} over the budget with {} GPUs", offer.gpus),
        Objection::Uncalibrated { offer } => {
            format!("not calibrated; {:.3} on {} GPUs", offer.time, offer.gpus)
        }
        Objection::UnknownPrice { offer } => format!("no price; {:.3} on {} GPUs", offer.time, offer.gpus),
        Objection::Beaten { offer } => {
            format!("{:.3}, {} on {} GPUs", offer.time, cost_text(offer), offer.gpus)
        }
    }
}

fn choice_json(choice: &Choice) -> Value {
    let offer = |offer: &Offer| {
        json!({
            "machine": offer.machine,
            "units": offer.units,
            "gpus": offer.gpus,
            "layout": offer.candidate.layout.to_string(),
            "step_s": offer.candidate.seconds.get(),
            "time_s": offer.time.get(),
            "goodput": offer.goodput,
            "cost_usd": offer.cost.map(Dollars::get),
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
