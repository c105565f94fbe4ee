//! The judgement: every kind of evidence in turn, and one list of verdicts.

use bedplate_logs::Recognizer;
use serde::Serialize;

use crate::advice::Lever;
use crate::bill::Bill;
use crate::case::Case;
use crate::record::Record;
use crate::slow::{leading, pace};
use crate::stack::ProcessStack;
use crate::verdict::{Cause, Culprit, JobVerdict, Observation, ProblemKind};
use crate::waits::{Held, Waits, waits};
use crate::{errors, slow, stall};

/// What a case came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diagnosis {
    /// The most important first; none for a healthy job.
    pub verdicts: Vec<JobVerdict>,
    pub observed: Vec<Observed>,
    /// What could not be used, and what would help.
    pub notes: Vec<String>,
    /// What would make it faster, where it is healthy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub levers: Vec<Lever>,
    /// What the first verdict costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bill: Option<Bill>,
}

/// What was recognised in one log.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Observed {
    pub log: String,
    /// The trainer's or server's format.
    pub format: String,
    pub rank: Option<u32>,
    pub steps: usize,
    pub last_step: u64,
    /// Median seconds of a step, where the log has times.
    pub usual_s: Option<f64>,
    pub by: &'static str,
}

/// Series that are listed at most.
const MOST_LISTED: usize = 64;

/// Judges a case.
pub fn diagnose(case: &Case, recognizer: &Recognizer) -> Diagnosis {
    let mut verdicts: Vec<JobVerdict> = Vec::new();
    let records = records(case, recognizer);
    let waits = (!records.is_empty()).then(|| waits(&records, case.ranks));
    match (errors::judge(case, recognizer), waits) {
        (Some(mut verdict), Some(waits)) => {
            take_waits(&mut verdict, &waits);
            verdicts.push(verdict);
        }
        (Some(verdict), None) => verdicts.push(verdict),
        (None, Some(waits)) if !waits.holders.is_empty() || waits.all_inside.is_some() => {
            let mut verdict = JobVerdict::new(ProblemKind::Stall, Cause::Unknown, 0.0);
            take_waits(&mut verdict, &waits);
            verdicts.push(verdict);
        }
        (None, _) => verdicts.extend(crate::stall::of_stacks(&case.stacks)),
    }
    if let Some(verdict) = verdicts.first_mut().filter(|verdict| verdict.kind == ProblemKind::Stall) {
        take_stacks(verdict, &case.stacks);
    }
    if verdicts.is_empty() {
        verdicts.extend(stall::judge(case, recognizer));
    }
    verdicts.extend(slow::judge(case, recognizer));
    let observed = observed(case, recognizer);
    let notes = notes(case, &observed, &verdicts);
    Diagnosis { verdicts, observed, notes, levers: Vec::new(), bill: None }
}

/// All records of the case: dumps, and what ranks said of themselves. A dump knows more calls, a rank its stack.
fn records(case: &Case, recognizer: &Recognizer) -> Vec<Record> {
    let mut records = case.records.clone();
    for said in crate::stalled::records(case, recognizer) {
        match records.iter_mut().find(|record| record.rank == said.rank && !record.calls.is_empty()) {
            Some(record) => record.stack = said.stack,
            None => records.push(said),
        }
    }
    for stack in &case.stacks {
        if let Some(record) = records.iter_mut().find(|record| Some(record.rank) == stack.rank) {
            record.stack = stack.own_frames();
        }
    }
    records
}

/// What the ranks that are blamed for a stall are doing.
fn take_stacks(verdict: &mut JobVerdict, stacks: &[ProcessStack]) {
    let is_blamed = |stack: &&ProcessStack| {
        stack.rank.is_some_and(|rank| verdict.culprits.contains(&Culprit::Rank(rank)))
    };
    let evidence: Vec<Observation> =
        stacks.iter().filter(is_blamed).take(4).flat_map(ProcessStack::evidence).collect();
    if !evidence.is_empty() {
        verdict.evidence.splice(0..0, evidence);
        let weighed = crate::weigh::weigh(&verdict.evidence);
        (verdict.cause, verdict.confidence, verdict.alternatives) =
            (weighed.cause, weighed.confidence, weighed.alternatives);
    }
}

/// Flight records name the ranks that hold up others, whatever the logs say.
fn take_waits(verdict: &mut JobVerdict, waits: &Waits) {
    for holder in waits.holders.iter().take(8) {
        let frames = match &holder.frames[..] {
            [] => String::new(),
            frames => format!(", in {}", frames[..frames.len().min(3)].join(" < ")),
        };
        let (words, cause, weight) = match holder.why {
            Held::HostStuck => ("has not made the call that others wait in", Cause::Application, 0.9),
            Held::NoRecord => ("left no record: its process is gone or stuck", Cause::Unknown, 0.0),
            Held::DeviceStuck => {
                ("is ahead of its peers and its device completes nothing", Cause::Hardware, 1.6)
            }
            Held::OtherCall => ("made another call than its peers", Cause::Application, 2.5),
        };
        let call =
            if holder.collective.is_empty() { String::new() } else { format!(" ({})", holder.collective) };
        verdict.evidence.insert(
            0,
            Observation {
                what: format!(
                    "rank {} {words}{call}{frames}; {} of {} ranks wait",
                    holder.rank, holder.waiting, waits.ranks
                ),
                source: "flight records".to_owned(),
                speaks_for: (cause != Cause::Unknown).then_some(cause),
                weight,
            },
        );
    }
    if let Some(call) = &waits.all_inside {
        let what = format!("all ranks are in {call}, and it does not end: a device or the network");
        let source = "flight records".to_owned();
        verdict
            .evidence
            .insert(0, Observation { what, source, speaks_for: Some(Cause::Network), weight: 0.3 });
        verdict.culprits.push(Culprit::Collective(call.clone()));
    }
    if !waits.holders.is_empty() {
        verdict.culprits = waits.holders.iter().map(|holder| Culprit::Rank(holder.rank)).collect();
        verdict.culprit_confidence = 0.9;
        verdict.kind = ProblemKind::Stall;
    }
    let weighed = crate::weigh::weigh(&verdict.evidence);
    (verdict.cause, verdict.confidence, verdict.alternatives) =
        (weighed.cause, weighed.confidence, weighed.alternatives);
    if verdict.next.is_empty() {
        verdict.next =
            vec!["read the log, the stack and the node's kernel log of the ranks that are named".to_owned()];
    }
}

fn observed(case: &Case, recognizer: &Recognizer) -> Vec<Observed> {
    let all = leading(case, recognizer);
    let of = |(log, series): &(&crate::case::NamedLog, crate::series::Series)| Observed {
        log: log.name.clone(),
        format: recognizer.formats()[series.format].name.clone(),
        rank: series.rank,
        steps: series.points.len(),
        last_step: series.points.last().map_or(0, |point| point.step),
        usual_s: pace(series).usual().filter(|_| series.by != crate::series::By::Rate),
        by: series.by.words(),
    };
    all.iter().take(MOST_LISTED).map(of).collect()
}

fn notes(case: &Case, observed: &[Observed], verdicts: &[JobVerdict]) -> Vec<String> {
    let mut notes = Vec::new();
    for log in &case.logs {
        if log.log.is_binary {
            notes.push(format!("{} is no text and was read as far as it is", log.name));
        }
        if log.log.dropped > 0 {
            notes.push(format!("{} has {} lines more than are kept", log.name, log.log.dropped));
        }
    }
    if case.logs.is_empty() && case.records.is_empty() {
        notes.push("there is nothing to judge: give logs, a folder of them, or flight records".to_owned());
    } else if observed.is_empty() && verdicts.is_empty() {
        notes.push("no line of a known trainer or server was found; `bedplate watch --formats` lists them, and docs/watch.md says how to add one".to_owned());
    }
    notes
}
