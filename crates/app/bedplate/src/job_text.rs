//! A job in a few words: its state, where it runs, why it waits.

use bedplate_drivers::{JobState, JobSummary, NodeId};
use bedplate_terminal::present::clock;
use bedplate_topology::compress_hostlist;
use bedplate_units::Seconds;

/// The state of a job in a word or two.
pub(crate) fn state_text(job: &JobSummary) -> String {
    match job.life.state {
        JobState::Waiting if job.life.is_held => "held".to_owned(),
        state => state.name().replace('_', " "),
    }
}

/// The nodes of a job that has some; else why it waits or how it ended.
pub(crate) fn where_or_why(job: &JobSummary, now_ms: u64) -> String {
    if !job.nodes.is_empty() {
        return compress_hostlist(job.nodes.iter().map(NodeId::as_str));
    }
    let reason = job.waits_because.as_ref().or(job.life.reason.as_ref()).map(|reason| reason.text.clone());
    match (job.life.state, job.expected_start_ms) {
        (JobState::Waiting, Some(start)) => {
            let after = match start.saturating_sub(now_ms) {
                0 => "starts now".to_owned(),
                after => format!("starts within {}", clock(after)),
            };
            reason.map_or(after.clone(), |reason| format!("{reason}; {after}"))
        }
        (JobState::Waiting, None) => reason.unwrap_or_else(|| "waits for its turn".to_owned()),
        (_, _) => match (job.life.exit_status, reason) {
            (_, Some(reason)) => reason,
            (Some(status), None) if status != 0 => format!("exit code {status}"),
            _ => String::new(),
        },
    }
}

/// The same, with what is wrong with a job that runs in front.
pub(crate) fn where_or_problem(job: &JobSummary, now_ms: u64) -> String {
    let place = where_or_why(job, now_ms);
    match job.problem.as_ref().filter(|_| !job.life.state.is_final()) {
        Some(problem) if place.is_empty() => format!("! {problem}"),
        Some(problem) => format!("! {problem}; {place}"),
        None => place,
    }
}

/// What a step takes, of what it was predicted to take or took at first.
pub(crate) fn step_text(job: &JobSummary) -> String {
    let Some(pace) = &job.pace else { return String::new() };
    let time = |seconds: f64| Seconds::new(seconds).to_string();
    let expected = pace.expected_s.map(|seconds| match pace.is_predicted {
        true => format!("predicted {}", time(seconds)),
        false => format!("{} at first", time(seconds)),
    });
    let known = [pace.measured_s.map(time), expected];
    known.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Text of at most this many characters.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => format!("{}…", text.chars().take(most - 1).collect::<String>()),
        false => text.to_owned(),
    }
}

/// Jobs in all states that look different, at the time of 10,000 s.
/// Jobs that are listed by their labels.
const MOST_LABELS: usize = 8;

/// `3 (train), 5_0 (sweep) and 12 more`; nothing where there is no job.
pub(crate) fn labels_of(jobs: &[JobSummary]) -> Option<String> {
    let label = |job: &JobSummary| format!("{} ({})", job.label, job.name);
    let shown: Vec<String> = jobs.iter().take(MOST_LABELS).map(label).collect();
    let more = match jobs.len().saturating_sub(MOST_LABELS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!shown.is_empty()).then(|| shown.join(", ") + &more)
}

#[cfg(test)]
pub(crate) fn canned() -> Vec<JobSummary> {
    let job = |id: u64, changes: serde_json::Value| -> JobSummary {
        let mut job = serde_json::json!({
            "id": id, "label": id.to_string(), "name": "pretrain", "user": "ada", "account": "root",
            "partition": "main", "qos": "normal", "submitted_ms": 1_000_000, "state": "waiting",
            "is_held": false, "runs": 0, "restarts": 0, "checkpoint": null, "started_ms": null,
            "ended_ms": null, "exit_status": null, "reason": null, "nodes_asked": 2, "gpus_asked": 16,
            "nodes": [], "ends_ms": null, "expected_start_ms": null,
        });
        for (key, value) in changes.as_object().unwrap() {
            job[key] = value.clone();
        }
        serde_json::from_value(job).unwrap()
    };
    vec![
        job(
            1,
            serde_json::json!({
                "state": "running", "started_ms": 9_000_000, "ends_ms": 16_200_000, "nodes": ["n1", "n2"],
                "pace": { "expected_s": 0.4, "is_predicted": true, "measured_s": 0.52, "step": 120 },
                "problem": "slow since: hardware (rank 3)",
            }),
        ),
        job(
            2,
            serde_json::json!({ "name": "a name that is too long to show", "expected_start_ms": 16_200_000, "reason": { "code": "resources", "text": "not enough free nodes" } }),
        ),
        job(
            3,
            serde_json::json!({ "is_held": true, "user": "grace", "reason": { "code": "held", "text": "held" } }),
        ),
        job(4, serde_json::json!({ "label": "4_7", "nodes_asked": 1, "gpus_asked": 0 })),
        job(
            5,
            serde_json::json!({ "state": "failed", "started_ms": 9_000_000, "ended_ms": 9_061_000, "exit_status": 3 }),
        ),
        job(
            6,
            serde_json::json!({ "state": "node_lost", "started_ms": 9_000_000, "ended_ms": 9_061_000, "reason": { "code": "node_lost", "text": "n1 was lost" } }),
        ),
    ]
}
