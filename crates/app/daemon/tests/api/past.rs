//! Jobs that have ended are asked of the journal: names, keys, dependencies, orders; and old ones can go.

use serde_json::json;

use crate::support::{Client, Daemon, JOB};

const ARRAY: &str = "name = \"sweep\"\ncommand = [\"true\"]\narray = \"0-2\"\n";

/// A daemon that was started after these jobs had ended: its memory has nothing of them.
fn with_past(jobs: &[(&str, &str)]) -> Daemon {
    let mut daemon = Daemon::start();
    let mut ada = daemon.client("ada", "user");
    for (text, key) in jobs {
        let answer = submit(&mut ada, text, key);
        assert_eq!(answer["is_old"], false, "{answer}");
        let label = answer["label"].as_str().unwrap();
        assert_eq!(ada.delete(&format!("/v1/jobs/{label}")).status, 200);
    }
    daemon.restart();
    daemon
}

fn submit(client: &mut Client, text: &str, key: &str) -> serde_json::Value {
    let headers = [("content-type", "application/toml"), ("idempotency-key", key)];
    client.ask("POST", "/v1/jobs", &headers, text.as_bytes()).json()
}

#[test]
fn what_ended_before_a_restart_is_found_by_name_and_by_key() {
    let daemon = with_past(&[(JOB, "one"), (ARRAY, "many")]);
    let mut ada = daemon.client("ada", "user");
    assert_eq!(ada.get("/v1/jobs/1").json()["state"], "cancelled");
    assert_eq!(ada.get("/v1/jobs/2_1").json()["id"], 3);
    let tasks = ada.get("/v1/jobs/2").json()["tasks"].clone();
    assert_eq!(tasks.as_array().map(Vec::len), Some(3), "{tasks}");
    assert_eq!(tasks[2], json!({ "id": 4, "label": "2_2", "state": "cancelled" }));
    let again = submit(&mut ada, ARRAY, "many");
    assert_eq!((&again["id"], &again["count"], &again["is_old"]), (&json!(2), &json!(3), &json!(true)));
    let mut other = daemon.client("bob", "user");
    assert_eq!(submit(&mut other, JOB, "one")["is_old"], false, "keys are each user's own");
    assert_eq!(ada.get("/v1/jobs/2_7").status, 404);
    assert_eq!(ada.get("/v1/jobs/99").status, 404);
}

#[test]
fn what_ended_before_a_restart_takes_no_orders_and_satisfies_dependencies() {
    let daemon = with_past(&[(JOB, "one"), (ARRAY, "many")]);
    let mut ada = daemon.client("ada", "user");
    for label in ["1", "2", "2_1"] {
        let refused = ada.delete(&format!("/v1/jobs/{label}"));
        assert_eq!(
            (refused.status, &refused.json()["error"]["reason"]["code"]),
            (409, &json!("has_ended")),
            "{label}"
        );
    }
    let depending = |on: &str| format!("{JOB}dependencies = [\"{on}\"]\n");
    for (on, status) in [
        ("afterany:1", 201),
        ("afterany:2", 201),
        ("afterany:2_1", 201),
        ("afterok:1", 422),
        ("afterany:99", 422),
    ] {
        let answer = ada.submit(&depending(on));
        assert_eq!(answer.status, status, "{on}: {}", answer.text());
    }
    let waiting = ada.get("/v1/jobs").json();
    for job in waiting["jobs"].as_array().unwrap() {
        assert_ne!(job["waits_because"]["code"], "dependency", "{job}");
    }
}

#[test]
fn old_jobs_can_be_pruned_and_the_newest_number_is_not_given_twice() {
    let daemon = with_past(&[(JOB, "one"), (ARRAY, "many"), (JOB, "last")]);
    let mut admin = daemon.admin();
    let would = admin.post("/v1/history/prune", &json!({ "keep": 0, "dry_run": true })).json();
    assert_eq!((&would["jobs"], &would["dry_run"]), (&json!(4), &json!(true)), "the newest stays");
    assert_eq!(admin.get("/v1/jobs/1").status, 200);
    let pruned = admin.post("/v1/history/prune", &json!({ "keep": 0 })).json();
    assert_eq!((&pruned["jobs"], &pruned["notes"]), (&would["jobs"], &would["notes"]));
    assert_eq!(admin.get("/v1/jobs/1").status, 404);
    assert_eq!(admin.submit(JOB).json()["id"], 6);
    assert_eq!(admin.get("/v1/cluster").json()["counts"]["jobs_ended"], 1);
}
