//! Server-sent events.

use serde_json::json;

use crate::support::{Client, Daemon, JOB};

#[test]
fn watchers_see_what_happens_to_their_job_in_order() {
    let daemon = Daemon::start();
    let mut ada = daemon.client("ada", "user");
    assert_eq!(ada.submit(JOB).status, 201);
    assert_eq!(ada.submit(JOB).status, 201);
    let mut watcher = ada.again();
    watcher.send("GET", "/v1/events?job=2", &[], b"");
    let head = watcher.read_head();
    assert_eq!((head.status, &head.headers["content-type"][..]), (200, "text/event-stream"));
    assert_eq!(ada.delete("/v1/jobs/1").status, 200);
    assert_eq!(ada.delete("/v1/jobs/2").status, 200);
    let (kind, note) = watcher.read_event().unwrap();
    assert_eq!((&kind[..], &note["job"], &note["text"]), ("note", &json!(2), &json!("cancelled by ada")));
    let (kind, notice) = watcher.read_event().unwrap();
    assert_eq!((&kind[..], &notice["job"], &notice["state"]), ("job", &json!(2), &json!("cancelled")));
}

#[test]
fn who_comes_back_gets_what_was_missed() {
    let daemon = Daemon::start();
    let mut ada = daemon.client("ada", "user");
    let mut watcher = ada.again();
    watcher.send("GET", "/v1/events", &[], b"");
    watcher.read_head();
    for _ in 0..3 {
        assert_eq!(ada.submit(JOB).status, 201);
    }
    let mut first = None;
    while first.is_none() {
        let chunk = String::from_utf8(watcher.read_chunk().unwrap()).unwrap();
        first = chunk.lines().find_map(|line| line.strip_prefix("id: ")).map(str::to_owned);
    }
    drop(watcher);
    let mut back = ada.again();
    back.send("GET", "/v1/events", &[("Last-Event-ID", &first.unwrap())], b"");
    back.read_head();
    for job in [2, 3] {
        assert_eq!(back.read_event().unwrap().1["job"], job);
    }
    let mut stranger = ada.again();
    stranger.send("GET", "/v1/events", &[("Last-Event-ID", "1.0")], b"");
    stranger.read_head();
    assert_eq!(stranger.read_event().unwrap().0, "gap");
}

#[test]
fn what_a_token_opened_ends_with_it() {
    let daemon = Daemon::start();
    let mut admin = daemon.admin();
    let made = admin.post("/v1/tokens", &json!({ "user": "ada", "role": "user" })).json();
    let mut ada = Client::connect(daemon.address, made["token"].as_str().unwrap());
    assert_eq!(ada.submit(JOB).status, 201);
    let mut watcher = ada.again();
    watcher.send("GET", "/v1/events", &[], b"");
    watcher.read_head();
    let mut follower = ada.again();
    follower.send("GET", "/v1/jobs/1/logs?follow=true", &[], b"");
    follower.read_head();
    assert_eq!(admin.delete(&format!("/v1/tokens/{}", made["id"])).status, 200);
    assert_eq!(watcher.read_event(), None);
    assert_eq!(follower.read_chunk(), None);
}

#[test]
fn a_watcher_that_does_not_read_is_dropped_and_holds_nobody_up() {
    let daemon = Daemon::start_with(|options| options.limits.events_behind = 16);
    let mut ada = daemon.client("ada", "user");
    let mut watcher = ada.again();
    watcher.send("GET", "/v1/events", &[], b"");
    watcher.read_head();
    // Far more than its queue and the buffers of the sockets take.
    let array = format!("{JOB}array = \"0-4999\"\n");
    for _ in 0..20 {
        assert_eq!(ada.submit(&array).status, 201);
    }
    let mut last = None;
    while let Some((kind, _)) = watcher.read_event() {
        last = Some(kind);
    }
    assert_eq!(last.as_deref(), Some("dropped"));
}
