//! `bedplate catalog fabrics`

use bedplate_catalog::{Catalog, Fabric, refuse_unknown};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console};
use serde_json::Value;

use super::{json, known};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate catalog fabrics --family efa")]
pub(super) struct Arguments {
    /// Only this family: nvlink, efa, infiniband, neuronlink, pcie, …
    #[arg(long)]
    family: Option<String>,
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    refuse_unknown(
        "fabric family",
        arguments.family.as_deref(),
        catalog.fabrics.iter().map(|entry| &entry.family),
    )?;
    let is_wanted = |fabric: &&Fabric| {
        arguments.family.as_ref().is_none_or(|family| family.eq_ignore_ascii_case(&fabric.family))
    };
    let chosen: Vec<&Fabric> = catalog.fabrics.iter().filter(is_wanted).collect();
    if console.is_json() {
        return console.json(&Value::Array(chosen.into_iter().map(json::fabric).collect()));
    }
    let mut table = Table::new(vec![
        Column::left("NAME", 0),
        Column::left("KIND", 0),
        Column::right("PER ACCELERATOR", 0),
        Column::right("ONE WAY", 1),
        Column::right("PER PORT", 0),
        Column::left("PROTOCOL", 3),
        Column::left("TITLE", 2),
    ]);
    for fabric in chosen {
        table.row(vec![
            fabric.name.clone(),
            fabric.kind.name().into(),
            known(fabric.per_accelerator),
            known(fabric.one_way_per_accelerator()),
            known(fabric.per_port),
            known(fabric.protocol.as_ref()),
            fabric.title.clone(),
        ]);
    }
    console.table(&table)
}
