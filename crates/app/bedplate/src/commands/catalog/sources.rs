//! `bedplate catalog sources`

use bedplate_catalog::Catalog;
use bedplate_terminal::present::Facts;
use bedplate_terminal::{CliError, Console};
use serde_json::{Value, json};

pub(super) fn run(catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
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
    let mut facts = Facts::default();
    for reference in &catalog.references {
        let parts = [Some(&reference.title), reference.date.as_ref(), reference.url.as_ref()];
        let parts: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
        facts.add(&reference.key, format!("{}: {}", reference.kind.name(), parts.join(", ")));
    }
    console.text(&facts.render(console.width()))
}
