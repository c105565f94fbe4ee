//! Slurm's codes for why jobs wait and how they ended, in our words. The code itself goes along in the field `slurm`.

use bedplate_diag::Reason;

use super::job::JobRecord;
use crate::JobState;

/// Codes of jobs that wait: ours, and the sentence.
const WAITS: &[(&str, &str, &str)] = &[
    ("None", "not_considered", "Slurm has not considered it yet"),
    ("Priority", "behind", "jobs of higher priority come first"),
    ("Resources", "resources", "not enough nodes are free for it"),
    ("Dependency", "dependency", "it waits for the jobs that it depends on"),
    (
        "DependencyNeverSatisfied",
        "dependency_failed",
        "a job that it depends on ended otherwise than it requires, so it will never start",
    ),
    ("JobHeldUser", "held", "its user holds it"),
    ("JobHeldAdmin", "held_by_administrator", "an administrator holds it"),
    ("JobHoldMaxRequeue", "held_after_requeues", "it was requeued too often, so Slurm holds it"),
    (
        "BeginTime",
        "begin",
        "it may not start yet: its begin time, or the pause after a requeue, has not passed",
    ),
    ("JobArrayTaskLimit", "array_limit", "as many tasks of its array run as it allows at once"),
    (
        "PartitionNodeLimit",
        "partition_nodes",
        "it wants more nodes than its partition has or allows, or fewer than it demands",
    ),
    ("PartitionTimeLimit", "partition_time", "its time limit is longer than its partition allows"),
    ("PartitionDown", "partition_down", "its partition takes no work now"),
    ("PartitionInactive", "partition_down", "its partition is inactive"),
    ("PartitionConfig", "partition_config", "the settings of its partition do not let it run"),
    ("ReqNodeNotAvail", "nodes_unavailable", "nodes that it needs are down, drained or reserved"),
    ("NodeDown", "nodes_unavailable", "a node that it needs is down"),
    ("Reservation", "reservation", "it waits for its reservation"),
    ("ReservationDeleted", "reservation_gone", "its reservation was deleted"),
    ("BadConstraints", "impossible", "no nodes have what it demands"),
    ("Licenses", "licenses", "it waits for licenses"),
    ("InvalidAccount", "account", "its account is not valid"),
    ("InvalidQOS", "qos", "its QOS is not valid"),
    ("AccountNotAllowed", "account", "its account may not use this partition"),
    ("QOSNotAllowed", "qos", "its QOS may not be used with this account or partition"),
    ("Cleaning", "cleaning", "its last run is still being cleaned up"),
    ("Prolog", "prolog", "the prolog runs on its nodes"),
    (
        "JobLaunchFailure",
        "launch_failed",
        "it could not be started: a file system, a credential or its user may be missing on a node",
    ),
    ("SystemFailure", "system_failure", "Slurm failed at it: a file system or the network may be down"),
    ("InactiveLimit", "inactive", "it was inactive for longer than allowed"),
    ("TimeLimit", "time_limit", "its time limit was reached"),
    ("DeadLine", "deadline", "it cannot end before its deadline any more"),
    ("MaxMemPerLimit", "memory_limit", "it wants more memory than it may have"),
    ("PowerNotAvail", "power", "not enough electric power is available"),
    ("PowerReserved", "power", "the electric power it needs is reserved"),
];

/// Why a job waits.
pub(super) fn wait(record: &JobRecord) -> Reason {
    let slurm = code(&record.reason);
    let known = WAITS.iter().find(|(name, ..)| *name == slurm);
    let mut reason = match known {
        Some((_, code, text)) => Reason::new(code, *text),
        None => limit(slurm).unwrap_or_else(|| Reason::new("other", other_text(slurm))),
    };
    if record.is_held() && !reason.code.starts_with("held") {
        reason = Reason::new("held", "it is held");
    }
    if let Some((_, nodes)) =
        record.reason.split_once("UnavailableNodes:").filter(|(_, list)| !list.is_empty())
    {
        reason.text += &format!(": {nodes}");
        reason = reason.with("nodes", nodes);
    }
    if reason.code == "dependency" && !record.dependency.is_empty() {
        reason.text += &format!(" ({})", record.dependency);
        reason = reason.with("dependency", record.dependency.clone());
    }
    if !slurm.is_empty() { reason.with("slurm", slurm) } else { reason }
}

/// The code without what some versions put behind it: `ReqNodeNotAvail, UnavailableNodes:n[1-2]`.
fn code(reason: &str) -> &str {
    reason.split([',', '(']).next().unwrap_or_default().trim()
}

fn other_text(slurm: &str) -> String {
    match slurm {
        "" => "Slurm does not say why".to_owned(),
        slurm => format!("Slurm says {slurm}"),
    }
}

/// The families of limits, `QOSMaxGRESPerUser` or `AssocGrpNodeLimit`: whose limit, on what, for whom.
fn limit(slurm: &str) -> Option<Reason> {
    let of =
        [("QOS", "its QOS"), ("Assoc", "its account"), ("Association", "its account"), ("Max", "its QOS")];
    let (prefix, whose) = of.into_iter().rev().find(|(prefix, _)| slurm.starts_with(prefix))?;
    let rest = &slurm[if prefix == "Max" { 0 } else { prefix.len() }..];
    let what = [
        ("GRES", "GPUs or other devices"),
        ("Gres", "GPUs or other devices"),
        ("Node", "nodes"),
        ("Cpu", "CPUs"),
        ("CPU", "CPUs"),
        ("Mem", "memory"),
        ("Submit", "submitted jobs"),
        ("Job", "jobs"),
        ("Wall", "run time"),
        ("Time", "run time"),
        ("Minutes", "minutes"),
        ("Billing", "billing units"),
        ("Resource", "resources"),
        ("Threshold", "past usage"),
    ];
    let what = what.into_iter().find(|(word, _)| rest.contains(word)).map_or("resources", |(_, text)| text);
    let whom = match rest {
        rest if rest.contains("PerUser") || rest.contains("PU") => " for one user",
        rest if rest.contains("PerAccount") || rest.contains("PA") => " for one account",
        rest if rest.contains("PerJob") => " for one job",
        rest if rest.contains("Grp") => " for all its jobs together",
        _ => "",
    };
    let code = if whose == "its QOS" { "qos_limit" } else { "account_limit" };
    let bound = if rest.contains("Min") && !rest.contains("Minutes") { "least" } else { "most" };
    Some(Reason::new(code, format!("{whose} sets the {bound} {what}{whom}, and that is reached")))
}

/// What a user can do by the reason alone; nothing where only time helps.
pub(super) fn remedy(wait: &Reason, record: &JobRecord) -> Option<Reason> {
    let id = record.job_id();
    let text = match wait.code.as_str() {
        "held" | "held_after_requeues" => format!("`bedplate job release {id}` lets it go"),
        "held_by_administrator" => "ask an administrator to release it".to_owned(),
        "dependency_failed" => format!("cancel it with `bedplate job cancel {id}` and submit it without the dependency"),
        "partition_nodes" | "partition_time" | "impossible" | "partition_config" => {
            "it will not start as it is: `bedplate cluster show --context NAME` lists partitions and their limits".to_owned()
        }
        "account" | "qos" => "submit it with an account and QOS of yours: `sacctmgr show associations` lists them".to_owned(),
        "account_limit" | "qos_limit" => "it starts when jobs under the same limit end; another account or QOS may have room".to_owned(),
        "reservation_gone" => "submit it without the reservation".to_owned(),
        "launch_failed" | "system_failure" => format!("tell an administrator, then `bedplate job release {id}`"),
        "array_limit" => "a larger number behind the % of its array lets more of it run at once".to_owned(),
        _ => return None,
    };
    Some(Reason::new("remedy", text))
}

/// Why a job ended as it did; nothing for success.
pub(super) fn ending(record: &JobRecord) -> Option<Reason> {
    let word = |name: &str| record.states.iter().any(|state| state.starts_with(name));
    let by_signal = record.exit.filter(|exit| exit.signal > 0).map(|exit| exit.signal);
    let reason = match record.state() {
        JobState::Cancelled if word("PREEMPTED") => {
            Reason::new("preempted", "a job of higher priority took its nodes")
        }
        JobState::Cancelled if word("REVOKED") => {
            Reason::new("cancelled", "another cluster of the federation runs it")
        }
        JobState::Cancelled => Reason::new("cancelled", canceller(record)),
        JobState::TimedOut if word("DEADLINE") => Reason::new("deadline", "its deadline has passed"),
        JobState::TimedOut => Reason::new("time_limit", "its time limit was reached"),
        JobState::NodeLost => Reason::new("node_lost", "a node of it was lost"),
        JobState::Failed if word("OUT_OF_MEMORY") => Reason::new("out_of_memory", "it ran out of memory"),
        JobState::Failed if word("BOOT_FAIL") => Reason::new("not_started", "its nodes could not be booted"),
        JobState::Failed if word("LAUNCH_FAILED") => Reason::new("not_started", "it could not be started"),
        JobState::Failed => match (by_signal, record.exit.map(|exit| exit.code)) {
            (Some(signal), _) => {
                Reason::new("failed", format!("a signal ended it ({signal})")).with("signal", signal)
            }
            (None, Some(code)) if code != 0 => {
                Reason::new("failed", format!("it ended with exit code {code}"))
            }
            _ => Reason::new("failed", "it failed; Slurm does not tell its exit code"),
        },
        JobState::Waiting if !record.is_held() && record.restarts > 0 => {
            Reason::new("requeued", "it was put back into the queue")
        }
        _ => return None,
    };
    Some(reason)
}

/// Accounting writes `CANCELLED by 1000`.
fn canceller(record: &JobRecord) -> String {
    let by = record.states.iter().find_map(|state| state.strip_prefix("CANCELLED BY "));
    by.map_or("it was cancelled".to_owned(), |user| format!("it was cancelled by user number {user}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(reason: &str) -> JobRecord {
        JobRecord {
            id: 7,
            states: vec!["PENDING".into()],
            reason: reason.into(),
            priority: Some(5),
            ..JobRecord::default()
        }
    }

    #[test]
    fn codes_are_translated_and_kept() {
        let text = |code: &str| wait(&waiting(code)).text;
        assert_eq!(text("Priority"), "jobs of higher priority come first");
        assert_eq!(
            text("ReqNodeNotAvail, UnavailableNodes:n[1-2]"),
            "nodes that it needs are down, drained or reserved: n[1-2]"
        );
        assert_eq!(
            text("QOSMaxGRESPerUser"),
            "its QOS sets the most GPUs or other devices for one user, and that is reached"
        );
        assert_eq!(
            text("AssocGrpNodeLimit"),
            "its account sets the most nodes for all its jobs together, and that is reached"
        );
        assert_eq!(
            text("MaxGRESPerAccount"),
            "its QOS sets the most GPUs or other devices for one account, and that is reached"
        );
        assert_eq!(text("OfTomorrow"), "Slurm says OfTomorrow");
        assert_eq!(text(""), "Slurm does not say why");
        assert_eq!(wait(&waiting("Priority")).fields["slurm"], "Priority");
    }

    #[test]
    fn every_known_code_has_a_sentence_of_its_own_kind() {
        for (slurm, code, text) in WAITS {
            assert!(
                !text.ends_with('.') && text.chars().next().is_some_and(char::is_lowercase)
                    || text.starts_with("Slurm"),
                "{slurm}"
            );
            assert!(code.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{slurm}");
        }
    }

    #[test]
    fn a_dependency_is_named_and_a_hold_can_be_released() {
        let record = JobRecord { dependency: "afterok:5(unfulfilled)".into(), ..waiting("Dependency") };
        assert!(wait(&record).text.ends_with("(afterok:5(unfulfilled))"));
        let held = waiting("JobHeldUser");
        assert_eq!(remedy(&wait(&held), &held).unwrap().text, "`bedplate job release 7` lets it go");
        assert!(remedy(&wait(&waiting("Priority")), &waiting("Priority")).is_none());
    }
}
