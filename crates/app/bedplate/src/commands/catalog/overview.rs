//! `bedplate catalog`: an overview with the next commands.

use bedplate_catalog::Catalog;
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console};
use serde_json::json;

pub(super) fn run(catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let kinds = [
        ("accelerators", catalog.accelerators.len()),
        ("instances", catalog.instances.len()),
        ("ultraservers", catalog.ultraservers.len()),
        ("fabrics", catalog.fabrics.len()),
        ("storage", catalog.storage.len()),
        ("sources", catalog.references.len()),
    ];
    if console.is_json() {
        return console.json(&json!(kinds.into_iter().collect::<std::collections::BTreeMap<_, _>>()));
    }
    let mut table =
        Table::new(vec![Column::left("KIND", 0), Column::right("ENTRIES", 0), Column::left("COMMAND", 0)]);
    for (kind, count) in kinds {
        table.row(vec![kind.into(), count.to_string(), format!("bedplate catalog {kind}")]);
    }
    console.table(&table)
}
