//! Errors in logs: which line began it, which only follow, and whom they name.

use std::collections::{BTreeMap, BTreeSet};

use bedplate_logs::{PhaseKind, Recognizer, Role, Sign, Signature, Where};

use crate::case::{Case, NamedLog};
use crate::verdict::{Cause, Culprit, JobVerdict, Observation, ProblemKind, Since};
use crate::weigh::{logit, weigh};

/// Errors this close to the first one may be its equals; later ones mostly follow from it.
const TOGETHER_S: f64 = 5.0;
const LATER_S: f64 = 60.0;
/// What the kernel says of its own machine counts more than what a program concludes.
const OF_KERNEL: f64 = 1.5;
/// So many steps behind an error show that it ended nothing.
const STEPS_AFTER: usize = 5;
/// A mild error weighs so much of a serious one.
const OF_MILD: f64 = 0.3;
/// Lines that say a call timed out or a process does not go on.
const STALLS: [&str; 10] = [
    "nccl-watchdog-timeout",
    "nccl-work-status",
    "nccl-last-enqueued-old",
    "nccl-heartbeat-stuck",
    "store-timeout",
    "hung-task",
    "nfs-not-responding",
    "sglang-watchdog",
    "trtllm-hang",
    "vllm-shm-broadcast",
];
const NUMERICS: [&str; 4] = ["nan-loss", "loss-scale-min", "fp16-overflow", "numbers-went-wrong"];
/// XIDs that programs cause, and those that follow from others.
const XIDS_OF_PROGRAMS: [&str; 2] = ["13", "31"];
const XIDS_THAT_FOLLOW: [&str; 2] = ["43", "45"];
/// Evidence that is shown at most.
const MOST_SHOWN: usize = 12;

/// One error line with its place in the order of all.
struct Trouble<'a> {
    log: &'a NamedLog,
    sign: &'a Sign,
    signature: &'a Signature,
    /// Seconds, where the log has times; lines without one have that of the line before.
    at: Option<f64>,
    /// It ended nothing: its writer went on, or calls it a warning itself.
    is_mild: bool,
}

impl Trouble<'_> {
    fn is(&self, names: &[&str]) -> bool {
        names.contains(&self.signature.name.as_str())
    }

    fn rank(&self) -> Option<u32> {
        self.log.rank(self.sign)
    }
}

/// What the errors of all logs say; `None` when there are none that mean anything alone.
pub(crate) fn judge(case: &Case, recognizer: &Recognizer) -> Option<JobVerdict> {
    let troubles = in_order(case, recognizer);
    let serious = |each: &&Trouble<'_>| match each.signature.role {
        Role::Root | Role::Either => true,
        Role::Cascade => true,
        Role::Hint => each.is(&["elastic-failed", "elastic-root-cause"]),
    };
    let first_serious = troubles.iter().find(serious)?;
    let mut evidence = by_signature(&troubles);
    let world = world(case, &troubles);
    let (more, behind) = collectives(&troubles, world);
    evidence.extend(more);
    evidence.extend(waited_for(&troubles));
    let weighed = weigh(&evidence);
    let has = |names: &[&str]| troubles.iter().any(|each| each.is(names));
    let is_root = |each: &&Trouble<'_>| {
        matches!(each.signature.role, Role::Root | Role::Either) && counts(each, &troubles)
    };
    let first_root =
        troubles.iter().find(|each| is_root(each) && !each.is_mild).or_else(|| troubles.iter().find(is_root));
    let is_numeric = first_root.is_some_and(|root| root.is(&NUMERICS));
    let kind = match () {
        () if is_numeric => ProblemKind::Diverging,
        () if has(&STALLS) && first_root.is_none_or(|root| root.is(&STALLS)) => ProblemKind::Stall,
        () => ProblemKind::Crashed,
    };
    let mut verdict = JobVerdict::new(kind, weighed.cause, weighed.confidence);
    verdict.alternatives = weighed.alternatives;
    let blamed = first_root.filter(|root| {
        Cause::of_class(&root.signature.class) == weighed.cause || weighed.cause == Cause::Unknown
    });
    let leading = troubles.iter().find(|each| {
        Cause::of_class(&each.signature.class) == weighed.cause && each.signature.role != Role::Cascade
    });
    let begun = blamed.or(leading).unwrap_or(first_serious);
    (verdict.culprits, verdict.culprit_confidence) = match behind {
        Some(ranks) if first_root.is_none() => (ranks.into_iter().map(Culprit::Rank).collect(), 0.6),
        _ => culprits(begun, &troubles, world),
    };
    verdict.since = Since {
        step: last_step(begun),
        unix_seconds: begun.sign.stamp.map(|stamp| stamp.seconds),
        place: Some(begun.log.place(begun.sign.line)),
    };
    evidence.sort_by(|one, other| {
        let of_cause = |each: &Observation| each.speaks_for == Some(weighed.cause);
        of_cause(other).cmp(&of_cause(one)).then(other.weight.total_cmp(&one.weight))
    });
    evidence.truncate(MOST_SHOWN);
    verdict.evidence = evidence;
    verdict.next = next_steps(begun, &troubles, weighed.cause);
    // A single overflow or NaN is common and passes; so does what only warns.
    verdict.is_firm = match kind {
        ProblemKind::Diverging => {
            let ends = |each: &Trouble<'_>| {
                each.is(&["numbers-went-wrong", "loss-scale-min"])
                    && each.sign.after_steps >= each.log.log.steps.len()
            };
            troubles.iter().filter(|each| each.is(&NUMERICS)).count() >= 3 || troubles.iter().any(ends)
        }
        _ => troubles.iter().any(|each| serious(&each) && !each.is_mild),
    };
    Some(verdict)
}

/// All error lines, the earliest first where times tell.
fn in_order<'a>(case: &'a Case, recognizer: &'a Recognizer) -> Vec<Trouble<'a>> {
    let mut troubles: Vec<Trouble<'a>> = Vec::new();
    for log in &case.logs {
        let mut at = None;
        for sign in &log.log.signs {
            at = sign.stamp.map(|stamp| stamp.seconds).or(at);
            let step = || log.log.steps.get(sign.after_steps.checked_sub(1)?)?.stamp;
            let time = at.or_else(|| step().map(|stamp| stamp.seconds));
            troubles.push(Trouble {
                log,
                sign,
                signature: &recognizer.signatures()[sign.signature],
                at: time,
                is_mild: is_mild(log, sign, &recognizer.signatures()[sign.signature]),
            });
        }
    }
    let all_timed = troubles.iter().all(|each| each.at.is_some());
    if all_timed {
        troubles.sort_by(|one, other| one.at.unwrap_or(0.0).total_cmp(&other.at.unwrap_or(0.0)));
    }
    troubles
}

/// Whether the job went on behind a line, or the line itself is a warning. The kernel's words and numbers that went wrong
/// are serious although steps follow.
fn is_mild(log: &NamedLog, sign: &Sign, signature: &Signature) -> bool {
    if signature.wherever != Where::Program || NUMERICS.contains(&signature.name.as_str()) {
        return false;
    }
    let begins_anew = |mark: &bedplate_logs::PhaseMark| {
        mark.line > sign.line && matches!(mark.kind, PhaseKind::Start | PhaseKind::Load)
    };
    let (before, after) = log.log.steps.split_at(sign.after_steps.min(log.log.steps.len()));
    let goes_on = after.len() >= STEPS_AFTER
        && before.last().zip(after.first()).is_none_or(|(before, after)| before.step <= after.step)
        && !log.log.phases.iter().any(begins_anew);
    goes_on || is_warning(&sign.text)
}

fn is_warning(text: &str) -> bool {
    const MARKS: [&str; 3] = ["WARNING", "Warning: ", "[WARN]"];
    let first = text.get(..text.len().min(160)).unwrap_or(text);
    first.starts_with("[W") || MARKS.iter().any(|mark| first.contains(mark))
}

/// Whether a line says something about the cause at all.
fn counts(trouble: &Trouble<'_>, all: &[Trouble<'_>]) -> bool {
    let code = trouble.sign.captured("xid").unwrap_or("");
    match trouble.signature.name.as_str() {
        "xid" => !XIDS_OF_PROGRAMS.contains(&code) && !XIDS_THAT_FOLLOW.contains(&code),
        // Killed, and nobody says by whom.
        "sigkill" | "loader-killed" => {
            all.iter().any(|each| each.is(&["oom-kill", "slurm-oom", "k8s-oom"]))
                || trouble.is(&["loader-killed"])
        }
        "time-limit" => false,
        _ => true,
    }
}

/// Each signature once, by its earliest line.
fn by_signature(troubles: &[Trouble<'_>]) -> Vec<Observation> {
    let mut times: BTreeMap<&str, u64> = BTreeMap::new();
    for trouble in troubles {
        *times.entry(&trouble.signature.name).or_default() += 1;
    }
    let begins = |each: &&Trouble<'_>| {
        matches!(each.signature.role, Role::Root | Role::Either) && counts(each, troubles)
    };
    let first = troubles.iter().find(begins);
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut found = Vec::new();
    for trouble in troubles {
        if !seen.insert(&trouble.signature.name) {
            continue;
        }
        let cause = Cause::of_class(&trouble.signature.class);
        let is_counted = counts(trouble, troubles) && cause != Cause::Unknown;
        let weight = if is_counted { weight(trouble, first) } else { 0.0 };
        let times = times[trouble.signature.name.as_str()];
        let often = if times > 1 { format!(" ({times} lines)") } else { String::new() };
        found.push(Observation {
            what: format!("{}: {}{often}", trouble.signature.name, shortened(&trouble.sign.text)),
            source: trouble.log.place(trouble.sign.line),
            speaks_for: is_counted.then_some(cause),
            weight,
        });
    }
    found
}

fn weight(trouble: &Trouble<'_>, first: Option<&Trouble<'_>>) -> f64 {
    let own = logit(trouble.signature.prior);
    let of_role = match trouble.signature.role {
        Role::Root => own.max(0.3),
        Role::Either => 0.7 * own.max(0.2),
        Role::Hint => 0.5 * own.max(0.1),
        Role::Cascade => return 0.0,
    };
    let of_source = if trouble.signature.wherever == Where::Kernel { OF_KERNEL } else { 1.0 };
    let distance = first.map(|first| match (first.at, trouble.at) {
        (Some(first), Some(own)) => own - first,
        // Without times the order of lines stands for them.
        _ if std::ptr::eq(first, trouble) => 0.0,
        _ => TOGETHER_S + 1.0,
    });
    let of_order = match distance {
        Some(distance) if distance <= 0.0 => 1.5,
        Some(distance) if distance <= TOGETHER_S => 1.2,
        Some(distance) if distance <= LATER_S => 0.8,
        Some(_) => 0.5,
        None => 1.0,
    };
    of_role * of_source * of_order * if trouble.is_mild { OF_MILD } else { 1.0 }
}

/// The ranks of the job: told, or as many as the logs name.
fn world(case: &Case, troubles: &[Trouble<'_>]) -> Option<u32> {
    let of_logs = case.logs.iter().flat_map(|log| log.log.origins.iter().filter_map(|origin| origin.rank));
    let of_signs = troubles.iter().filter_map(Trouble::rank);
    case.ranks.or_else(|| of_logs.chain(of_signs).max().map(|rank| rank + 1))
}

/// What timeouts of collectives tell together: who did not print them, who enqueued least, whether calls differ.
fn collectives(troubles: &[Trouble<'_>], world: Option<u32>) -> (Vec<Observation>, Option<Vec<u32>>) {
    let mut evidence = Vec::new();
    let watchdogs: Vec<&Trouble<'_>> =
        troubles.iter().filter(|each| each.is(&["nccl-watchdog-timeout"])).collect();
    let calls: BTreeSet<(&str, &str)> = watchdogs
        .iter()
        .filter_map(|each| Some((each.sign.captured("seq")?, each.sign.captured("op")?)))
        .collect();
    let operations: BTreeSet<&str> = calls.iter().map(|(_, operation)| *operation).collect();
    if let Some(first) = watchdogs.first()
        && watchdogs.len() > 1
        && operations.len() > 1
    {
        evidence.push(Observation {
            what: format!("ranks wait in different calls: {}", Vec::from_iter(operations).join(", ")),
            source: first.log.place(first.sign.line),
            speaks_for: Some(Cause::Application),
            weight: 0.9,
        });
    }
    let mut enqueued: BTreeMap<u32, i64> = BTreeMap::new();
    for trouble in troubles.iter().filter(|each| each.is(&["nccl-work-status", "nccl-last-enqueued-old"])) {
        if let (Some(rank), Some(count)) =
            (trouble.rank(), trouble.sign.captured("enq").and_then(|count| count.parse().ok()))
        {
            enqueued.insert(rank, count);
        }
    }
    let least = enqueued.values().min().copied();
    let behind: Vec<u32> =
        enqueued.iter().filter(|(_, count)| Some(**count) == least).map(|(rank, _)| *rank).collect();
    if enqueued.len() > 1 && behind.len() < enqueued.len() && behind.len() * 4 <= enqueued.len().max(4) {
        return (evidence, Some(behind));
    }
    let waiting: BTreeSet<u32> = watchdogs.iter().filter_map(|each| each.rank()).collect();
    let absent: Vec<u32> =
        (0..world.unwrap_or(0).min(1 << 17)).filter(|rank| !waiting.contains(rank)).collect();
    let is_telling = !waiting.is_empty() && !absent.is_empty() && absent.len() * 4 <= waiting.len().max(4);
    (evidence, is_telling.then_some(absent))
}

/// What the ranks that wait in a collective wait for: work that a rank does alone before it.
fn waited_for(troubles: &[Trouble<'_>]) -> Option<Observation> {
    let stalled = troubles.iter().find(|each| each.is(&["nccl-watchdog-timeout", "store-timeout"]))?;
    let before = stalled.log.log.phases.iter().rfind(|mark| mark.line < stalled.sign.line)?;
    let is_barrier = troubles.iter().any(|each| each.is(&["nccl-one-element-allreduce"]));
    let weight = match before.kind {
        _ if before.after_steps != stalled.sign.after_steps => return None,
        PhaseKind::Prepare => 1.0,
        PhaseKind::Save | PhaseKind::Evaluate | PhaseKind::Load if is_barrier => 0.9,
        PhaseKind::Save | PhaseKind::Evaluate | PhaseKind::Load => 0.2,
        _ => return None,
    };
    Some(Observation {
        what: format!("the last thing before the wait was: {}", before.kind),
        source: stalled.log.place(before.line),
        speaks_for: Some(Cause::Application),
        weight,
    })
}

/// Whom the line that began it names, or else who wrote it.
fn culprits(begun: &Trouble<'_>, troubles: &[Trouble<'_>], world: Option<u32>) -> (Vec<Culprit>, f64) {
    let named = |name: &str| begun.sign.captured(name).filter(|value| !value.is_empty()).map(str::to_owned);
    let mut found: Vec<Culprit> = Vec::new();
    found.extend(named("pci").map(Culprit::Gpu));
    found.extend(["node", "peer", "n2"].into_iter().filter_map(named).map(Culprit::Node));
    found.extend(["server", "target", "nid"].into_iter().filter_map(named).map(Culprit::Server));
    found.extend(named("comm").map(Culprit::Process));
    let same: BTreeSet<u32> = troubles
        .iter()
        .filter(|each| each.signature.name == begun.signature.name && together(each, begun))
        .filter_map(Trouble::rank)
        .collect();
    let all_ranks = world.is_some_and(|world| world > 1 && same.len() * 2 > world as usize);
    if !all_ranks && begun.signature.wherever != Where::Kernel {
        found.extend(same.into_iter().map(Culprit::Rank));
    }
    let origin = begun.log.origin(begun.sign.origin);
    if found.is_empty() && !all_ranks {
        found.extend(origin.local_rank.map(|rank| Culprit::Process(format!("of local rank {rank}"))));
    }
    if let Some(node) = &origin.node
        && found.iter().all(|culprit| !matches!(culprit, Culprit::Node(_)))
        && !all_ranks
    {
        found.push(Culprit::Node(node.clone()));
    }
    let confidence = if found.is_empty() { 0.0 } else { 0.75 };
    (found, confidence)
}

fn together(one: &Trouble<'_>, other: &Trouble<'_>) -> bool {
    match (one.at, other.at) {
        (Some(one), Some(other)) => (one - other).abs() <= TOGETHER_S,
        _ => true,
    }
}

fn last_step(trouble: &Trouble<'_>) -> Option<u64> {
    let before = trouble.sign.after_steps.checked_sub(1)?;
    trouble.log.log.steps.get(before).map(|step| step.step)
}

/// The remedies of the lines that speak for the verdict, each once, that of the first line first.
fn next_steps(begun: &Trouble<'_>, troubles: &[Trouble<'_>], cause: Cause) -> Vec<String> {
    const MOST: usize = 4;
    let of_cause = troubles
        .iter()
        .filter(|each| Cause::of_class(&each.signature.class) == cause || cause == Cause::Unknown);
    let mut next: Vec<String> = Vec::new();
    for trouble in std::iter::once(begun).chain(of_cause) {
        let remedy = &trouble.signature.remedy;
        if !remedy.is_empty() && !next.contains(remedy) && next.len() < MOST {
            next.push(remedy.clone());
        }
    }
    next
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 160;
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
