//! Why runs end, each reason with its code, its fields and its one sentence.

use bedplate_diag::Reason;
use bedplate_finding::Finding;
use bedplate_gangs::{JobId, Span};
use bedplate_report::FaultReport;

use crate::wire::RankEnd;

/// The code of the end of a run whose rank ended with an error.
pub(crate) const RANK_FAILED: &str = "rank_failed";
/// The codes of what takes a node out of service by its own word.
pub(crate) const FOUND: &str = "finding";
pub(crate) const CHECK_FAILED: &str = "check_failed";

pub(crate) fn rank_failed(rank: u32, node: &str, end: RankEnd) -> Reason {
    Reason::new(RANK_FAILED, format!("rank {rank} on {node} ended with {end}"))
        .with("rank", rank)
        .with("node", node)
        .with("exit_status", end.status())
}

/// The job's own fault: no such directory, output that cannot be written.
pub(crate) fn cannot_start(why: String) -> Reason {
    Reason::new("cannot_start", why)
}

pub(crate) fn prolog_failed(job: JobId, node: &str, status: i32, output: &str) -> Reason {
    let last = output.trim().lines().last().unwrap_or("");
    Reason::new("prolog_failed", format!("the prolog of {job} ended with {status}: {last}"))
        .with("node", node)
        .with("exit_status", status)
}

pub(crate) fn preempted_by(job: JobId) -> Reason {
    Reason::new("preempted", format!("makes room for {job}")).with("by", job.0.to_string())
}

pub(crate) fn time_limit() -> Reason {
    Reason::new("time_limit", "its time is up")
}

pub(crate) fn node_lost(node: &str) -> Reason {
    Reason::new("node_lost", format!("node {node} was lost")).with("node", node)
}

pub(crate) fn ranks_lost(node: &str) -> Reason {
    Reason::new("ranks_lost", format!("its ranks on {node} were lost")).with("node", node)
}

/// A rank said so; what its node saw there is told beside it.
pub(crate) fn device_failed(rank: u32, node: &str, fault: &FaultReport, seen: Option<&Finding>) -> Reason {
    let FaultReport { address, uuid, code, message } = fault;
    let mut text = format!("the GPU at {address} ({uuid}) on {node} failed rank {rank}: {message} [{code}]");
    if let Some(seen) = seen {
        text += &format!("; the node saw {} on {}", seen.rule.trim_start_matches("gpu/"), seen.subject);
    }
    let reason = Reason::new("device_failed", text)
        .with("rank", rank)
        .with("node", node)
        .with("gpu", uuid.as_str())
        .with("address", address.as_str());
    match seen {
        Some(seen) => reason.with("finding", seen.rule.as_str()),
        None => reason,
    }
}

pub(crate) fn grew(nodes: usize) -> Reason {
    let more = if nodes == 1 { "one more node".to_owned() } else { format!("{nodes} more nodes") };
    Reason::new("grew", format!("it goes on with {more}")).with("nodes", nodes)
}

pub(crate) fn node_leaves(node: &str) -> Reason {
    Reason::new("node_leaves", format!("node {node} goes out of service")).with("node", node)
}

pub(crate) fn cancelled() -> Reason {
    Reason::new("cancelled", "cancelled")
}

pub(crate) fn requeued() -> Reason {
    Reason::new("requeued", "requeued")
}

/// Nothing else keeps it from starting.
pub(crate) fn missing_resources(nodes: u64, gpus: u64) -> Reason {
    let what = if nodes == 1 { "one node".to_owned() } else { format!("{nodes} nodes") };
    let with = if gpus == 0 { String::new() } else { format!(" with {gpus} GPUs in all") };
    Reason::new("resources", format!("waits until {what}{with} can be had"))
        .with("needed", nodes)
        .with("gpus", gpus)
}

/// It has failed too often; `text` says how.
pub(crate) fn given_up(text: &str) -> Reason {
    Reason::new("given_up", text)
}

/// An operator takes a node out of service.
pub(crate) fn drained_by(why: &str, user: &str) -> Reason {
    Reason::new("drained", format!("{why} ({user})")).with("why", why).with("by", user)
}

pub(crate) fn flapping(losses: usize, window: Span) -> Reason {
    Reason::new("flapping", format!("lost {losses} times within {window}"))
        .with("losses", losses)
        .with("window_ms", window.0)
}

pub(crate) fn suspected(users: usize, last: JobId, why: &str) -> Reason {
    let text = format!("jobs of {users} users failed on it and nowhere else, last {last}: {why}");
    Reason::new("suspected", text).with("users", users).with("last", last.0.to_string()).with("why", why)
}

pub(crate) fn check_failed(why: &str) -> Reason {
    Reason::new(CHECK_FAILED, why)
}

/// What a node found about itself.
pub(crate) fn found(finding: &Finding) -> Reason {
    let text = format!("{}: {} [{}]", finding.subject, finding.summary, finding.rule);
    let evidence =
        finding.evidence.first().map(|evidence| format!("{}: {}", evidence.what, evidence.reading));
    let reason =
        Reason::new(FOUND, text).with("rule", finding.rule.as_str()).with("action", finding.action.name());
    match evidence {
        Some(evidence) => reason.with("evidence", evidence),
        None => reason,
    }
}

pub(crate) fn control_restarted() -> Reason {
    Reason::new("control_restarted", "the control plane was restarted before it ran")
}
