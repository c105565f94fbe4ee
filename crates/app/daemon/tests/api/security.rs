//! The tables of SECURITY.md are true.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::support::{Answer, Client, Daemon, JOB};

const PAGE: &str = include_str!("../../../../../SECURITY.md");

/// The rows of the table below a heading, without their head: cells by the names of their columns.
fn table(heading: &str) -> Vec<BTreeMap<String, String>> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with(heading)).unwrap();
    let mut lines = section.lines().filter(|line| line.starts_with('|'));
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
    };
    let names = cells(lines.next().unwrap());
    lines.skip(1).map(|line| names.iter().cloned().zip(cells(line)).collect()).collect()
}

/// A body that the request would take.
fn body(path: &str) -> String {
    match path.rsplit('/').next().unwrap_or_default() {
        "jobs" => JOB.to_owned(),
        "chaos" => json!({ "kind": "probe", "fails": false }).to_string(),
        "tokens" => json!({ "user": "eve", "role": "reader" }).to_string(),
        "prune" => json!({ "dry_run": true }).to_string(),
        "drain" => json!({ "reason": "a test" }).to_string(),
        "shutdown" => json!({ "jobs": "leave" }).to_string(),
        _ => String::new(),
    }
}

fn ask(client: &mut Client, request: &str, job: u64) -> Answer {
    let (method, path) = request.split_once(' ').unwrap();
    let path = path.replace("{job}", &job.to_string());
    let kind = if path == "/v1/jobs" { "application/toml" } else { "application/json" };
    let body = body(&path);
    let mut headers = vec![("Content-Type", kind)];
    if path.ends_with("/link") {
        headers = vec![("Connection", "Upgrade"), ("Upgrade", "bedplate-link")];
    }
    client.again().ask(method, &path, &headers, body.as_bytes())
}

fn is_allowed(answer: &Answer) -> bool {
    !matches!(answer.status, 401 | 403)
}

#[test]
fn each_role_may_what_the_table_says() {
    let daemon = Daemon::start();
    let mut clients: BTreeMap<&str, Client> = ["agent", "reader", "user", "operator"]
        .into_iter()
        .map(|role| (role, daemon.client(if role == "agent" { "n1" } else { "ada" }, role)))
        .collect();
    clients.insert("admin", daemon.admin());
    clients.insert("nobody", Client::connect(daemon.address, ""));
    let others = daemon.client("bob", "user");
    let submit = || others.again().submit(JOB).json()["id"].as_u64().unwrap();
    let rows = table("What each role may do over the API");
    assert!(rows.len() > 15, "{rows:?}");
    for row in rows {
        let request = &row["request"];
        for (role, client) in &mut clients {
            let wanted = &row[*role];
            if request.ends_with("/shutdown") && wanted == "yes" {
                continue;
            }
            let of_others = ask(client, request, submit());
            let what = format!("{role}: {request}: {} {}", of_others.status, of_others.text());
            assert_eq!(is_allowed(&of_others), wanted == "yes", "{what}");
            if wanted == "own" {
                let own = client.again().submit(JOB).json()["id"].as_u64().unwrap();
                assert!(is_allowed(&ask(client, request, own)), "{what}");
            }
        }
    }
}

#[test]
fn every_file_of_the_daemon_is_in_the_table_with_its_mode() {
    let daemon = Daemon::start_with(|options| options.tls = true);
    let rows = table("What is in the state directory");
    let modes: BTreeMap<&str, u32> =
        rows.iter().map(|row| (&row["file"][..], u32::from_str_radix(&row["mode"], 8).unwrap())).collect();
    let mut seen = 0;
    for entry in fs::read_dir(daemon.folder.path()).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        // The umask of the program makes it so for files of SQLite, which this test does not set.
        let wanted = modes.get(&name[..]).copied();
        let is_of_sqlite = name.starts_with("journal.sqlite");
        assert!(
            wanted == Some(mode) || is_of_sqlite && wanted == Some(0o600),
            "{name}: {mode:o}, {wanted:?}"
        );
        seen += 1;
    }
    assert_eq!(seen, modes.len(), "the table names files that are not there: {modes:?}");
}

#[test]
fn the_threads_by_whose_work_a_supervisor_tells_slow_from_dead_have_those_names() {
    let _daemon = Daemon::start();
    let tasks = || fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = || tasks().filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    for wanted in bedplate_local::WORKING_THREADS {
        assert!(names().any(|name| name.trim() == wanted), "{wanted}: {:?}", names().collect::<Vec<_>>());
    }
}
