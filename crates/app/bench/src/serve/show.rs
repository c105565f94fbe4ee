//! The measurement of one server, or of two beside each other.

use bedplate_load::{LoadPace, LoadSummary, Plan, Quantiles};
use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console};
use bedplate_units::{Count, Seconds};
use serde_json::{Value, json};

use super::Measured;

pub(super) fn own(own: &LoadSummary, console: &mut Console) -> Result<(), CliError> {
    console.text(&figures(own).render(console.width()))?;
    console.line("")?;
    console.table(&times(own))
}

pub(super) fn one(measured: &Measured, own: &LoadSummary, console: &mut Console) -> Result<(), CliError> {
    let mut facts = figures(&measured.summary);
    facts.add("client alone", own_share(own));
    console.text(&format!("{}\n{}", measured.url, facts.render(console.width())))?;
    console.line("")?;
    console.table(&times(&measured.summary))
}

pub(super) fn two(
    first: &Measured,
    second: &Measured,
    own: &LoadSummary,
    console: &mut Console,
) -> Result<(), CliError> {
    let mut facts = Facts::default();
    for (label, measured) in [("first", first), ("second", second)] {
        facts.add(label, format!("{}: {}", measured.url, requests(&measured.summary)));
    }
    facts.add("client alone", own_share(own));
    console.text(&facts.render(console.width()))?;
    console.line("")?;
    console.table(&comparison(&first.summary, &second.summary))
}

fn figures(summary: &LoadSummary) -> Facts {
    let mut facts = Facts::default();
    facts
        .add("model", &summary.model)
        .add("requests", requests(summary))
        .add("took", time(summary.seconds))
        .add(
            "throughput",
            format!(
                "{:.2} requests/s, {:.1} tokens/s generated, {:.1} tokens/s of prompts",
                summary.requests_per_second(),
                summary.output_tokens_per_second(),
                summary.prompt_tokens_per_second()
            ),
        );
    if summary.cached_tokens > 0 {
        let share = 100.0 * summary.cached_tokens as f64 / summary.prompt_tokens.max(1) as f64;
        facts.add("prefix cache", format!("{share:.1}% of prompt tokens were cached"));
    }
    if summary.late.p99 > 0.01 {
        let late = format!(
            "{} later than planned for one in a hundred: this client is too slow for the rate",
            time(summary.late.p99)
        );
        facts.add("sent", late);
    }
    facts
}

fn requests(summary: &LoadSummary) -> String {
    let mut text =
        format!("{} of {} finished", Count(summary.finished as u64), Count(summary.requests as u64));
    for (why, count) in summary.failures.iter().take(3) {
        text += &format!("; {count} failed: {why}");
    }
    text
}

fn own_share(own: &LoadSummary) -> String {
    format!(
        "first token after {}, {} between tokens, {:.0} tokens/s, at a server that answers at once",
        time(own.first_token.p50),
        time(own.between.p50),
        own.output_tokens_per_second()
    )
}

fn time(seconds: f64) -> String {
    Seconds::new(seconds).to_string()
}

/// The times of a summary under the names that are shown.
fn rows(summary: &LoadSummary) -> [(&'static str, &'static str, Quantiles); 4] {
    [
        ("time to first token", "ttft", summary.first_token),
        ("between tokens", "itl", summary.between),
        ("per token, by request", "tpot", summary.per_token),
        ("whole request", "e2e", summary.whole),
    ]
}

fn times(summary: &LoadSummary) -> Table {
    let columns = ["MEAN", "P50", "P90", "P99", "MAX"].map(|title| Column::right(title, 0));
    let mut table = Table::new([Column::left("TIME", 0)].into_iter().chain(columns).collect());
    for (name, _, quantiles) in rows(summary) {
        let Quantiles { mean, p50, p90, p99, highest, .. } = quantiles;
        let cells = [mean, p50, p90, p99, highest].map(time);
        table.row([name.to_owned()].into_iter().chain(cells).collect());
    }
    table
}

/// Figures of both with the ratio of the second to the first.
fn comparison(first: &LoadSummary, second: &LoadSummary) -> Table {
    let mut table = Table::new(vec![
        Column::left("FIGURE", 0),
        Column::right("FIRST", 0),
        Column::right("SECOND", 0),
        Column::right("RATIO", 0),
    ]);
    let ratio = |one: f64, other: f64| if one > 0.0 { format!("{:.2}x", other / one) } else { String::new() };
    for (name, rate) in [
        ("requests/s", LoadSummary::requests_per_second as fn(&LoadSummary) -> f64),
        ("tokens/s generated", LoadSummary::output_tokens_per_second),
        ("tokens/s of prompts", LoadSummary::prompt_tokens_per_second),
    ] {
        let (one, other) = (rate(first), rate(second));
        table.row(vec![name.into(), format!("{one:.2}"), format!("{other:.2}"), ratio(one, other)]);
    }
    for ((name, _, one), (_, _, other)) in rows(first).into_iter().zip(rows(second)) {
        for (quantile, one, other) in
            [("p50", one.p50, other.p50), ("p90", one.p90, other.p90), ("p99", one.p99, other.p99)]
        {
            table.row(vec![format!("{name}, {quantile}"), time(one), time(other), ratio(one, other)]);
        }
    }
    table
}

pub(super) fn json(plan: &Plan, own: &LoadSummary, measured: &[Measured]) -> Value {
    let pace = match plan.pace {
        LoadPace::Closed { users } => json!({ "users": users }),
        LoadPace::Open { speed } => json!({ "open": true, "speed": speed }),
    };
    let servers: Vec<Value> = measured
        .iter()
        .map(|measured| {
            let mut value = summary_json(&measured.summary);
            value["url"] = json!(measured.url);
            value
        })
        .collect();
    let mut value = json!({ "pace": pace, "requests": plan.requests.len(), "servers": servers, "client_alone": summary_json(own) });
    if let [first, second] = measured {
        value["ratios"] = ratios(&first.summary, &second.summary);
    }
    value
}

/// The second server's figures over the first's.
fn ratios(first: &LoadSummary, second: &LoadSummary) -> Value {
    let over = |one: f64, other: f64| (one > 0.0).then(|| other / one);
    let mut value = json!({
        "requests_per_s": over(first.requests_per_second(), second.requests_per_second()),
        "output_tokens_per_s": over(first.output_tokens_per_second(), second.output_tokens_per_second()),
    });
    for ((_, key, one), (_, _, other)) in rows(first).into_iter().zip(rows(second)) {
        value[format!("{key}_p50")] = json!(over(one.p50, other.p50));
        value[format!("{key}_p99")] = json!(over(one.p99, other.p99));
    }
    value
}

fn summary_json(summary: &LoadSummary) -> Value {
    let failures: Vec<Value> =
        summary.failures.iter().map(|(why, count)| json!({ "why": why, "count": count })).collect();
    let mut value = json!({
        "model": summary.model,
        "requests": summary.requests,
        "finished": summary.finished,
        "failures": failures,
        "seconds": summary.seconds,
        "requests_per_s": summary.requests_per_second(),
        "prompt_tokens": summary.prompt_tokens,
        "output_tokens": summary.output_tokens,
        "cached_tokens": summary.cached_tokens,
        "output_tokens_per_s": summary.output_tokens_per_second(),
        "late_p99_s": summary.late.p99,
    });
    for (_, key, quantiles) in rows(summary) {
        let Quantiles { count, mean, p50, p90, p99, highest } = quantiles;
        value[key] = json!({ "count": count, "mean_s": mean, "p50_s": p50, "p90_s": p90, "p99_s": p99, "max_s": highest });
    }
    value
}
