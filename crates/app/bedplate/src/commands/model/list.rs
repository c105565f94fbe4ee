//! `bedplate model list`

use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console};
use bedplate_transformer::{Transformer, builtin, builtin_names};
use bedplate_units::Count;
use serde_json::{Value, json};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate model list
  bedplate model list qwen3")]
pub(crate) struct Arguments {
    /// Only names that contain this
    part: Option<String>,
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let part = arguments.part.as_deref().unwrap_or("").to_lowercase();
    let models: Vec<Transformer> =
        builtin_names().filter(|name| name.contains(&part)).map(builtin).collect::<Result<_, _>>()?;
    if console.is_json() {
        let entry = |model: &Transformer| {
            let parameters = model.parameters();
            json!({
                "name": model.name,
                "parameters": { "total": parameters.total, "active": parameters.active },
                "layers": model.layer_count(),
                "hidden": model.hidden,
                "max_context": model.max_context,
            })
        };
        return console.json(&Value::Array(models.iter().map(entry).collect()));
    }
    if models.is_empty() {
        console.say("no built-in name contains that; see all with `bedplate model list`");
        return Ok(());
    }
    let mut table = Table::new(vec![
        Column::left("NAME", 0),
        Column::right("PARAMETERS", 0),
        Column::right("ACTIVE", 0),
        Column::right("LAYERS", 1),
        Column::right("HIDDEN", 1),
        Column::right("CONTEXT", 2),
    ]);
    for model in &models {
        let parameters = model.parameters();
        table.row(vec![
            model.name.clone(),
            Count(parameters.total).to_string(),
            if model.is_mixture() { Count(parameters.active).to_string() } else { String::new() },
            model.layer_count().to_string(),
            model.hidden.to_string(),
            model.max_context.to_string(),
        ]);
    }
    console.table(&table)
}
