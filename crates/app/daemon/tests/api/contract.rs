//! Every path with every role.

use bedplate_testkit::wait_for;
use serde_json::{Value, json};

use crate::support::{Client, Daemon, JOB};

/// What each role gets: nobody, agent, reader, user, operator, admin.
const TABLE: &[(&str, &str, [u16; 6])] = &[
    ("GET", "/healthz", [200, 200, 200, 200, 200, 200]),
    ("GET", "/version", [200, 200, 200, 200, 200, 200]),
    ("GET", "/openapi.json", [200, 200, 200, 200, 200, 200]),
    ("GET", "/metrics", [401, 403, 200, 200, 200, 200]),
    ("GET", "/v1/jobs", [401, 403, 200, 200, 200, 200]),
    ("GET", "/v1/jobs?ended=true&state=waiting,succeeded", [401, 403, 200, 200, 200, 200]),
    ("GET", "/v1/jobs/1", [401, 403, 200, 200, 200, 200]),
    ("GET", "/v1/jobs/1/explain", [401, 403, 200, 200, 200, 200]),
    // Job 1 belongs to somebody else than the user.
    ("GET", "/v1/jobs/1/logs", [401, 403, 403, 403, 409, 409]),
    ("GET", "/v1/jobs/1/ranks", [401, 403, 403, 403, 200, 200]),
    ("POST", "/v1/jobs/1/hold", [401, 403, 403, 403, 200, 200]),
    ("POST", "/v1/jobs/1/release", [401, 403, 403, 403, 200, 200]),
    ("POST", "/v1/jobs/1/requeue", [401, 403, 403, 403, 409, 409]),
    ("GET", "/v1/jobs/99", [401, 403, 404, 404, 404, 404]),
    ("DELETE", "/v1/jobs/99", [401, 403, 403, 404, 404, 404]),
    ("GET", "/v1/nodes", [401, 403, 200, 200, 200, 200]),
    ("GET", "/v1/nodes/n1", [401, 403, 200, 200, 200, 200]),
    ("GET", "/v1/nodes/n9", [401, 403, 404, 404, 404, 404]),
    ("POST", "/v1/nodes/n1/drain", [401, 403, 403, 403, 200, 200]),
    ("POST", "/v1/nodes/n1/resume", [401, 403, 403, 403, 200, 200]),
    ("POST", "/v1/nodes/n9/resume", [401, 403, 403, 403, 404, 404]),
    ("POST", "/v1/nodes/n1/chaos", [401, 403, 403, 403, 400, 400]),
    ("GET", "/v1/usage?by=account", [401, 403, 200, 200, 200, 200]),
    ("POST", "/v1/history/prune", [401, 403, 403, 403, 403, 200]),
    ("GET", "/v1/cluster", [401, 403, 200, 200, 200, 200]),
    ("GET", "/v1/tokens", [401, 403, 403, 403, 403, 200]),
    ("POST", "/v1/tokens", [401, 403, 403, 403, 403, 400]),
    ("DELETE", "/v1/tokens/99", [401, 403, 403, 403, 403, 404]),
    ("POST", "/v1/agents/link", [401, 400, 403, 403, 403, 403]),
    ("POST", "/v1/jobs", [401, 403, 403, 415, 415, 415]),
    ("POST", "/v1/shutdown?no=thing", [401, 403, 403, 403, 403, 400]),
    ("GET", "/v1/events?job=99", [401, 403, 404, 404, 404, 404]),
    ("GET", "/nothing", [404, 404, 404, 404, 404, 404]),
    ("PATCH", "/v1/jobs", [405, 405, 405, 405, 405, 405]),
];

#[test]
fn every_path_answers_every_role_as_the_contract_says() {
    let daemon = Daemon::start_with(|options| options.limits.refusals_per_second = 1e6);
    assert_eq!(daemon.admin().submit(JOB).status, 201);
    let nobody = Client::connect(daemon.address, "");
    let roles =
        ["agent", "reader", "user", "operator"].map(|role| daemon.client(&format!("some-{role}"), role));
    let mut clients: Vec<Client> = [nobody].into_iter().chain(roles).chain([daemon.admin()]).collect();
    for (method, path, expected) in TABLE {
        let mut found = [0; 6];
        for (client, found) in clients.iter_mut().zip(&mut found) {
            let answer = client.ask(method, path, &[], b"");
            *found = answer.status;
            if answer.status >= 400 {
                let error = &answer.json()["error"];
                for key in ["code", "message", "help", "class"] {
                    assert!(error[key].is_string(), "{method} {path}: {error}");
                }
            }
        }
        assert_eq!(found, *expected, "{method} {path}");
    }
}

#[test]
fn the_table_has_every_route_of_the_document() {
    let document = bedplate_daemon::openapi_document();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let pattern = path.replace("{label}", "1").replace("{name}", "n1").replace("{id}", "99");
            let is_tested = TABLE.iter().any(|(tested, at, _)| {
                tested.eq_ignore_ascii_case(method)
                    && (at.split('?').next() == Some(&pattern[..])
                        || at.split('?').next() == Some(&pattern.replace('1', "99")[..]))
            });
            let is_cancel = method == "delete" && path == "/v1/jobs/{label}";
            assert!(is_tested || is_cancel, "{method} {path} is not in the table of this test");
        }
    }
}

/// Whether a value has exactly the keys that its schema names, and all that are required.
fn check_schema(name: &str, value: &Value) {
    let document = bedplate_daemon::openapi_document();
    let schema = &document["components"]["schemas"][name];
    let known = schema["properties"].as_object().unwrap_or_else(|| panic!("{name} has properties"));
    for key in value.as_object().unwrap().keys() {
        assert!(known.contains_key(key), "{name} does not have {key}");
    }
    for key in schema["required"].as_array().into_iter().flatten() {
        assert!(value.get(key.as_str().unwrap()).is_some(), "{name} lacks {key}: {value}");
    }
}

#[test]
fn answers_have_the_keys_of_their_schemas() {
    let daemon = Daemon::start();
    let mut admin = daemon.admin();
    check_schema("Submitted", &admin.submit(JOB).json());
    check_schema("Jobs", &admin.get("/v1/jobs").json());
    check_schema("Job", &admin.get("/v1/jobs").json()["jobs"][0]);
    check_schema("Job", &admin.get("/v1/jobs?ended=true").json()["jobs"][0]);
    check_schema("JobDetail", &admin.get("/v1/jobs/1").json());
    check_schema("Explanation", &admin.get("/v1/jobs/1/explain").json());
    check_schema("Nodes", &admin.get("/v1/nodes").json());
    check_schema("Node", &admin.get("/v1/nodes").json()["nodes"][0]);
    check_schema("NodeDetail", &admin.get("/v1/nodes/n1").json());
    check_schema("Node", &admin.post("/v1/nodes/n1/drain", &json!({ "reason": "tests" })).json());
    check_schema("Usage", &admin.get("/v1/usage").json());
    check_schema("Cluster", &admin.get("/v1/cluster").json());
    check_schema("Tokens", &admin.get("/v1/tokens").json());
    check_schema("MadeToken", &admin.post("/v1/tokens", &json!({ "user": "ada", "role": "user" })).json());

    check_schema("Pruned", &admin.post("/v1/history/prune", &json!({ "keep": 0, "dry_run": true })).json());
    check_schema("Revoked", &admin.delete("/v1/tokens/2").json());
    check_schema("Ordered", &admin.delete("/v1/jobs/1").json());
    check_schema("Health", &admin.get("/healthz").json());
    check_schema("Version", &admin.get("/version").json());
    check_schema("Error", &admin.get("/nothing").json());
}

#[test]
fn jobs_come_in_pages_and_ended_ones_from_the_history() {
    let daemon = Daemon::start();
    let mut ada = daemon.client("ada", "user");
    let mut bob = daemon.client("bob", "user");
    for at in 0..7 {
        let client = if at % 2 == 0 { &mut ada } else { &mut bob };
        assert_eq!(client.submit(JOB).json()["id"], at + 1);
    }
    let ids = |answer: &Value| -> Vec<u64> {
        answer["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_u64().unwrap()).collect()
    };
    let first = ada.get("/v1/jobs?limit=5").json();
    assert_eq!((ids(&first), &first["next"]), (vec![1, 2, 3, 4, 5], &json!(5)));
    let second = ada.get("/v1/jobs?limit=5&after=5").json();
    assert_eq!((ids(&second), &second["next"]), (vec![6, 7], &Value::Null));
    assert_eq!(ids(&ada.get("/v1/jobs?user=bob").json()), [2, 4, 6]);
    assert_eq!(ada.delete("/v1/jobs/3").status, 200);
    assert_eq!(ids(&ada.get("/v1/jobs?state=waiting").json()), [1, 2, 4, 5, 6, 7]);
    assert_eq!(ids(&ada.get("/v1/jobs?ended=true&limit=3").json()), [7, 6, 5]);
    assert_eq!(ids(&ada.get("/v1/jobs?ended=true&state=cancelled").json()), [3]);
    assert_eq!(ada.get("/v1/jobs/3").json()["state"], "cancelled");
    assert_eq!(ada.delete("/v1/jobs/3").status, 409);
    assert_eq!(ada.delete("/v1/jobs/2").code(), "api/forbidden");
    assert_eq!(ada.get("/v1/jobs/2").json().get("text"), None, "other people's job files are not shown");
    assert!(ada.get("/v1/jobs/1").json()["text"].is_string());
}

#[test]
fn a_key_makes_a_repeated_submission_the_same_job() {
    let mut daemon = Daemon::start();
    let headers = [("Content-Type", "application/toml"), ("Idempotency-Key", "k1")];
    let submit = |client: &mut Client| client.ask("POST", "/v1/jobs", &headers, JOB.as_bytes()).json();
    let mut ada = daemon.client("ada", "user");
    let first = submit(&mut ada);
    assert_eq!((&first["id"], &first["is_old"]), (&json!(1), &json!(false)));
    let second = submit(&mut ada);
    assert_eq!((&second["id"], &second["is_old"]), (&json!(1), &json!(true)));
    let other = submit(&mut daemon.client("bob", "user"));
    assert_eq!(other["id"], 2, "another user's key is another key");
    daemon.restart();
    let third = submit(&mut Client::connect(daemon.address, &ada.token));
    assert_eq!((&third["id"], &third["is_old"]), (&json!(1), &json!(true)));
}

#[test]
fn an_array_of_many_slices_is_held_released_and_cancelled_as_one() {
    let daemon = Daemon::start();
    let (mut ada, mut bob) = (daemon.client("ada", "user"), daemon.client("bob", "user"));
    ada.submit(&format!("{JOB}array = \"0-999\"\n"));
    for order in ["hold", "release"] {
        assert_eq!(bob.ask("POST", &format!("/v1/jobs/1/{order}"), &[], b"").status, 403);
        let done = ada.ask("POST", &format!("/v1/jobs/1/{order}"), &[], b"").json();
        assert_eq!(done["jobs"].as_array().map(Vec::len), Some(1_000), "{order}");
    }
    let found = ada.get("/v1/jobs?name=nothing&limit=5").json();
    assert_eq!((&found["jobs"], &found["next"]), (&json!([]), &json!(null)));
    let done = ada.delete("/v1/jobs/1").json();
    assert_eq!(done["jobs"].as_array().map(Vec::len), Some(1_000));
    assert_eq!(ada.delete("/v1/jobs/1").status, 409);
    assert_eq!(ada.delete("/v1/jobs/7777").status, 404);
}

#[test]
fn arrays_scripts_and_json_are_taken_in() {
    let daemon = Daemon::start();
    let mut ada = daemon.client("ada", "user");
    let array = ada.submit(&format!("{JOB}array = \"0-3\"\n")).json();
    assert_eq!((&array["id"], &array["count"]), (&json!(1), &json!(4)));
    assert_eq!(ada.get("/v1/jobs/1_2").json()["id"], 3);
    assert_eq!(ada.get("/v1/jobs/1").json()["tasks"].as_array().unwrap().len(), 4);
    assert_eq!(ada.delete("/v1/jobs/1").json()["jobs"], json!([1, 2, 3, 4]));
    let script = b"#!/bin/sh\n#SBATCH --nodes=2 --gpus-per-node=8\n#SBATCH --mail-type=END\nsrun hostname\n";
    let taken = ada.ask("POST", "/v1/jobs", &[("Content-Type", "text/x-shellscript")], script);
    assert_eq!(taken.status, 201, "{}", taken.text());
    assert!(!taken.json()["remarks"].as_array().unwrap().is_empty(), "{}", taken.text());
    let job = json!({ "name": "j", "command": ["true"], "nodes": 1 });
    assert_eq!(ada.post("/v1/jobs", &job).status, 201);
    let never = ada.submit("name = \"big\"\ncommand = [\"true\"]\nnodes = 3\ngpus_per_node = 8\n");
    assert_eq!((never.status, &never.code()[..]), (422, "api/never-runs"));
    let why = &never.json()["error"]["reason"];
    assert_eq!(
        (&why["code"], &why["needed"], &why["matching"]),
        (&json!("no_such_nodes"), &json!(3), &json!(2))
    );
    let endless = ada.submit(&format!("{JOB}array = \"0-99999\"\n"));
    assert_eq!(endless.status, 422, "{}", endless.text());
}

#[test]
fn explanations_say_why_a_job_waits() {
    let daemon = Daemon::start();
    let mut ada = daemon.client("ada", "user");
    assert_eq!(ada.submit(JOB).status, 201);
    let explained = ada.get("/v1/jobs/1/explain").json();
    let wait = &explained["wait"];
    assert_eq!((&wait["code"], &wait["needed"]), (&json!("resources"), &json!(1)), "{explained}");
    assert!(wait["text"].is_string(), "{explained}");
    let nodes = &explained["nodes"];
    assert_eq!(nodes["all"], nodes["out_of_service"], "no agent is linked: {explained}");
    assert_eq!(nodes["out"][0]["name"], "n1", "{explained}");
    let listed = ada.get("/v1/jobs").json()["jobs"][0]["waits_because"].clone();
    assert_eq!(
        (&listed["code"], &listed["needed"], &listed["gpus"]),
        (&json!("resources"), &json!(1), &json!(8))
    );
    ada.post("/v1/jobs/1/hold", &json!({}));
    let listed = ada.get("/v1/jobs").json()["jobs"][0]["waits_because"].clone();
    assert_eq!(listed["code"], "held", "{listed}");
    assert!(explained["priority"]["total"].is_i64(), "{explained}");
    assert_eq!(ada.delete("/v1/jobs/1").status, 200);
    assert_eq!(ada.get("/v1/jobs/1").json()["reason"]["code"], "cancelled");
    let refused = ada.delete("/v1/jobs/1").json();
    assert_eq!(refused["error"]["reason"]["job"], "1", "numbers of jobs are texts in reasons: {refused}");
}

#[test]
fn tokens_are_made_shown_once_and_revoked() {
    let daemon = Daemon::start();
    let mut admin = daemon.admin();
    let made = admin.post("/v1/tokens", &json!({ "user": "ada", "role": "user", "expires_s": 3600 })).json();
    let secret = made["token"].as_str().unwrap();
    let mut ada = Client::connect(daemon.address, secret);
    assert_eq!(ada.get("/v1/jobs").status, 200);
    let list = admin.get("/v1/tokens");
    assert!(!list.text().contains(secret));
    let journal = std::fs::read(daemon.folder.path().join("journal.sqlite")).unwrap();
    assert!(!journal.windows(secret.len()).any(|window| window == secret.as_bytes()));
    assert_eq!(admin.delete(&format!("/v1/tokens/{}", made["id"])).status, 200);
    assert_eq!(ada.get("/v1/jobs").status, 401);
    let expired = admin.post("/v1/tokens", &json!({ "user": "ada", "role": "user", "expires_s": 0 })).json();
    let mut late = Client::connect(daemon.address, expired["token"].as_str().unwrap());
    assert_eq!(late.get("/v1/jobs").status, 401);
    let first = admin.get("/v1/tokens").json()["tokens"][0]["id"].clone();
    assert_eq!(admin.delete(&format!("/v1/tokens/{first}")).status, 409, "nobody could make another one");
    for wrong in [
        json!({ "role": "user" }),
        json!({ "user": "a/b", "role": "user" }),
        json!({ "user": "a", "role": "god" }),
    ] {
        assert_eq!(admin.post("/v1/tokens", &wrong).status, 400, "{wrong}");
    }
}

#[test]
fn the_daemon_ends_when_it_is_told_and_withdraws_its_address() {
    let mut daemon = Daemon::start();
    let announced = bedplate_daemon::Whereabouts::read(daemon.folder.path()).unwrap().unwrap();
    assert_eq!((announced.port, announced.pid), (daemon.address.port(), std::process::id()));
    assert_eq!(daemon.admin().submit(JOB).status, 201);
    assert_eq!(daemon.admin().post("/v1/shutdown", &json!({ "jobs": "stop" })).status, 202);
    daemon.running.take().unwrap().wait().unwrap();
    assert_eq!(bedplate_daemon::Whereabouts::read(daemon.folder.path()).unwrap(), None);
    let running = bedplate_daemon::start(crate::support::options(&daemon.folder)).unwrap();
    daemon.address = running.address();
    daemon.running = Some(running);
    assert_eq!(daemon.admin().get("/v1/jobs/1").json()["state"], "waiting", "it is there when the daemon is");
}

#[test]
fn metrics_have_names_with_units_and_count() {
    let daemon = Daemon::start();
    let mut admin = daemon.admin();
    assert_eq!(admin.submit(JOB).status, 201);
    assert_eq!(admin.submit("nonsense").status, 400);
    let text = wait_for("the requests are counted", || {
        let text = admin.get("/metrics").text();
        text.contains("bedplate_http_requests_total{method=\"POST\",path=\"/v1/jobs\",status=\"400\"} 1")
            .then_some(text)
    });
    for line in [
        "bedplate_submissions_total 1",
        "bedplate_submissions_refused_total 1",
        "bedplate_jobs{state=\"waiting\"} 1",
        "bedplate_nodes{state=\"down\"} 2",
        "bedplate_gpus 16",
        "bedplate_links 0",
        "bedplate_http_requests_total{method=\"POST\",path=\"/v1/jobs\",status=\"201\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    for name in [
        "bedplate_journal_commit_seconds_bucket",
        "bedplate_control_turn_seconds_sum",
        "bedplate_resident_memory_bytes",
    ] {
        assert!(text.contains(name), "{name}");
    }
}
