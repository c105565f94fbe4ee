//! `bedplate catalog sources`

use bedplate_catalog::Catalog;
use serde_json::{Value, json};

use crate::console::Console;
use crate::present::{Column, Table};
use crate::stop::Stop;

pub(super) fn run(catalog: &Catalog, console: &mut Console) -> Result<(), Stop> {
    if console.is_json() {
        let entry = |reference: &bedplate_catalog::Reference| {
            json!({
                "key": reference.key,
                "title": reference.title,
                "kind": reference.kind.name(),
                "url": reference.url,
                "date": reference.date,
            })
        };
        return console.json(&Value::Array(catalog.references.iter().map(entry).collect()));
    }
    let mut table = Table::new(vec![
        Column::left("KEY", 0),
        Column::left("KIND", 0),
        Column::left("DATE", 2),
        Column::left("TITLE", 1),
        Column::left("URL", 3),
    ]);
    for reference in &catalog.references {
        table.row(vec![
            reference.key.clone(),
            reference.kind.name().into(),
            reference.date.clone().unwrap_or_default(),
            reference.title.clone(),
            reference.url.clone().unwrap_or_default(),
        ]);
    }
    console.table(&table)
}
