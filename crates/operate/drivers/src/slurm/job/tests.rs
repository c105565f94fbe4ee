//! Jobs of every version, and what is no job.

use serde_json::json;

use super::*;

/// A running job of an array as 22.05 tells it (`v0.0.38`), shortened.
fn old() -> Value {
    json!({
        "account": "lab", "array_job_id": 1010, "array_task_id": 3, "array_task_string": "", "comment": "bedplate key=abc; mine",
        "end_time": 1_794_810_015, "exit_code": 0, "gres_detail": ["gpu:h100:8(IDX:0-7)", "gpu:h100:8(IDX:0-7)"], "job_id": 1013,
        "job_state": "RUNNING", "name": "a|b c", "nodes": "n[1-2]", "node_count": 2, "tasks": 8, "partition": "main", "priority": 43_466,
        "qos": "normal", "restart_cnt": 1, "start_time": 1_794_809_415, "state_description": "", "state_reason": "None",
        "standard_error": "", "standard_output": "/tmp/s1-%j.out", "submit_time": 1_794_809_415, "time_limit": 10,
        "tres_per_node": "gres:gpu:8", "tres_req_str": "cpu=2,mem=8000M,node=2,billing=2,gres/gpu=16", "user_name": "ada",
        "current_working_directory": "/tmp", "dependency": "",
    })
}

/// The same in the form of 24.05 (`v0.0.41`).
fn new() -> Value {
    let of = |number: u64| json!({ "set": true, "infinite": false, "number": number });
    json!({
        "account": "lab", "array": {}, "array_job_id": of(1010), "array_task_id": of(3), "array_task_string": "", "comment": "bedplate key=abc; mine",
        "end_time": of(1_794_810_015), "exit_code": { "status": ["SUCCESS"], "return_code": of(0), "signal": { "id": { "set": false, "infinite": false, "number": 0 }, "name": "" } },
        "gres_detail": ["gpu:h100:8(IDX:0-7)", "gpu:h100:8(IDX:0-7)"], "job_id": 1013, "job_state": ["RUNNING"], "name": "a|b c", "nodes": "n[1-2]",
        "node_count": of(2), "tasks": of(8), "partition": "main", "priority": of(43_466), "qos": "normal", "restart_cnt": 1,
        "start_time": of(1_794_809_415), "state_description": "", "state_reason": "None", "standard_error": "", "standard_output": "/tmp/s1-%j.out",
        "submit_time": of(1_794_809_415), "time_limit": of(10), "tres_per_node": "gres/gpu:8", "tres_req_str": "cpu=2,mem=8000M,node=2,billing=2,gres/gpu=16",
        "user_name": "ada", "current_working_directory": "/tmp", "dependency": "",
    })
}

#[test]
fn every_version_tells_of_the_same_job() {
    let (old, new) = (JobRecord::from_json(&old()).unwrap(), JobRecord::from_json(&new()).unwrap());
    assert_eq!(old, new);
    let summary = new.summary();
    assert_eq!(
        (summary.id.as_str(), summary.life.state, summary.life.runs, summary.life.restarts),
        ("1010_3", JobState::Running, 2, 1)
    );
    assert_eq!((summary.nodes.len(), summary.gpus_asked, summary.ends_ms), (2, 16, Some(1_794_810_015_000)));
    assert_eq!((new.note().key.as_deref(), new.note().rest.as_str()), (Some("abc"), "mine"));
}

#[test]
fn a_job_outside_arrays_has_none_in_any_version() {
    for (array, task) in [
        (json!(0), json!(null)),
        (
            json!({ "set": true, "infinite": false, "number": 0 }),
            json!({ "set": false, "infinite": false, "number": 0 }),
        ),
    ] {
        let mut job = new();
        job["array_job_id"] = array;
        job["array_task_id"] = task;
        assert_eq!(JobRecord::from_json(&job).unwrap().job_id(), JobId::from("1013"));
    }
}

fn state(words: Value) -> JobSummary {
    let mut job = new();
    job["job_state"] = words;
    JobRecord::from_json(&job).unwrap().summary()
}

#[test]
fn flags_behind_a_state_decide() {
    assert_eq!(state(json!(["CANCELLED", "COMPLETING"])).life.state, JobState::Stopping);
    assert_eq!(state(json!("COMPLETING")).life.state, JobState::Stopping);
    assert_eq!(state(json!(["RUNNING", "CONFIGURING"])).life.state, JobState::Starting);
    assert_eq!(state(json!(["PENDING", "REQUEUE_HOLD"])).life.state, JobState::Waiting);
    assert_eq!(state(json!("OUT_OF_MEMORY")).life.reason.unwrap().code, "out_of_memory");
    assert_eq!(state(json!("NODE_FAIL")).life.state, JobState::NodeLost);
    assert_eq!(state(json!("PREEMPTED")).life.reason.unwrap().code, "preempted");
}

#[test]
fn a_state_of_a_later_version_is_said_as_it_is() {
    let summary = state(json!(["LEVITATING"]));
    assert_eq!(summary.life.state, JobState::Running, "it has nodes");
    assert_eq!(summary.life.reason.unwrap().text, "Slurm calls its state LEVITATING");
}

#[test]
fn exits_are_told_as_shells_count() {
    let ended = |state: &str, exit: u64| {
        let mut job = old();
        job["job_state"] = state.into();
        job["exit_code"] = exit.into();
        JobRecord::from_json(&job).unwrap().summary()
    };
    let failed = ended("FAILED", 3 << 8);
    assert_eq!(
        (failed.life.exit_status, failed.life.reason.unwrap().text.as_str()),
        (Some(3), "it ended with exit code 3")
    );
    let killed = ended("FAILED", 9);
    assert_eq!(
        (killed.life.exit_status, killed.life.reason.unwrap().text.as_str()),
        (Some(137), "a signal ended it (9)")
    );
    assert_eq!(ended("COMPLETED", 0).life.exit_status, Some(0));
    let cancelled = ended("CANCELLED", 15);
    assert_eq!((cancelled.life.exit_status, cancelled.nodes.len(), cancelled.life.runs), (None, 0, 2));
}

#[test]
fn what_is_no_job_is_none() {
    for value in [json!(null), json!({}), json!({ "job_id": "x" }), json!([])] {
        assert_eq!(JobRecord::from_json(&value), None);
    }
}
