//! The replay as an HTML page: figures, utilisation and queue over time, waits, the largest jobs.

use bedplate_gangs::Time;
use bedplate_replay::jobs::{Outcome, ReplayPolicy, SeriesSample};
use bedplate_terminal::html::{Plot, Point, Report, Series, bars};

use super::comparison::Shown;
use super::gantt::gantt;

pub(super) fn page(comparison: &Shown<'_>, outcomes: &[(ReplayPolicy, Outcome)]) -> Report {
    let mut report = Report::new("Replay of jobs", &comparison.title());
    report
        .section(
            "Policies side by side",
            "Slowdown is the mean bounded slowdown. docs/replay.md defines the figures.",
        )
        .table(&comparison.table().cells())
        .section("By size", "Waits from submission to the first start, by requested GPUs.")
        .table(&comparison.by_size().cells())
        .section("Utilisation over time", "Share of the GPUs held, in percent.")
        .chart(&over_time(outcomes, "percent", |sample| sample.utilisation * 100.0))
        .section("Queue length", "Gangs that wait for resources.")
        .chart(&over_time(outcomes, "gangs", |sample| sample.waiting as f64))
        .section("Fragmentation", "Share of the free GPUs on nodes partly in use, in percent.")
        .chart(&over_time(outcomes, "percent", |sample| sample.fragmentation.unwrap_or(0.0) * 100.0))
        .section(
            "Waits",
            "Percentage of jobs that waited at most this long. Waits below a minute count as one.",
        )
        .chart(&wait_curve(comparison, outcomes));
    for (policy, outcome) in outcomes {
        let heading = format!("The largest jobs under {}", policy.name);
        report
            .section(&heading, "From submission on, in hours: outlines are waits, blocks are runs.")
            .chart(&bars(&gantt(comparison.trace, &outcome.largest), None));
    }
    report
}

fn over_time(
    outcomes: &[(ReplayPolicy, Outcome)],
    y_title: &str,
    figure: impl Fn(&SeriesSample) -> f64,
) -> String {
    let point =
        |sample: &SeriesSample| point(sample.at.since(Time::ZERO).as_seconds() / 3600.0, figure(sample));
    let line = |(policy, outcome): &(ReplayPolicy, Outcome)| Series {
        name: policy.name.into(),
        points: outcome.series.samples.iter().map(point).collect(),
        is_line: true,
    };
    Plot {
        x_title: "hours since the first submission".into(),
        y_title: y_title.into(),
        is_x_logarithmic: false,
        is_y_logarithmic: false,
        series: outcomes.iter().map(line).collect(),
    }
    .svg()
}

/// Steps of the cumulative curve.
const STEPS: usize = 200;

fn wait_curve(comparison: &Shown<'_>, outcomes: &[(ReplayPolicy, Outcome)]) -> String {
    let line = |(policy, outcome): &(ReplayPolicy, Outcome)| {
        let waits = outcome.sorted_waits(comparison.trace);
        let at = |step: usize| {
            let rank = (waits.len() * step).div_ceil(STEPS).clamp(1, waits.len());
            point((waits[rank - 1].as_seconds() / 60.0).max(1.0), step as f64 * 100.0 / STEPS as f64)
        };
        let points = if waits.is_empty() { Vec::new() } else { (0..=STEPS).map(at).collect() };
        Series { name: policy.name.into(), points, is_line: true }
    };
    Plot {
        x_title: "minutes".into(),
        y_title: "percent of the jobs".into(),
        is_x_logarithmic: true,
        is_y_logarithmic: false,
        series: outcomes.iter().map(line).collect(),
    }
    .svg()
}

fn point(x: f64, y: f64) -> Point {
    Point { x, y, label: String::new() }
}
