//! Jobs that should go on and do not.

use bedplate_logs::{PhaseKind, Recognizer, StampClock};

use crate::case::Case;
use crate::slow::{leading, pace, time};
use crate::stack::{Doing, ProcessStack};
use crate::verdict::{Cause, Culprit, JobVerdict, Observation, ProblemKind, Since};

/// No step for this many usual ones, and at least these seconds, is a stall.
const STEPS: f64 = 10.0;
const LEAST_S: f64 = 30.0;
/// In phases that are slow for a reason a job may be silent this many times as long.
const IN_PHASES: f64 = 5.0;

/// Judges the silence at the end of a running job's logs.
pub(crate) fn judge(case: &Case, recognizer: &Recognizer) -> Option<JobVerdict> {
    let now = case.now?;
    let all = leading(case, recognizer);
    let (log, series) = all.first()?;
    let last = log.log.last_stamp.filter(|stamp| stamp.clock != StampClock::Boot)?;
    let ended = log
        .log
        .phases
        .iter()
        .any(|mark| mark.kind == PhaseKind::End && mark.after_steps >= log.log.steps.len());
    let silent = now - last.seconds;
    let usual = pace(series).usual()?;
    let interval = interval(&series.points.iter().map(|point| point.step).collect::<Vec<u64>>());
    let in_phase = log.log.phases.last().is_some_and(|mark| mark.after_steps >= log.log.steps.len());
    let factor = if in_phase { IN_PHASES } else { 1.0 };
    let allowed = factor * (STEPS * usual * interval).max(LEAST_S);
    if ended || silent <= allowed {
        return None;
    }
    let step = series.points.last().map(|point| point.step);
    let mut verdict = JobVerdict::new(ProblemKind::Stall, Cause::Unknown, 0.0);
    verdict.since = Since { step, unix_seconds: Some(last.seconds), place: Some(log.place(log.log.lines)) };
    verdict.evidence.push(Observation {
        what: format!("no line for {}, and a step takes {}", time(silent), time(usual)),
        source: log.place(log.log.lines),
        speaks_for: None,
        weight: 0.0,
    });
    verdict.next = vec![
        "see which rank has not entered which collective: dumps of PyTorch's flight recorder, NCCL's RAS on port 28028".to_owned(),
        "look at the stacks of all ranks, for example with py-spy dump".to_owned(),
    ];
    Some(verdict)
}

/// What stacks alone say: most ranks wait in the same place, and the few that are elsewhere are waited for.
pub(crate) fn of_stacks(stacks: &[ProcessStack]) -> Option<JobVerdict> {
    let known: Vec<&ProcessStack> = stacks.iter().filter(|stack| !stack.frames.is_empty()).collect();
    let waiting = known.iter().filter(|stack| stack.doing() == Doing::Waiting).count();
    let elsewhere: Vec<&&ProcessStack> =
        known.iter().filter(|stack| stack.doing() != Doing::Waiting).collect();
    if waiting == 0 || elsewhere.is_empty() || elsewhere.len() > waiting {
        return None;
    }
    let mut verdict = JobVerdict::new(ProblemKind::Stall, Cause::Unknown, 0.0);
    verdict.culprits = elsewhere.iter().filter_map(|stack| stack.rank.map(Culprit::Rank)).collect();
    verdict.culprit_confidence = 0.8;
    verdict.evidence.push(Observation {
        what: format!("{waiting} ranks wait in a collective, {} do something else", elsewhere.len()),
        source: "stacks".to_owned(),
        speaks_for: None,
        weight: 0.0,
    });
    Some(verdict)
}

/// Steps between two lines.
fn interval(steps: &[u64]) -> f64 {
    let mut gaps: Vec<u64> =
        steps.windows(2).filter_map(|pair| pair[1].checked_sub(pair[0])).filter(|gap| *gap > 0).collect();
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).map_or(1.0, |gap| *gap as f64)
}
