//! The outcome of a replay as an HTML page: the course of the replay, and the distribution of latencies.

use bedplate_replay::requests::{
    Fate, Objectives, Outcome, Picoseconds, RequestRecord, SeriesWindow, seconds,
};
use bedplate_terminal::html::{Plot, Point, Report, Series};

use super::show;

/// Points of a curve; more would not be visible.
const POINTS: usize = 120;

pub(crate) fn page(outcome: &Outcome, objectives: &Objectives) -> Report {
    let mut report =
        Report::new("Replay of requests", &format!("{} requests in virtual time", outcome.requests));
    report
        .section("The answer", "Decided by the scheduler and the router that an engine runs.")
        .facts(show::facts(outcome, objectives).rows())
        .table(&show::latencies(outcome).cells());
    report
        .section("Distribution of latencies", "The share of requests that took no longer.")
        .chart(&distribution(outcome));
    report.section("Requests", "Arrived, finished, and finished within the objectives.").chart(&over_time(
        outcome,
        "requests per second",
        &[
            ("arrived", |window, length| Some(f64::from(window.arrived) / length)),
            ("finished", |window, length| Some(f64::from(window.finished) / length)),
            ("good", |window, length| Some(f64::from(window.good) / length)),
        ],
    ));
    report.section("Tokens", "Prompt tokens computed and tokens generated.").chart(&over_time(
        outcome,
        "tokens per second",
        &[
            ("prompt", |window, length| Some(window.prompt_tokens / length)),
            ("generated", |window, length| Some(window.output_tokens / length)),
        ],
    ));
    report.section("Time to first token", "The mean of the first tokens at that time.").chart(&over_time(
        outcome,
        "seconds",
        &[("mean", |window, _| show::mean(window.ttft_seconds, window.first_tokens))],
    ));
    report
        .section("Load", "Replicas running a step, replicas that the used KV would fill, waiting sequences.")
        .chart(&over_time(
            outcome,
            "replicas, sequences",
            &[
                ("busy replicas", |window, length| Some(window.busy_seconds / length)),
                ("KV in use", |window, length| Some(window.kv_seconds / length)),
                ("waiting", |window, length| Some(window.waiting_seconds / length)),
            ],
        ));
    report
}

/// A curve over the windows of a replay; the second argument is the length of a window in seconds.
pub(crate) type Curve = (&'static str, fn(&SeriesWindow, f64) -> Option<f64>);

pub(crate) fn over_time(outcome: &Outcome, y_title: &str, curves: &[Curve]) -> String {
    let length = seconds(outcome.series.window);
    let windows = &outcome.series.windows;
    let every = windows.len().div_ceil(POINTS).max(1);
    let curve = |(name, value): &Curve| {
        let points = windows.chunks(every).enumerate().filter_map(|(index, chunk)| {
            let values: Vec<f64> = chunk.iter().filter_map(|window| value(window, length)).collect();
            let y = values.iter().sum::<f64>() / values.len().max(1) as f64;
            (!values.is_empty()).then(|| Point {
                x: (index * every) as f64 * length,
                y,
                label: String::new(),
            })
        });
        Series { name: (*name).into(), points: points.collect(), is_line: true }
    };
    plot("seconds", y_title, curves.iter().map(curve).collect())
}

fn distribution(outcome: &Outcome) -> String {
    let finished = || outcome.records.iter().filter(|record| record.fate == Fate::Finished);
    let curve = |name: &str, values: Vec<Picoseconds>| Series {
        name: name.into(),
        points: shares(values),
        is_line: true,
    };
    let curves = vec![
        curve("time to first token", finished().map(RequestRecord::ttft).collect()),
        curve("end to end", finished().map(RequestRecord::end_to_end).collect()),
    ];
    plot("seconds", "percent of requests", curves)
}

/// Values at equally spaced quantiles.
pub(crate) fn shares(mut values: Vec<Picoseconds>) -> Vec<Point> {
    values.sort_unstable();
    let Some(last) = values.len().checked_sub(1) else { return Vec::new() };
    let at = |step: usize| step * last / POINTS;
    let point = |step: usize| Point {
        x: seconds(values[at(step)]),
        y: step as f64 * 100.0 / POINTS as f64,
        label: String::new(),
    };
    (0..=POINTS).map(point).collect()
}

fn plot(x_title: &str, y_title: &str, series: Vec<Series>) -> String {
    let (x_title, y_title) = (x_title.into(), y_title.into());
    Plot { x_title, y_title, is_x_logarithmic: false, is_y_logarithmic: false, series }.svg()
}
