//! Jobs that have ended, as the REST server tells them from accounting.

use serde_json::Value;

use super::job::{Array, Exit, JobRecord, node_names};
use super::site::Share;
use super::transport::HistoryQuery;
use super::value::{field, moment, number, text, words};

/// What to ask for. From 0.0.40 on a moment is a number.
pub(super) fn path(query: &HistoryQuery, version: &str) -> String {
    let third = version.rsplit('.').next().and_then(|number| number.parse::<u32>().ok()).unwrap_or(0);
    let since_s = query.since_s.max(super::tools::EARLIEST_S);
    let since = if third >= 40 { since_s.to_string() } else { format!("uts{since_s}") };
    let mut path = format!("/jobs?start_time={since}&skip_steps=true");
    // Older versions cannot ask for a user; what comes is looked through anyway.
    let user = query.user.clone().filter(|_| third >= 40);
    let filters = [("users", &user), ("account", &query.account), ("job_name", &query.name)];
    for (name, value) in filters {
        if let Some(value) = value {
            path += &format!("&{name}={}", encoded(value));
        }
    }
    path
}

fn encoded(text: &str) -> String {
    let mut path = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                path.push(char::from(byte))
            }
            _ => path += &format!("%{byte:02X}"),
        }
    }
    path
}

pub(super) fn from_json(job: &Value) -> Option<JobRecord> {
    let time = &job["time"];
    let resources = &job["tres"];
    let count = |list: &Value, kind: &str, name: &str| {
        let entries = list.as_array().into_iter().flatten();
        let found =
            entries.filter(|entry| entry["type"] == kind && (name.is_empty() || entry["name"] == name));
        found.filter_map(|entry| number(&entry["count"])).max()
    };
    let either = |kind: &str, name: &str| {
        count(&resources["allocated"], kind, name).or_else(|| count(&resources["requested"], kind, name))
    };
    Some(JobRecord {
        id: number(&job["job_id"])?,
        array: array(&job["array"]),
        name: text(&job["name"]),
        user: text(field(job, &["user"])),
        account: text(&job["account"]),
        partition: text(&job["partition"]),
        qos: text(&job["qos"]),
        comment: text(&job["comment"]["job"]),
        states: words(field(&job["state"], &["current"])),
        reason: text(&job["state"]["reason"]),
        description: String::new(),
        submitted_s: moment(&time["submission"]),
        started_s: moment(&time["start"]),
        ended_s: moment(&time["end"]),
        limit_min: number(&time["limit"]),
        priority: number(&job["priority"]),
        restarts: number(&job["restart_cnt"]).unwrap_or(0) as u32,
        exit: exit(&job["exit_code"]),
        nodes_asked: either("node", "").or_else(|| number(&job["allocation_nodes"])).unwrap_or(0),
        gpus_asked: either("gres", "gpu").unwrap_or(0),
        resources: resources_text(resources),
        tasks: 1,
        nodes: node_names(&text(&job["nodes"])),
        devices: Vec::new(),
        stdout: text(field(job, &["stdout_expanded", "stdout"])),
        stderr: text(field(job, &["stderr_expanded", "stderr"])),
        directory: text(&job["working_directory"]),
        dependency: String::new(),
    })
}

/// As the other transports write them.
fn resources_text(resources: &Value) -> String {
    let list = ["allocated", "requested"]
        .iter()
        .find_map(|key| resources[*key].as_array().filter(|list| !list.is_empty()));
    let entries = list.into_iter().flatten().filter_map(|entry| {
        let (kind, name) = (text(&entry["type"]), text(&entry["name"]));
        let unit = if kind == "mem" { "M" } else { "" };
        let key = if name.is_empty() { kind } else { format!("{kind}/{name}") };
        Some(format!("{key}={}{unit}", number(&entry["count"])?))
    });
    entries.collect::<Vec<_>>().join(",")
}

fn array(value: &Value) -> Option<Array> {
    let job = number(&value["job_id"]).filter(|job| *job > 0)?;
    let task = number(&value["task_id"]).map(|task| task as u32);
    let waiting = if task.is_some() { String::new() } else { text(&value["task"]) };
    (task.is_some() || !waiting.is_empty()).then_some(Array { job, task, waiting })
}

fn exit(value: &Value) -> Option<Exit> {
    let signal = field(&value["signal"], &["id", "signal_id"]);
    Some(Exit { code: number(&value["return_code"])? as i32, signal: number(signal).unwrap_or(0) as i32 })
}

/// An entry of REST's `shares`.
pub(super) fn share(value: &Value) -> Option<Share> {
    let real = |value: &Value| value.as_f64().or_else(|| value["number"].as_f64());
    let is_user = words(&value["type"]).iter().any(|word| word == "USER");
    let (name, parent) = (text(&value["name"]), text(&value["parent"]));
    Some(Share {
        account: if is_user { parent } else { name.clone() },
        user: if is_user { name } else { String::new() },
        shares: real(&value["shares_normalized"]).unwrap_or(0.0),
        usage: real(&value["effective_usage"]).unwrap_or(0.0),
        fair_share: real(&value["fairshare"]["factor"]).filter(|share| share.is_finite()),
    })
    .filter(|share| !share.account.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::JobState;

    fn resources() -> Value {
        json!({ "allocated": [{ "type": "node", "name": null, "count": 2 }, { "type": "gres", "name": "gpu", "count": 16 }], "requested": [] })
    }

    #[test]
    fn two_versions_tell_of_the_same_job() {
        let old = json!({ "job_id": 12, "array": { "job_id": 9, "task_id": 3, "task": null }, "name": "a", "user": "ada", "account": "lab", "partition": "main", "qos": "normal", "comment": { "job": "mine" },
            "state": { "current": "FAILED", "reason": "None" }, "time": { "submission": 10, "start": 20, "end": 30, "limit": 60 }, "exit_code": { "status": "ERROR", "return_code": 3 },
            "tres": resources(), "nodes": "n[1-2]", "working_directory": "/tmp", "priority": 5 });
        let of = |number: u64| json!({ "set": true, "infinite": false, "number": number });
        let new = json!({ "job_id": 12, "array": { "job_id": 9, "task_id": of(3), "task": "" }, "name": "a", "user": "ada", "account": "lab", "partition": "main", "qos": "normal", "comment": { "job": "mine" },
            "state": { "current": ["FAILED"], "reason": "None" }, "time": { "submission": 10, "start": 20, "end": 30, "limit": of(60) },
            "exit_code": { "status": ["ERROR"], "return_code": of(3), "signal": { "id": { "set": false, "infinite": false, "number": 0 }, "name": "" } },
            "tres": resources(), "nodes": "n[1-2]", "working_directory": "/tmp", "priority": of(5) });
        let (old, new) = (from_json(&old).unwrap(), from_json(&new).unwrap());
        assert_eq!(old, new);
        let summary = old.summary();
        assert_eq!(
            (summary.label.as_str(), summary.life.state, summary.life.exit_status),
            ("9_3", JobState::Failed, Some(3))
        );
        assert_eq!((summary.nodes_asked, summary.gpus_asked), (2, 16));
    }

    #[test]
    fn a_version_that_does_not_tell_the_exit_code_is_not_believed() {
        let job = json!({ "job_id": 12, "state": { "current": "FAILED" }, "exit_code": { "status": "SUCCESS", "return_code": 0 }, "time": {}, "nodes": "n1" });
        let summary = from_json(&job).unwrap().summary();
        assert_eq!((summary.life.state, summary.life.exit_status), (JobState::Failed, None));
        assert_eq!(summary.life.reason.unwrap().text, "it failed; Slurm does not tell its exit code");
    }

    #[test]
    fn names_in_a_path_are_encoded() {
        let query =
            HistoryQuery { since_s: 90_000_000, name: Some("a b&c".into()), ..HistoryQuery::default() };
        assert_eq!(
            path(&query, "v0.0.38"),
            "/jobs?start_time=uts90000000&skip_steps=true&job_name=a%20b%26c"
        );
        assert_eq!(path(&query, "v0.0.41"), "/jobs?start_time=90000000&skip_steps=true&job_name=a%20b%26c");
    }

    #[test]
    fn shares_of_newer_versions_are_read() {
        let value = json!({ "name": "ada", "parent": "lab", "type": ["USER"], "shares_normalized": { "set": true, "number": 0.5 }, "effective_usage": { "set": true, "number": 0.25 }, "fairshare": { "factor": { "set": true, "number": 0.75 } } });
        assert_eq!(
            share(&value),
            Some(Share {
                account: "lab".into(),
                user: "ada".into(),
                shares: 0.5,
                usage: 0.25,
                fair_share: Some(0.75)
            })
        );
    }
}
