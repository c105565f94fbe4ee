//! `bedplate plan validate --data FILE`: the performance model's error.

use std::collections::BTreeMap;

use bedplate_calibrate::{Score, ValidationReport, validate};
use bedplate_catalog::Catalog;
use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console, files};
use serde_json::{Value, json};

use super::constants::Choice;
use super::{collectives, regret, serving};

/// The side of the performance model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    /// Steps of training runs
    Training,
    /// Latency and throughput of serving engines
    Serving,
    /// Collectives by themselves
    Collectives,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate plan validate --data runs.csv
  bedplate plan validate --data runs.csv --constants site.toml --json
  bedplate plan validate --data runs.csv --regret
  bedplate plan validate --kind serving --data data/serving/measured.csv
  bedplate plan validate --kind collectives --data collectives.csv

The file has a header row with the columns of data/training/measured.csv.
Required are model or architecture, accelerator, layout, batch and one measured
figure (tokens/s/GPU, step time, TFLOP/s or MFU with its FLOPs rule). Rows that
cannot be predicted are listed with the reason.

With --kind serving the columns are those of data/serving/README.md: model,
accelerator, engine, precision, layout, isl, osl, concurrency, and the measured
ttft_ms and itl_ms. Each row is also predicted with constants fitted without
its model on its GPU, and the rows inside their 80 % intervals are counted.

With --kind collectives the columns are those of data/training/collectives.csv;
each node count is also held out of the fit in turn.")]
pub(crate) struct Arguments {
    /// What was measured
    #[arg(long, value_enum, default_value_t = Kind::Training)]
    kind: Kind,
    /// A CSV file of measured runs
    #[arg(long, value_name = "FILE")]
    data: String,
    #[command(flatten)]
    constants: Choice,
    /// Adjustments of your own deployments by `bedplate plan calibrate --kind serving`
    #[arg(long, value_name = "FILE")]
    site: Option<String>,
    /// List every row with its error, the largest first
    #[arg(long)]
    rows: bool,
    /// How far published recipes are from what `plan train` would propose for the same model, chips, batch and software
    #[arg(long)]
    regret: bool,
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let text = files::read_text(&arguments.data)?;
    if arguments.kind == Kind::Serving {
        let constants = arguments.constants.load_serving()?;
        let site = arguments.site.as_deref().map(serving::load_site).transpose()?;
        let errors_of_rows = arguments.rows;
        return serving::validate(&text, &constants, site.as_ref(), errors_of_rows, catalog, console);
    }
    let constants = arguments.constants.load()?;
    if arguments.kind == Kind::Collectives {
        return collectives::validate(&text, &constants, arguments.rows, catalog, console);
    }
    if arguments.regret {
        return regret::show(&text, &constants, catalog, console);
    }
    let report = validate(&text, &constants, catalog)?;
    if console.is_json() {
        return console.json(&report_json(&report));
    }
    let total = &report.total;
    let mut facts = Facts::default();
    facts
        .add("rows used", report.rows_used().to_string())
        .add("rows skipped", report.rows_skipped.len().to_string())
        .add("median error", percent(total.median_abs_error))
        .add("p90 error", percent(total.p90_abs_error))
        .add("bias", format!("{:+.1}%", total.bias * 100.0));
    if let Some(tau) = report.kendall_tau {
        facts.add("ranking", format!("Kendall's tau {tau:.2} over {} rows", report.ranked_rows));
    }
    if report.memory.rows > 0 {
        let memory = &report.memory;
        let within = report.memory_within * 100.0;
        let median = percent(memory.median_abs_error);
        facts.add("memory", format!("{median} median over {} rows, {within:.0}% within 15%", memory.rows));
    }
    facts.add("said not to fit", format!("{} rows that ran", report.false_refusals));
    facts.add("refused", format!("{} rows that ran", report.illegal.len()));
    console.text(&format!("error of predicted tokens/s/GPU\n{}", facts.render(console.width())))?;
    for (title, scores) in [("SOURCE", owned(&report.by_source)), ("GPU", owned(&report.by_gpu))] {
        console.line("")?;
        console.table(&score_table(title, &scores))?;
    }
    console.line("")?;
    let by_parallelism = report.by_parallelism.iter().map(|(name, score)| ((*name).to_owned(), *score));
    console.table(&score_table("ROWS WITH", &by_parallelism.collect::<Vec<_>>()))?;
    if arguments.rows {
        console.line("")?;
        console.table(&row_table(&report))?;
    }
    for skipped in &report.rows_skipped {
        console.say(&format!("skipped {}: {}", skipped.id, skipped.reason));
    }
    Ok(())
}

fn owned(scores: &BTreeMap<String, Score>) -> Vec<(String, Score)> {
    scores.iter().map(|(name, score)| (name.clone(), *score)).collect()
}

pub(super) fn percent(fraction: f64) -> String {
    format!("{:.1}%", fraction * 100.0)
}

fn score_table(title: &'static str, scores: &[(String, Score)]) -> Table {
    let mut table = Table::new(vec![
        Column::left(title, 0),
        Column::right("ROWS", 0),
        Column::right("MEDIAN", 0),
        Column::right("P90", 0),
        Column::right("BIAS", 0),
    ]);
    for (name, score) in scores.iter().filter(|(_, score)| score.rows > 0) {
        table.row(vec![
            name.chars().take(45).collect(),
            score.rows.to_string(),
            percent(score.median_abs_error),
            percent(score.p90_abs_error),
            format!("{:+.1}%", score.bias * 100.0),
        ]);
    }
    table
}

/// A table of rows with what was predicted and measured.
pub(super) fn prediction_table() -> Table {
    Table::new(vec![
        Column::left("ROW", 0),
        Column::right("PREDICTED", 0),
        Column::right("MEASURED", 0),
        Column::right("ERROR", 0),
    ])
}

fn row_table(report: &ValidationReport) -> Table {
    let mut table = prediction_table();
    let mut outcomes: Vec<_> = report.outcomes.iter().collect();
    outcomes.sort_by(|a, b| b.error.abs().total_cmp(&a.error.abs()));
    for outcome in outcomes {
        table.row(vec![
            outcome.id.clone(),
            format!("{:.0}", outcome.predicted),
            format!("{:.0}", outcome.measured),
            format!("{:+.1}%", outcome.error * 100.0),
        ]);
    }
    table
}

fn report_json(report: &ValidationReport) -> Value {
    let score = |score: &Score| {
        json!({
            "rows": score.rows,
            "median_abs_error": score.median_abs_error,
            "p90_abs_error": score.p90_abs_error,
            "bias": score.bias,
        })
    };
    let by = |scores: &BTreeMap<String, Score>| {
        Value::Object(scores.iter().map(|(name, each)| (name.clone(), score(each))).collect())
    };
    let skipped = report.rows_skipped.iter();
    let outcomes = report.outcomes.iter();
    json!({
        "rows_used": report.rows_used(),
        "rows_skipped": skipped
            .map(|skipped| json!({ "id": skipped.id, "reason": skipped.reason.to_string() }))
            .collect::<Vec<_>>(),
        "median_abs_error": report.total.median_abs_error,
        "p90_abs_error": report.total.p90_abs_error,
        "bias": report.total.bias,
        "kendall_tau": report.kendall_tau,
        "memory": score(&report.memory),
        "memory_within_15_percent": report.memory_within,
        "said_not_to_fit": report.false_refusals,
        "refused": report.illegal,
        "by_source": by(&report.by_source),
        "by_gpu": by(&report.by_gpu),
        "by_parallelism": Value::Object(
            report.by_parallelism.iter().map(|(name, each)| ((*name).to_owned(), score(each))).collect()
        ),
        "rows": outcomes
            .map(|row| json!({
                "id": row.id,
                "source": row.source,
                "predicted": row.predicted,
                "measured": row.measured,
                "error": row.error,
            }))
            .collect::<Vec<_>>(),
    })
}
