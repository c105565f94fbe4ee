//! `--kind collectives`: the model of collectives against measurements of them.

use bedplate_calibrate::{CollectiveReport, CollectiveRow, CollectiveRows, Score, fit_collectives};
use bedplate_catalog::Catalog;
use bedplate_perf::Constants;
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, files};
use serde_json::{Value, json};

use super::validate::{percent, prediction_table};

pub(super) fn validate(
    text: &str,
    constants: &Constants,
    wants_rows: bool,
    catalog: &Catalog,
    console: &mut Console,
) -> Result<(), CliError> {
    let rows = CollectiveRows::read(text, catalog)?;
    let (report, held_out) = (rows.report(constants), rows.holdout_report(constants));
    if console.is_json() {
        return console.json(&json!({
            "fitted": scores_json(&report),
            "node_counts_left_out": scores_json(&held_out),
            "excluded": rows.excluded.iter().map(|(name, reason)| json!({"row": name, "reason": reason})).collect::<Vec<_>>(),
        }));
    }
    console.line("error of predicted seconds, and with each node count held out of the fit")?;
    console.table(&table(&report, &held_out))?;
    if wants_rows {
        console.line("")?;
        console.table(&row_table(&report))?;
    }
    for (name, reason) in &rows.excluded {
        console.say(&format!("excluded {name}: {reason}"));
    }
    Ok(())
}

/// Fits the constants of collectives and writes those that moved.
pub(super) fn calibrate(
    text: &str,
    start: &Constants,
    out: Option<&str>,
    catalog: &Catalog,
    console: &mut Console,
) -> Result<(), CliError> {
    let rows = CollectiveRows::read(text, catalog)?;
    let used: Vec<&CollectiveRow> = rows.used.iter().collect();
    let fitted = fit_collectives(&used, start);
    let (before, after) = (rows.report(start).total, rows.report(&fitted).total);
    console.say(&format!(
        "median error {} before, {} after, on the {} rows of the fit",
        percent(before.median_abs_error),
        percent(after.median_abs_error),
        used.len()
    ));
    let text = fitted.to_toml_changed(&Constants::builtin());
    if let Some(path) = out {
        files::write_text(path, &text)?;
        console.say(&format!("wrote {path}"));
    }
    if console.is_json() {
        return console.json(&json!({
            "rows_used": used.len(),
            "rows_excluded": rows.excluded.len(),
            "median_abs_error_before": before.median_abs_error,
            "median_abs_error_after": after.median_abs_error,
            "constants": text,
        }));
    }
    if out.is_none() { console.text(&text) } else { Ok(()) }
}

fn scores_json(report: &CollectiveReport) -> Value {
    let score = |score: &Score| {
        json!({
            "rows": score.rows,
            "median_error": score.median_abs_error,
            "p90_error": score.p90_abs_error,
            "bias": score.bias,
        })
    };
    let kinds = report.by_kind.iter().map(|(kind, each)| (kind.clone(), score(each)));
    json!({"total": score(&report.total), "by_kind": kinds.collect::<serde_json::Map<_, _>>()})
}

fn table(report: &CollectiveReport, held_out: &CollectiveReport) -> Table {
    let mut table = Table::new(vec![
        Column::left("COLLECTIVE", 0),
        Column::right("ROWS", 0),
        Column::right("MEDIAN", 0),
        Column::right("P90", 0),
        Column::right("BIAS", 0),
        Column::right("HELD OUT: MEDIAN", 0),
        Column::right("P90", 0),
    ]);
    let mut add = |name: &str, score: &Score, out: Option<&Score>| {
        let out = |figure: fn(&Score) -> f64| out.map_or(String::new(), |score| percent(figure(score)));
        table.row(vec![
            name.chars().take(45).collect(),
            score.rows.to_string(),
            percent(score.median_abs_error),
            percent(score.p90_abs_error),
            format!("{:+.1}%", score.bias * 100.0),
            out(|score| score.median_abs_error),
            out(|score| score.p90_abs_error),
        ]);
    };
    for (kind, score) in &report.by_kind {
        add(kind, score, held_out.by_kind.get(kind));
    }
    add("all", &report.total, Some(&held_out.total));
    table
}

fn row_table(report: &CollectiveReport) -> Table {
    let mut table = prediction_table();
    let mut rows: Vec<&(String, f64, f64)> = report.outcomes.iter().collect();
    let error = |row: &(String, f64, f64)| row.1 / row.2 - 1.0;
    rows.sort_by(|a, b| error(b).abs().total_cmp(&error(a).abs()));
    for row in rows {
        let seconds = |seconds: f64| bedplate_units::Seconds::new(seconds).to_string();
        table.row(vec![
            row.0.chars().take(60).collect(),
            seconds(row.1),
            seconds(row.2),
            format!("{:+.1}%", error(row) * 100.0),
        ]);
    }
    table
}
