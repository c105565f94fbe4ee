//! A plan for serving as an HTML page: the front, and the latencies of replayed requests.

use bedplate_deploy::{FrontPoint, Plan};
use bedplate_replay::requests::{Picoseconds, RequestRecord, seconds};
use bedplate_terminal::html::{Plot, Point, Report, Series};

use super::{Found, show};
use crate::replayed::page::{over_time, shares};
use crate::replayed::show as replayed;

pub(super) fn page(found: &Found<'_>) -> Report {
    let mut report = Report::new("Plan for serving", &found.title());
    let shown = &found.answer.best.shown;
    report
        .section("The answer", "The cheapest deployment that met the objectives in a replay.")
        .facts(show::facts(found).rows())
        .table(&replayed::latencies(&shown.outcome).cells());
    if let Some(outlook) = &found.outlook {
        report
            .section("What to expect", &show::expected_title(found))
            .table(&show::expected(outlook).cells());
    }
    report
        .section(
            "Tokens per second per user against per GPU",
            "Each point is a deployment under a constant number of users that no other dominates. \
             The large load of one GPU and the fast answers of a user exclude each other.",
        )
        .chart(&front_chart(&found.answer.front, chosen(found)));
    let limits = show::limits(&found.need.objectives);
    let asked = if limits.is_empty() { String::new() } else { format!(" Objectives: {limits}.") };
    report
        .section("Time to first token", &format!("Share of requests that waited no longer.{asked}"))
        .chart(&distribution(found, RequestRecord::ttft, found.need.objectives.ttft));
    report
        .section("Time between tokens", "Share of requests whose mean gap was no longer.")
        .chart(&distribution(found, |record| record.itl().unwrap_or(0), found.need.objectives.itl));
    report
        .section("Time to first token over the replay", "The mean of the first tokens at that time.")
        .chart(&over_time(
            &shown.outcome,
            "seconds",
            &[("mean", |window, _| replayed::mean(window.ttft_seconds, window.first_tokens))],
        ));
    report.section("Tokens", "Prompt tokens computed and tokens generated.").chart(&over_time(
        &shown.outcome,
        "tokens per second",
        &[
            ("prompt", |window, length| Some(window.prompt_tokens / length)),
            ("generated", |window, length| Some(window.output_tokens / length)),
        ],
    ));
    report.section("What holds", &show::account(found)).table(&show::others(found).cells());
    if !found.efforts.is_empty() {
        report
            .section("What thinking longer costs", "On this deployment, with all slots taken.")
            .table(&show::efforts(&found.efforts).cells());
    }
    report
        .section("The front as a table", "")
        .table(&show::front(&found.answer.front, found.supplies).cells());
    if let Some(explanation) = &found.explanation {
        report
            .section("Why not", "The verdicts on the deployments in question.")
            .facts(show::explained(explanation, found.supplies).rows());
    }
    if let Some(launch) = &found.launch {
        report.section("How to start it", "").listing(launch);
    }
    report
}

/// The operating point of the chosen deployment at the given rate.
fn chosen(found: &Found<'_>) -> Point {
    let best = &found.answer.best;
    let outcome = &best.shown.outcome;
    Point {
        x: 1.0 / seconds(outcome.itl.mean).max(1e-9),
        y: outcome.output_tokens_per_second() / f64::from(best.plan.gpus()),
        label: String::new(),
    }
}

fn front_chart(front: &[FrontPoint], chosen: Point) -> String {
    let is_split = |point: &&FrontPoint| matches!(point.plan, Plan::Disaggregated { .. });
    let drawn = |name: &str, wants_split: bool| {
        let points = front.iter().enumerate().filter(|(_, point)| is_split(point) == wants_split);
        let points = points.map(|(index, point)| Point {
            x: point.per_user,
            y: point.per_gpu,
            // There is room to the left of the first label; labels inside would overlap.
            label: if index + 1 == front.len() { point.plan.to_string() } else { String::new() },
        });
        Series { name: name.into(), points: points.collect(), is_line: false }
    };
    let chosen = Series { name: "chosen, at the rate".into(), points: vec![chosen], is_line: false };
    let series = [drawn("one pool", false), drawn("two pools", true), chosen];
    Plot {
        x_title: "tokens per second for each user".into(),
        y_title: "tokens per second from each GPU".into(),
        is_x_logarithmic: false,
        is_y_logarithmic: false,
        series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
    }
    .svg()
}

/// A distribution over the judged requests, and the limit as a line where there is one.
fn distribution(
    found: &Found<'_>,
    value: fn(&RequestRecord) -> Picoseconds,
    limit: Option<Picoseconds>,
) -> String {
    let values: Vec<Picoseconds> = found.answer.best.shown.judged().map(value).collect();
    let mut points = shares(values);
    for point in &mut points {
        point.x *= 1000.0;
    }
    let mut series = vec![Series { name: "requests".into(), points, is_line: true }];
    if let Some(limit) = limit {
        let point = |y: f64| Point { x: seconds(limit) * 1000.0, y, label: String::new() };
        series.push(Series { name: "limit".into(), points: vec![point(0.0), point(100.0)], is_line: true });
    }
    Plot {
        x_title: "milliseconds".into(),
        y_title: "percent of requests".into(),
        is_x_logarithmic: false,
        is_y_logarithmic: false,
        series,
    }
    .svg()
}
