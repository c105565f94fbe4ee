//! Jobs that go on, and slowly: since when, by how much, and what grew with it.

use std::collections::BTreeMap;

use bedplate_logs::{Field, FormatKind, Recognizer};
use bedplate_units::grouped;
use bedplate_units::statistics::median;

use crate::case::{Case, NamedLog};
use crate::pace::{Pace, Slowdown};
use crate::series::{By, Point, Series, series};
use crate::verdict::{Cause, Culprit, JobVerdict, Observation, ProblemKind, Since, TimeLost};
use crate::weigh::weigh;

/// A slowdown smaller than this is no finding, however long it lasts.
const LEAST_EXCESS: f64 = 0.045;
/// A rank's own work is slow when it takes this much longer than its peers', in most steps.
const STRAGGLES: f64 = 0.05;
/// Ranks that may straggle; if more do, the reason is common to all.
const MOST_STRAGGLERS: f64 = 0.25;
/// Servers are judged by this many of their lines.
const SILENT_INTERVALS: usize = 3;

/// The longest series of each log, with the log.
pub(crate) fn leading<'a>(case: &'a Case, recognizer: &Recognizer) -> Vec<(&'a NamedLog, Series)> {
    let of = |log: &'a NamedLog| series(&log.log, recognizer).into_iter().map(move |series| (log, series));
    let mut found: Vec<(&NamedLog, Series)> = case.logs.iter().flat_map(of).collect();
    found.sort_by_key(|(_, series)| std::cmp::Reverse(series.points.len()));
    found
}

/// The pace of a series, with excused steps left out.
pub(crate) fn pace(series: &Series) -> Pace {
    let mut pace = Pace::new();
    for point in &series.points {
        if point.is_restart {
            pace.restart();
        }
        match point.is_excused {
            true => pace.pause(),
            false => pace.take(point.seconds),
        }
    }
    pace
}

/// The usual seconds of the job's steps, and how many there are.
pub fn usual_step(case: &Case, recognizer: &Recognizer) -> Option<(f64, u64)> {
    let all = leading(case, recognizer);
    let (_, series) = all.iter().find(|(_, series)| series.by != By::Rate)?;
    Some((pace(series).usual()?, series.points.len() as u64))
}

/// Slowdowns of the job, and whether it was slower than predicted all along.
pub(crate) fn judge(case: &Case, recognizer: &Recognizer) -> Vec<JobVerdict> {
    let all = leading(case, recognizer);
    let mut verdicts = Vec::new();
    if let Some((log, series)) = all.first() {
        let slowdowns = pace(series).slowdowns();
        for slow in slowdowns.iter().filter(|slow| slow.is_firm && slow.excess() >= LEAST_EXCESS) {
            verdicts.push(slowdown(log, series, slow, case));
        }
        verdicts.extend(against_prediction(log, series, case));
    }
    if let Some(straggler) = straggler(&all) {
        match verdicts.first_mut() {
            Some(verdict) => verdict.culprits.extend(straggler.culprits),
            None => verdicts.push(straggler),
        }
    }
    verdicts.extend(case.logs.iter().filter_map(|log| server(log, recognizer)));
    verdicts
}

fn slowdown(log: &NamedLog, series: &Series, slow: &Slowdown, case: &Case) -> JobVerdict {
    let (before, since) = split(&series.points, slow);
    let mut evidence = Vec::new();
    let first = since.first();
    evidence.push(Observation {
        what: format!(
            "median step of {} before and {} since, over {} and {} steps ({})",
            seconds(slow.before, series.by),
            seconds(slow.since, series.by),
            before.len(),
            since.len(),
            series.by.words(),
        ),
        source: log.place(first.map_or(0, |point| point.line)),
        speaks_for: None,
        weight: 0.0,
    });
    evidence.extend(grown_with_data(log, &before, &since));
    let weighed = weigh(&evidence);
    let mut verdict = JobVerdict::new(ProblemKind::SlowSince, weighed.cause, weighed.confidence);
    verdict.alternatives = weighed.alternatives;
    verdict.since = Since {
        step: first.map(|point| point.step),
        unix_seconds: first.and_then(|point| point.at).filter(|at| *at > 1e8),
        place: first.map(|point| log.place(point.line)),
    };
    let steps: f64 = match (since.first(), since.last()) {
        (Some(first), Some(last)) if last.step >= first.step => (last.step - first.step + 1) as f64,
        _ => since.len() as f64,
    };
    if series.by != By::Rate {
        let lost = (slow.since - slow.before) * steps;
        let rank_hours = case.ranks.map(|ranks| lost * f64::from(ranks) / 3600.0);
        verdict.cost = Some(TimeLost { seconds: lost, rank_hours, factor: slow.since / slow.before });
    } else {
        verdict.cost = Some(TimeLost { seconds: 0.0, rank_hours: None, factor: slow.since / slow.before });
    }
    if let Some(ended) = slow.ended {
        verdict.evidence.push(Observation {
            what: format!(
                "it was as fast as before again after {} steps",
                grouped(ended.saturating_sub(slow.onset))
            ),
            source: log.name.clone(),
            speaks_for: None,
            weight: 0.0,
        });
    }
    verdict.evidence.splice(0..0, evidence);
    verdict.next = vec![
        "look at what changed on the nodes then: clocks, throttling, XIDs, network errors, latency of mounts (`bedplate history`, docs/metrics.md)".to_owned(),
        "one printer's step times name no rank: report each rank's own work (docs/report.md), or print all ranks' timers".to_owned(),
    ];
    verdict
}

fn split(points: &[Point], slow: &Slowdown) -> (Vec<Point>, Vec<Point>) {
    let onset = slow.onset.saturating_sub(1) as usize;
    let end = slow.ended.map_or(points.len(), |ended| (ended as usize).min(points.len()));
    let good = |point: &&Point| !point.is_excused;
    let before = points[..onset.min(points.len())].iter().rev().filter(good).take(121).copied().collect();
    (before, points[onset.min(end)..end].iter().filter(good).copied().collect())
}

/// Waiting for data that grew as much as the step did.
fn grown_with_data(log: &NamedLog, before: &[Point], since: &[Point]) -> Vec<Observation> {
    let of = |points: &[Point], value: fn(&Point) -> Option<f64>| {
        median(&Vec::from_iter(points.iter().filter_map(value)))
    };
    if since.iter().all(|point| point.data.is_none()) {
        return Vec::new();
    }
    let (data_before, data_since) = (of(before, |point| point.data), of(since, |point| point.data));
    let grown = of(since, |point| Some(point.seconds)) - of(before, |point| Some(point.seconds));
    let share = (data_since - data_before) / grown.max(1e-9);
    let what = format!("waiting for data grew from {} to {} a step", time(data_before), time(data_since));
    let source = log.place(since[0].line);
    let evidence = |cause, weight| Observation {
        what: what.clone(),
        source: source.clone(),
        speaks_for: Some(cause),
        weight,
    };
    match share {
        share if share > 0.5 => vec![evidence(Cause::Storage, 1.2), evidence(Cause::Application, 0.5)],
        _ => Vec::new(),
    }
}

fn against_prediction(log: &NamedLog, series: &Series, case: &Case) -> Option<JobVerdict> {
    let expected = case.expected.as_ref().filter(|_| series.by != By::Rate)?;
    let usual = pace(series).usual()?;
    if usual <= expected.high {
        return None;
    }
    let mut verdict = JobVerdict::new(ProblemKind::SlowerThanPredicted, Cause::Unknown, 0.0);
    verdict.evidence.push(Observation {
        what: format!(
            "median step of {}, and {} to {} were predicted by {}",
            time(usual),
            time(expected.low),
            time(expected.high),
            expected.source
        ),
        source: log.name.clone(),
        speaks_for: None,
        weight: 0.0,
    });
    let steps = series.points.len() as f64;
    let lost = (usual - expected.seconds) * steps;
    let rank_hours = case.ranks.map(|ranks| lost * f64::from(ranks) / 3600.0);
    verdict.cost = Some(TimeLost { seconds: lost, rank_hours, factor: usual / expected.seconds });
    verdict.next = vec![
        "compare the parts of a step with the plan: `bedplate job show`, `bedplate plan train --explain`"
            .to_owned(),
    ];
    Some(verdict)
}

/// Ranks whose own steps are slower than their peers', where each rank prints its own.
fn straggler(all: &[(&NamedLog, Series)]) -> Option<JobVerdict> {
    let mut by_step: BTreeMap<u64, Vec<(u32, f64)>> = BTreeMap::new();
    let mut ranks: BTreeMap<u32, (usize, usize, f64)> = BTreeMap::new();
    for (_, series) in all {
        let Some(rank) = series.rank else { continue };
        ranks.entry(rank).or_default();
        for point in series.points.iter().filter(|point| !point.is_excused) {
            by_step.entry(point.step).or_default().push((rank, point.seconds));
        }
    }
    if ranks.len() < 4 {
        return None;
    }
    let all_ranks = ranks.len();
    for steps in by_step.values().filter(|steps| steps.len() * 2 > all_ranks) {
        let usual = median(&Vec::from_iter(steps.iter().map(|(_, seconds)| *seconds)));
        for (rank, seconds) in steps {
            let (slow, seen, excess) = ranks.entry(*rank).or_default();
            let over = seconds / usual - 1.0;
            *seen += 1;
            *slow += usize::from(over > STRAGGLES);
            *excess += over;
        }
    }
    let slow: Vec<(u32, f64)> = ranks
        .iter()
        .filter(|(_, (slow, seen, _))| *seen >= 10 && *slow * 10 >= *seen * 8)
        .map(|(rank, (_, seen, excess))| (*rank, excess / *seen as f64))
        .collect();
    if slow.is_empty() || slow.len() as f64 > MOST_STRAGGLERS * ranks.len() as f64 {
        return None;
    }
    let mut verdict = JobVerdict::new(ProblemKind::SlowSince, Cause::Unknown, 0.0);
    verdict.culprits = slow.iter().map(|(rank, _)| Culprit::Rank(*rank)).collect();
    verdict.culprit_confidence = 0.9;
    for (rank, excess) in &slow {
        verdict.evidence.push(Observation {
            what: format!(
                "rank {rank} takes {:.0} % longer than the median of {} ranks",
                100.0 * excess,
                ranks.len()
            ),
            source: "times by rank".to_owned(),
            speaks_for: None,
            weight: 0.0,
        });
    }
    verdict.next = vec![
        "look at that rank's node: clocks, throttling, other processes (`bedplate health check` there)"
            .to_owned(),
    ];
    Some(verdict)
}

/// A server that stands still with requests, or has too little cache for its load.
fn server(log: &NamedLog, recognizer: &Recognizer) -> Option<JobVerdict> {
    let is_serving = |format: usize| recognizer.formats()[format].kind == FormatKind::Serving;
    let lines: Vec<_> = log
        .log
        .steps
        .iter()
        .filter(|step| is_serving(step.format) && step.value(Field::Running).is_some())
        .collect();
    let last = lines.get(lines.len().checked_sub(SILENT_INTERVALS)?..)?;
    let busy = |step: &&bedplate_logs::StepLine| {
        step.value(Field::Running).unwrap_or(0.0) + step.value(Field::Waiting).unwrap_or(0.0) > 0.0
    };
    let stands = last.iter().all(|step| {
        busy(step)
            && step.value(Field::Generation) == Some(0.0)
            && step.value(Field::Prompt).unwrap_or(0.0) == 0.0
    });
    let full = last.iter().all(|step| {
        step.value(Field::Waiting).unwrap_or(0.0) > 0.0 && step.value(Field::Cache).unwrap_or(0.0) > 0.95
    });
    let first = last.first()?;
    let evidence =
        |what: String| Observation { what, source: log.place(first.line), speaks_for: None, weight: 0.0 };
    if stands {
        let mut verdict = JobVerdict::new(ProblemKind::Stall, Cause::Unknown, 0.0);
        verdict.since.place = Some(log.place(first.line));
        verdict
            .evidence
            .push(evidence(format!("{SILENT_INTERVALS} intervals with requests and without a token")));
        verdict.next =
            vec!["look at the stacks of the server's workers, for example with py-spy dump".to_owned()];
        return Some(verdict);
    }
    if full {
        let mut verdict = JobVerdict::new(ProblemKind::SlowerThanPredicted, Cause::Application, 0.8);
        verdict.is_firm = false;
        verdict.since.place = Some(log.place(first.line));
        verdict.evidence.push(evidence(
            "requests wait while the key-value cache is full: more load than this server's memory allows"
                .to_owned(),
        ));
        verdict.next = vec!["more replicas, a shorter context, or keys and values in fewer bits".to_owned()];
        return Some(verdict);
    }
    None
}

fn seconds(value: f64, by: By) -> String {
    match by {
        By::Rate => format!("{:.4} of the work over the rate", value),
        _ => time(value),
    }
}

pub(crate) fn time(seconds: f64) -> String {
    bedplate_units::Seconds::new(seconds).to_string()
}
