//! `bedplate plan validate` and `plan calibrate` with `--kind serving`.

use std::collections::BTreeMap;

use bedplate_calibrate::serving::{
    Coverage, HeldOut, HeldOutReport, Scores, ServingCase, ServingCases, ServingErrors, ServingReport,
    ServingSkipped, fit_site, held_out_errors, held_out_report, serving_report,
};
use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use bedplate_perf::serving::{ServingConstants, Site};
use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console, files};
use serde_json::{Map, Value, json};

use super::validate::percent;

pub(super) fn load_site(path: &str) -> Result<Site, CliError> {
    Ok(Site::read(Source::new(path, &files::read_text(path)?))?)
}

pub(super) fn validate(
    text: &str,
    constants: &ServingConstants,
    site: Option<&Site>,
    lists_rows: bool,
    catalog: &Catalog,
    console: &mut Console,
) -> Result<(), CliError> {
    let mut cases = ServingCases::read(text, catalog)?;
    if let Some(site) = site {
        adjust(&mut cases, site);
    }
    let report = serving_report(&cases, |_| constants);
    // Fits without each source are known of the built-in constants alone.
    let is_builtin = site.is_none() && *constants == ServingConstants::builtin();
    let held_out = is_builtin.then(|| as_strangers(&cases, constants));
    if console.is_json() {
        return console.json(&report_json(&report, held_out.as_ref()));
    }
    summary(&report, held_out.as_ref(), console)?;
    if let Some(held_out) = &held_out {
        console.line("\nrows that 80% intervals hold, both made without the source of the row")?;
        console.table(&coverage_table(held_out))?;
    }
    for (kind, groups) in &report.by {
        console.line("")?;
        console.table(&score_table(kind, groups))?;
    }
    if lists_rows {
        console.line("")?;
        console.table(&row_table(&report))?;
    }
    say_counts("suspicious", report.rows_suspicious.iter().map(|row| row.reason.to_string()), console);
    say_counts("skipped", report.rows_skipped.iter().map(|row| row.reason.to_string()), console);
    Ok(())
}

/// The rows, each predicted and judged by what was made without its source.
fn as_strangers(cases: &ServingCases, constants: &ServingConstants) -> HeldOutReport {
    let rows = held_out_errors(cases, &HeldOut::builtin(), constants);
    held_out_report(&rows, &ServingErrors::builtin())
}

/// How many rows for each reason; `--json` names them.
fn say_counts(what: &str, reasons: impl Iterator<Item = String>, console: &Console) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for reason in reasons {
        *counts.entry(reason).or_default() += 1;
    }
    for (reason, count) in counts {
        console.say(&format!("{what} {count}: {reason}"));
    }
}

pub(super) fn calibrate(
    text: &str,
    constants: &ServingConstants,
    out: Option<&str>,
    catalog: &Catalog,
    console: &mut Console,
) -> Result<(), CliError> {
    let mut cases = ServingCases::read(text, catalog)?;
    let before = serving_report(&cases, |_| constants).total;
    let site = fit_site(&cases, constants);
    adjust(&mut cases, &site);
    let after = serving_report(&cases, |_| constants).total;
    console.say(&format!("{} deployments in {} rows", site.len(), before.inter_token.rows));
    for (name, before, after) in [
        ("inter-token latency", before.inter_token, after.inter_token),
        ("throughput per GPU", before.throughput, after.throughput),
        ("first token", before.first_token, after.first_token),
    ] {
        console.say(&format!(
            "{name}: median error {} before, {} after, on the rows of the fit",
            percent(before.median_abs_error),
            percent(after.median_abs_error)
        ));
    }
    let text = site.to_toml();
    if let Some(path) = out {
        files::write_text(path, &text)?;
        console.say(&format!("wrote {path}"));
    }
    if console.is_json() {
        return console.json(&json!({
            "deployments": site.len(),
            "rows_used": before.inter_token.rows,
            "rows_skipped": cases.skipped.len(),
            "before": before.json(),
            "after": after.json(),
            "site": text,
        }));
    }
    if out.is_none() { console.text(&text) } else { Ok(()) }
}

fn adjust(cases: &mut ServingCases, site: &Site) {
    for case in &mut cases.used {
        let key = case.site_key();
        if let Some(adjustment) = site.find_key(&key) {
            *case = ServingCase::adjusted(case, adjustment);
        }
    }
}

fn summary(
    report: &ServingReport,
    held_out: Option<&HeldOutReport>,
    console: &mut Console,
) -> Result<(), CliError> {
    let mut facts = Facts::default();
    facts
        .add("rows used", report.total.inter_token.rows.to_string())
        .add("suspicious", report.rows_suspicious.len().to_string())
        .add("rows skipped", report.rows_skipped.len().to_string());
    console.text(&format!("error of predicted latency and throughput\n{}", facts.render(console.width())))?;
    console.line("")?;
    let strangers = held_out.map(|held_out| {
        [("held out, one engine", held_out.total), ("held out, pools", held_out.disaggregated)]
    });
    let sets = [
        ("one engine", report.total),
        ("with suspicious rows", report.with_suspicious),
        ("without repaired rows", report.without_repaired),
        ("prompt and decode pools", report.disaggregated),
    ];
    let sets = sets.into_iter().chain(strangers.into_iter().flatten());
    let sets = sets.map(|(name, scores)| (name.to_owned(), scores));
    console.table(&score_table("rows", &sets.collect()))
}

fn score_table(kind: &str, groups: &BTreeMap<String, Scores>) -> Table {
    let title = match kind {
        "engine" => "ENGINE",
        "gpu" => "GPU",
        "layout" => "LAYOUT",
        "model" => "MODEL AND GPU",
        "weights" => "WEIGHTS",
        _ => "ROWS OF",
    };
    let mut columns = vec![Column::left(title, 0), Column::right("ROWS", 0)];
    columns.extend(Column::errors_of_serving());
    let mut table = Table::new(columns);
    for (name, scores) in groups.iter().filter(|(_, scores)| scores.inter_token.rows > 0) {
        let mut row = vec![name.chars().take(45).collect(), scores.inter_token.rows.to_string()];
        for score in [scores.inter_token, scores.throughput, scores.first_token] {
            row.push(percent(score.median_abs_error));
            row.push(percent(score.p90_abs_error));
        }
        table.row(row);
    }
    table
}

/// An interval is right where four in five rows are inside, give or take one in twenty; few rows tell nothing about that.
const RIGHT: std::ops::RangeInclusive<f64> = 0.75..=0.85;
const FEW: usize = 20;

fn coverage_table(held_out: &HeldOutReport) -> Table {
    let mut table = Table::new(vec![
        Column::left("ROWS OF", 0),
        Column::right("ROWS", 0),
        Column::right("ITL", 0),
        Column::right("TOKENS/S/GPU", 0),
        Column::right("TTFT", 0),
        Column::left("NOT 75-85%", 0),
    ]);
    for (name, coverage) in held_out.coverage.values().flatten() {
        let shares = [
            ("itl", coverage.inter_token),
            ("tokens/s", coverage.throughput),
            ("ttft", coverage.first_token),
        ];
        let is_wrong = |share: &f64| coverage.rows >= FEW && !RIGHT.contains(share);
        let wrong = shares.into_iter().filter(|(_, share)| is_wrong(share)).map(|(name, _)| name);
        let mut row = vec![name.clone(), coverage.rows.to_string()];
        row.extend(shares.map(|(_, share)| percent(share)));
        row.push(wrong.collect::<Vec<_>>().join(", "));
        table.row(row);
    }
    table
}

fn row_table(report: &ServingReport) -> Table {
    let mut table = Table::new(vec![
        Column::left("ROW", 0),
        Column::right("ITL", 0),
        Column::right("TOKENS/S/GPU", 0),
        Column::right("TTFT", 0),
    ]);
    let mut outcomes: Vec<_> = report.outcomes.iter().collect();
    outcomes.sort_by(|a, b| b.errors.inter_token.abs().total_cmp(&a.errors.inter_token.abs()));
    let signed = |logarithm: f64| format!("{:+.1}%", (logarithm.exp() - 1.0) * 100.0);
    for row in outcomes {
        table.row(vec![
            row.id.clone(),
            signed(row.errors.inter_token),
            signed(row.errors.throughput),
            signed(row.errors.first_token),
        ]);
    }
    table
}

fn held_out_json(held_out: &HeldOutReport) -> Value {
    let coverage = |coverage: &Coverage| {
        json!({
            "rows": coverage.rows,
            "ttft": coverage.first_token,
            "itl": coverage.inter_token,
            "throughput": coverage.throughput,
        })
    };
    let kinds = held_out.coverage.iter().map(|(kind, groups)| {
        let groups: Map<String, Value> =
            groups.iter().map(|(name, each)| (name.clone(), coverage(each))).collect();
        ((*kind).to_owned(), Value::Object(groups))
    });
    json!({
        "total": held_out.total.json(),
        "disaggregated": held_out.disaggregated.json(),
        "within_interval_80": Value::Object(kinds.collect()),
    })
}

fn report_json(report: &ServingReport, held_out: Option<&HeldOutReport>) -> Value {
    let mut value = report.total.json();
    let fields = [
        ("kind", json!("serving")),
        ("rows_used", json!(report.total.inter_token.rows)),
        ("rows_skipped", skipped_json(&report.rows_skipped)),
        ("rows_suspicious", skipped_json(&report.rows_suspicious)),
        ("with_suspicious", report.with_suspicious.json()),
        ("without_repaired", report.without_repaired.json()),
        ("disaggregated", report.disaggregated.json()),
        ("left_out", held_out.map_or(Value::Null, held_out_json)),
    ];
    let object = value.as_object_mut().expect("scores are an object");
    object.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    for (kind, groups) in &report.by {
        let groups: Map<String, Value> =
            groups.iter().map(|(name, scores)| (name.clone(), scores.json())).collect();
        object.insert(format!("by_{kind}"), Value::Object(groups));
    }
    let rows = report.outcomes.iter().map(|row| {
        json!({
            "id": row.id,
            "is_suspicious": row.is_suspicious,
            "itl_error": row.errors.inter_token.exp() - 1.0,
            "throughput_error": row.errors.throughput.exp() - 1.0,
            "ttft_error": row.errors.first_token.exp() - 1.0,
        })
    });
    object.insert("rows".to_owned(), rows.collect());
    value
}

fn skipped_json(rows: &[ServingSkipped]) -> Value {
    rows.iter().map(|row| json!({ "id": row.id, "reason": row.reason.to_string() })).collect()
}
