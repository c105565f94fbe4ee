//! `plan validate --regret`: published recipes against what a search proposes.

use bedplate_calibrate::Cases;
use bedplate_catalog::Catalog;
use bedplate_perf::Constants;
use bedplate_search::{Regret, regrets};
use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console};
use serde_json::{Value, json};

pub(super) fn show(
    text: &str,
    constants: &Constants,
    catalog: &Catalog,
    console: &mut Console,
) -> Result<(), CliError> {
    let cases = Cases::read(text, catalog)?;
    let mut all = regrets(&cases.used, constants)?;
    all.sort_by(|a, b| b.ratio.total_cmp(&a.ratio).then_with(|| a.id.cmp(&b.id)));
    if console.is_json() {
        return console.json(&json!(all.iter().map(row_json).collect::<Vec<_>>()));
    }
    let within = all.iter().filter(|regret| regret.is_within()).count();
    let excused = all.iter().filter(|regret| !regret.is_within() && regret.excuse.is_some()).count();
    let mut facts = Facts::default();
    facts
        .add("setups", all.len().to_string())
        .add("within 10%", within.to_string())
        .add("lack a feature", format!("{excused}, which their software has and another row covers"))
        .add("neither", (all.len() - within - excused).to_string());
    console
        .text(&format!("published recipes against what is proposed\n{}", facts.render(console.width())))?;
    console.line("")?;
    console.table(&table(&all))
}

fn table(all: &[Regret]) -> Table {
    let mut table = Table::new(vec![
        Column::left("ROW", 0),
        Column::left("MODEL", 0),
        Column::left("GPUS", 0),
        Column::left("PUBLISHED", 0),
        Column::left("PROPOSED", 0),
        Column::right("SLOWER", 0),
        Column::left("WHICH HAS", 1),
    ]);
    for regret in all {
        table.row(vec![
            regret.id.chars().take(20).collect(),
            regret.model.chars().take(24).collect(),
            format!("{} {}", regret.gpus, regret.accelerator.chars().take(12).collect::<String>()),
            regret.published.to_string(),
            regret.proposed.layout.to_string(),
            format!("{:+.1}%", (regret.ratio - 1.0) * 100.0),
            regret.excuse.unwrap_or("").into(),
        ]);
    }
    table
}

fn row_json(regret: &Regret) -> Value {
    json!({
        "id": regret.id,
        "model": regret.model,
        "accelerator": regret.accelerator,
        "gpus": regret.gpus,
        "stack": regret.stack.name(),
        "published": regret.published.to_string(),
        "proposed": regret.proposed.layout.to_string(),
        "ratio": regret.ratio,
        "excuse": regret.excuse,
    })
}
