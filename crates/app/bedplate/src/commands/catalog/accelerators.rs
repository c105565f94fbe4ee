//! `bedplate catalog accelerators`

use bedplate_catalog::{Accelerator, Bound, Catalog, refuse_unknown};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console};
use bedplate_units::Bytes;
use serde_json::Value;

use super::{json, known};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate catalog accelerators --vendor nvidia --memory '>=80GB'")]
pub(super) struct Arguments {
    /// Only chips of this vendor: nvidia, aws, amd
    #[arg(long)]
    vendor: Option<String>,
    /// Only chips whose memory, as sold, meets a bound, such as '>=141GB'
    #[arg(long, value_name = "BOUND")]
    memory: Option<Bound<Bytes>>,
}

impl Arguments {
    fn admits(&self, accelerator: &Accelerator) -> bool {
        self.vendor.as_ref().is_none_or(|vendor| vendor.eq_ignore_ascii_case(&accelerator.vendor))
            && self.memory.as_ref().is_none_or(|bound| bound.holds(&accelerator.memory))
    }
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    refuse_unknown(
        "vendor",
        arguments.vendor.as_deref(),
        catalog.accelerators.iter().map(|entry| &entry.vendor),
    )?;
    let chosen: Vec<&Accelerator> =
        catalog.accelerators.iter().filter(|accelerator| arguments.admits(accelerator)).collect();
    if console.is_json() {
        return console.json(&Value::Array(chosen.into_iter().map(json::accelerator).collect()));
    }
    if chosen.is_empty() {
        console.say("no accelerator matches; loosen a bound");
        return Ok(());
    }
    let mut table = Table::new(vec![
        Column::left("NAME", 0),
        Column::right("BF16", 0),
        Column::right("FP8", 1),
        Column::right("FP4", 3),
        Column::right("MEMORY", 0),
        Column::right("BANDWIDTH", 0),
        Column::left("SCALE-UP", 2),
        Column::left("HOST LINK", 5),
        Column::right("POWER", 4),
    ]);
    for accelerator in chosen {
        table.row(vec![
            accelerator.name.clone(),
            known(accelerator.peaks.bf16),
            known(accelerator.peaks.fp8),
            known(accelerator.peaks.fp4),
            accelerator.memory.to_string(),
            known(accelerator.memory_bandwidth),
            known(accelerator.scale_up.as_ref()),
            known(accelerator.host_link.as_ref()),
            known(accelerator.power),
        ]);
    }
    console.table(&table)
}
