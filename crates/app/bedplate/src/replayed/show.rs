//! The outcome of a replay as text and as JSON.

use bedplate_batching::RequestRefusal;
use bedplate_replay::requests::{Fate, Objectives, Outcome, Picoseconds, Spread, seconds};
use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console};
use bedplate_units::{Count, Dollars, Seconds};
use serde_json::{Value, json};

pub(crate) fn show(
    outcome: &Outcome,
    objectives: &Objectives,
    console: &mut Console,
) -> Result<(), CliError> {
    console.text(&facts(outcome, objectives).render(console.width()))?;
    console.line("")?;
    console.table(&latencies(outcome))
}

fn time(value: Picoseconds) -> Seconds {
    Seconds::new(seconds(value))
}

pub(crate) fn facts(outcome: &Outcome, objectives: &Objectives) -> Facts {
    let mut facts = Facts::default();
    let mut requests = format!("{} of {} finished", Count(outcome.finished), Count(outcome.requests));
    let others = [
        (outcome.refused, "refused"),
        (outcome.dropped, "dropped"),
        (outcome.unfinished, "unfinished after 213 days, the range of the virtual clock"),
    ];
    for (count, what) in others {
        if count > 0 {
            requests += &format!(", {} {what}", Count(count));
        }
    }
    facts
        .add("requests", requests)
        .add_known(
            "refused",
            first_refusal(outcome).map(|refusal| format!("the first one because {refusal}")),
        )
        .add("took", format!("{} of virtual time", time(outcome.duration)))
        .add(
            "throughput",
            format!(
                "{:.1} requests/s, {:.0} tokens/s generated",
                outcome.requests_per_second(),
                outcome.output_tokens_per_second()
            ),
        );
    if *objectives != Objectives::default() {
        facts.add(
            "goodput",
            format!(
                "{:.1} requests/s within the objectives, {:.1}% of all",
                outcome.goodput(),
                outcome.good_share() * 100.0
            ),
        );
    }
    facts
        .add("prefix cache", format!("{:.1}% of prompt tokens were cached", outcome.hit_rate() * 100.0))
        .add(
            "KV blocks",
            format!(
                "{:.1}% in use on average, {:.1}% at most; {} preemptions",
                outcome.kv_mean * 100.0,
                outcome.kv_highest * 100.0,
                Count(outcome.preemptions)
            ),
        )
        .add(
            "replicas",
            format!(
                "{} of replica time, {:.1}% busy",
                Seconds::new(outcome.replica_seconds),
                outcome.busy * 100.0
            ),
        );
    let cost = outcome.dollars_per_million_output_tokens();
    facts.add_known(
        "cost",
        cost.map(|each| {
            format!("{}; {} per million tokens generated", Dollars::new(outcome.dollars), Dollars::new(each))
        }),
    );
    facts
}

fn first_refusal(outcome: &Outcome) -> Option<RequestRefusal> {
    outcome.records.iter().find_map(|record| match record.fate {
        Fate::Refused(refusal) => Some(refusal),
        Fate::Underway | Fate::Finished | Fate::Dropped => None,
    })
}

/// Latencies by name and key.
fn spreads(outcome: &Outcome) -> [(&'static str, &'static str, Spread); 4] {
    [
        ("time to first token", "ttft", outcome.ttft),
        ("between tokens, by request", "itl", outcome.itl),
        ("between tokens, by token", "token_gap", outcome.token_gap),
        ("end to end", "e2e", outcome.end_to_end),
    ]
}

pub(crate) fn latencies(outcome: &Outcome) -> Table {
    let mut table = Table::new(vec![
        Column::left("LATENCY", 0),
        Column::right("MEAN", 0),
        Column::right("P50", 0),
        Column::right("P90", 0),
        Column::right("P95", 1),
        Column::right("P99", 0),
        Column::right("LONGEST", 2),
    ]);
    for (title, _, spread) in spreads(outcome) {
        let Spread { mean, p50, p90, p95, p99, longest, .. } = spread;
        let mut row = vec![title.to_owned()];
        row.extend([mean, p50, p90, p95, p99, longest].map(|value| time(value).to_string()));
        table.row(row);
    }
    table
}

pub(crate) fn json(outcome: &Outcome, objectives: &Objectives) -> Value {
    let optional = |value: Option<Picoseconds>| value.map(seconds);
    let latencies = spreads(outcome).map(|(_, name, spread)| (format!("{name}_s"), spread_json(&spread)));
    let windows = outcome.series.windows.iter().map(|window| {
        json!({
            "arrived": window.arrived,
            "finished": window.finished,
            "good": window.good,
            "output_tokens": window.output_tokens,
            "prompt_tokens": window.prompt_tokens,
            "mean_ttft_s": mean(window.ttft_seconds, window.first_tokens),
            "kv_replica_s": window.kv_seconds,
            "waiting_s": window.waiting_seconds,
            "busy_replica_s": window.busy_seconds,
        })
    });
    json!({
        "requests": outcome.requests,
        "finished": outcome.finished,
        "refused": outcome.refused,
        "dropped": outcome.dropped,
        "unfinished": outcome.unfinished,
        "duration_s": seconds(outcome.duration),
        "requests_per_s": outcome.requests_per_second(),
        "prompt_tokens": outcome.prompt_tokens,
        "cached_tokens": outcome.cached_tokens,
        "output_tokens": outcome.output_tokens,
        "output_tokens_per_s": outcome.output_tokens_per_second(),
        "hit_rate": outcome.hit_rate(),
        "objectives": {
            "ttft_s": optional(objectives.ttft),
            "itl_s": optional(objectives.itl),
            "e2e_s": optional(objectives.end_to_end),
        },
        "good": outcome.good,
        "goodput_per_s": outcome.goodput(),
        "latencies": latencies.into_iter().collect::<serde_json::Map<_, _>>(),
        "kv_mean": outcome.kv_mean,
        "kv_highest": outcome.kv_highest,
        "preemptions": outcome.preemptions,
        "replica_s": outcome.replica_seconds,
        "busy": outcome.busy,
        "dollars": outcome.dollars,
        "dollars_per_million_output_tokens": outcome.dollars_per_million_output_tokens(),
        "steps": outcome.steps,
        "events": outcome.events,
        "series": { "window_s": seconds(outcome.series.window), "windows": windows.collect::<Vec<_>>() },
    })
}

fn spread_json(spread: &Spread) -> Value {
    json!({
        "count": spread.count,
        "mean": seconds(spread.mean),
        "p50": seconds(spread.p50),
        "p90": seconds(spread.p90),
        "p95": seconds(spread.p95),
        "p99": seconds(spread.p99),
        "longest": seconds(spread.longest),
    })
}

pub(crate) fn mean(sum: f64, count: u32) -> Option<f64> {
    (count > 0).then(|| sum / f64::from(count))
}
