//! Those who misbehave: wrong sizes, wrong types, tricks in paths, and clients that dawdle.

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::json;

use crate::support::{Client, Daemon, JOB};

/// Headers, body, and the status and code that are answered; an empty code stands for any.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a [u8], u16, &'a str);

#[test]
fn bodies_that_are_too_large_malformed_or_of_another_type_are_refused() {
    let daemon = Daemon::start();
    let mut ada = daemon.client("ada", "user");
    let large = vec![b'#'; (1 << 20) + 1];
    let toml = [("Content-Type", "application/toml")];
    let cases: [Case<'_>; 8] = [
        (&toml, &large, 413, "api/too-large"),
        (&toml, b"\xff\xfe", 400, "api/malformed"),
        (&toml, b"name = ", 400, ""),
        (&toml, b"", 400, ""),
        (&[("Content-Type", "application/json")], b"[1]", 400, ""),
        (&[("Content-Type", "text/html")], b"<p>", 415, "api/wrong-type"),
        (&[], b"name = \"a\"", 415, "api/wrong-type"),
        (&[("Content-Type", "text/x-shellscript")], b"no script", 400, "job/not-a-script"),
    ];
    for (headers, body, status, code) in cases {
        let answer = ada.again().ask("POST", "/v1/jobs", headers, body);
        assert_eq!(answer.status, status, "{}", answer.text());
        let found = answer.code();
        assert!(found == code || code.is_empty() && !found.is_empty(), "{found} {code}");
    }
    let chunked = [("Content-Type", "application/toml"), ("Transfer-Encoding", "chunked")];
    let mut endless = ada.again();
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n{}: {}\r\n{}: {}\r\n\r\n",
        endless.token, chunked[0].0, chunked[0].1, chunked[1].0, chunked[1].1
    );
    endless.stream.get_mut().write_all(head.as_bytes()).unwrap();
    let piece = [b"10000\r\n".as_slice(), &vec![b'#'; 0x10000], b"\r\n"].concat();
    for _ in 0..40 {
        if endless.stream.get_mut().write_all(&piece).is_err() {
            break;
        }
    }
    assert_eq!(endless.read_head().status, 413);
    for key in ["", "\u{e4}", &"k".repeat(129)] {
        let headers = [("Content-Type", "application/toml"), ("Idempotency-Key", key)];
        assert_eq!(ada.ask("POST", "/v1/jobs", &headers, JOB.as_bytes()).status, 400, "key `{key}`");
    }
    assert_eq!(ada.get("/v1/jobs").json()["jobs"], json!([]), "nothing was taken in");
}

#[test]
fn large_job_files_are_read_like_small_ones() {
    let daemon = Daemon::start();
    let mut ada = daemon.client("ada", "user");
    let variables: String = (0..5_000).map(|number| format!("V{number} = \"{number:020}\"\n")).collect();
    let large = format!("{JOB}[environment]\n{variables}");
    let accepted = ada.submit(&large);
    assert_eq!(accepted.status, 201, "{}", accepted.text());
    assert!(ada.get("/v1/jobs/1").json()["text"].as_str().unwrap().contains("V4999"));
    let refused = ada.submit(&format!("{large}V1 = \"again\"\n"));
    assert_eq!(refused.status, 400, "{}", refused.text());
}

#[test]
fn tricks_in_paths_and_queries_lead_nowhere() {
    let daemon = Daemon::start();
    let mut admin = daemon.admin();
    assert_eq!(admin.submit(JOB).status, 201);
    let long = "1".repeat(5000);
    for (path, status) in [
        ("/v1/jobs/..", 400),
        ("/v1/jobs/%2e%2e/logs", 400),
        ("/v1/jobs/..%2f..%2fadmin.token/logs", 400),
        ("/v1/jobs/1%00/logs", 400),
        ("/v1/jobs/1%0d%0aX:%20y", 400),
        ("/v1/jobs/1/../../admin.token", 404),
        ("/v1/jobs/-1", 404),
        ("/v1/jobs/1_", 404),
        ("/v1/jobs/_1", 404),
        ("/v1/jobs/99999999999999999999999", 404),
        ("/v1/jobs/1/logs?stream=../../admin.token", 400),
        ("/v1/jobs/1/logs?rank=-1", 400),
        ("/v1/jobs/1/logs?rank=1e9", 400),
        ("/v1/jobs/1/logs?offset=99999999999999999999999", 400),
        ("/v1/jobs/1/logs?path=/etc/passwd", 400),
        ("/v1/nodes/..%2f", 400),
        ("/v1/nodes/n1%2fdrain", 400),
        ("/v1/jobs?limit=999999999", 200),
        ("/v1/jobs?limit=-1", 400),
        ("/v1/jobs?state=nothing", 400),
        ("/v1/jobs?limt=1", 400),
        ("/v1/jobs?limit=1&limit=2", 400),
        ("/v1/usage?by=password", 400),
        ("//v1/jobs", 404),
    ] {
        assert_eq!(admin.get(path).status, status, "{path}");
    }
    assert_eq!(admin.get(&format!("/v1/jobs/{long}")).status, 400);
}

#[test]
fn heads_that_are_too_large_or_no_http_end_the_connection() {
    let daemon = Daemon::start();
    let mut client = Client::connect(daemon.address, "");
    let head = format!("GET /healthz HTTP/1.1\r\nHost: a\r\nX-Long: {}\r\n\r\n", "x".repeat(20_000));
    client.stream.get_mut().write_all(head.as_bytes()).unwrap();
    assert_eq!(client.read_head().status, 431);
    let mut other = Client::connect(daemon.address, "");
    other.stream.get_mut().write_all(b"\x16\x03\x01 this is no HTTP\r\n\r\n").unwrap();
    assert!(other.read_line().is_none_or(|line| line.contains("400")));
    assert_eq!(Client::connect(daemon.address, "").get("/healthz").status, 200);
}

#[test]
fn wrong_tokens_are_slowed_down_and_good_ones_are_not() {
    let daemon = Daemon::start_with(|options| options.limits.refusals_per_second = 5.0);
    let mut guesser = Client::connect(daemon.address, "bp_0000");
    let statuses: Vec<u16> = (0..50).map(|_| guesser.get("/v1/jobs").status).collect();
    assert_eq!(statuses[0], 401);
    assert!(statuses.contains(&429), "{statuses:?}");
    assert_eq!(daemon.admin().get("/v1/jobs").status, 200);
    for token in ["", "x", "bp_", "bp_\u{e4}"] {
        let status = Client::connect(daemon.address, token).get("/v1/jobs").status;
        assert!([401, 429].contains(&status), "{token}: {status}");
    }
}

#[test]
fn a_client_has_so_many_requests_under_way() {
    let daemon = Daemon::start_with(|options| options.limits.requests_at_once_per_client = 3);
    let ada = daemon.client("ada", "reader");
    let mut watchers: Vec<Client> = (0..3).map(|_| ada.again()).collect();
    for watcher in &mut watchers {
        watcher.send("GET", "/v1/events", &[], b"");
        assert_eq!(watcher.read_head().status, 200);
    }
    let refused = ada.again().get("/v1/jobs");
    assert_eq!((refused.status, &refused.code()[..]), (429, "api/too-many-requests"));
    assert_eq!(daemon.client("bob", "reader").get("/v1/jobs").status, 200);
    drop(watchers);
    bedplate_testkit::wait_for("its requests have ended", || {
        (ada.again().get("/v1/jobs").status == 200).then_some(())
    });
}

#[test]
fn who_sends_a_head_or_a_body_byte_by_byte_is_cut_off() {
    let daemon = Daemon::start_with(|options| {
        options.limits.head = Duration::from_millis(300);
        options.limits.body = Duration::from_millis(300);
        options.limits.idle = Duration::from_millis(600);
    });
    let token = daemon.admin().token;
    for (what, begin) in [
        ("a head", "GET /v1/jobs HTTP/1.1\r\nHost: a\r\nX-Slow: ".to_owned()),
        ("nothing", String::new()),
        (
            "a body",
            format!(
                "POST /v1/jobs HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\nContent-Type: application/toml\r\nContent-Length: 900000\r\n\r\n"
            ),
        ),
    ] {
        let mut slow = Client::connect(daemon.address, "");
        slow.stream.get_mut().write_all(begin.as_bytes()).unwrap();
        let trickle = slow.stream.get_ref().try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            let mut trickle = trickle;
            // Idle connections send nothing at all.
            while what != "nothing" && trickle.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let mut rest = Vec::new();
        let ended = slow.stream.read_to_end(&mut rest);
        let text = String::from_utf8_lossy(&rest);
        let is_cut =
            ended.is_ok() || ended.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock);
        assert!(is_cut, "{what}: the connection is still open");
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 408"), "{what}: {text}");
        drop(slow);
        writer.join().unwrap();
    }
    assert_eq!(daemon.admin().get("/v1/jobs").status, 200);
}
