//! The client of the daemon against a server that answers what it is told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use bedplate_diag::Diagnostic;
use bedplate_drivers::{
    ClusterEvent, ClusterPlace, Driver, DriverError, JobFormat, JobId, JobOrder, JobQuery, JobState, Local,
    LogQuery, Watched,
};

/// What a connection does: answers in order, then closes.
type Script = Vec<&'static str>;

/// Serves each connection by the next script; hands over the requests.
fn server(scripts: Vec<Script>) -> (ClusterPlace, Receiver<String>) {
    let (place, requests, _) = server_that_tells(scripts);
    (place, requests)
}

/// The same, which also tells each connection that it has closed.
fn server_that_tells(scripts: Vec<Script>) -> (ClusterPlace, Receiver<String>, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("the test speaks with itself");
    let address = listener.local_addr().expect("the test speaks with itself").to_string();
    let (send, requests) = channel();
    let (close, closed) = channel();
    thread::spawn(move || {
        for script in scripts {
            let (stream, _) = listener.accept().expect("the test speaks with itself");
            let mut reader = BufReader::new(stream);
            for answer in script {
                let Some(request) = read_request(&mut reader) else { break };
                let _ = send.send(request);
                reader.get_mut().write_all(answer.as_bytes()).expect("the test speaks with itself");
            }
            drop(reader);
            let _ = close.send(());
        }
    });
    (ClusterPlace { address, fingerprint: None, token: "secret".into() }, requests, closed)
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().expect("the test speaks with itself");
        }
        if line == "\r\n" {
            break;
        }
        head += &line;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(head + &String::from_utf8(body).expect("the test speaks with itself"))
}

const JOB: &str = r#"{"id":7,"label":"7","name":"n","user":"u","account":"root","partition":"main","qos":"normal","submitted_ms":5,"state":"running","is_held":false,"runs":1,"restarts":0,"checkpoint":null,"started_ms":6,"ended_ms":null,"exit_status":null,"reason":null,"nodes_asked":2,"gpus_asked":16,"nodes":["n1","n2"],"ends_ms":9,"expected_start_ms":null}"#;

fn answer(status: &str, body: &str) -> &'static str {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).leak()
}

#[test]
fn a_submission_carries_token_key_and_type_and_the_connection_is_kept() {
    let taken = answer("201 Created", r#"{"id":12,"label":"12","count":1,"is_old":false,"remarks":[]}"#);
    let (place, requests) = server(vec![vec![taken, answer("204 No Content", "")]]);
    let local = Local::new(place);
    let submitted = local.submit_text(JobFormat::Toml, "name = \"x\"", "key-1").unwrap();
    assert_eq!((submitted.id.as_str(), submitted.count), ("12", 1));
    assert_eq!(submitted.jobs, [JobId::from("12")]);
    local.order(&"12_3".into(), JobOrder::Hold).unwrap();
    let first = requests.recv().unwrap();
    assert!(first.starts_with("POST /v1/jobs HTTP/1.1\r\n"), "{first}");
    for line in ["authorization: Bearer secret", "content-type: application/toml", "idempotency-key: key-1"] {
        assert!(first.contains(line), "{first}");
    }
    assert!(first.ends_with("name = \"x\""), "{first}");
    assert!(requests.recv().unwrap().starts_with("POST /v1/jobs/12_3/hold "));
}

#[test]
fn what_passes_is_waited_out_and_a_closed_connection_is_replaced() {
    let busy = answer("503 Service Unavailable", r#"{"error":{"code":"api/busy","message":"disk full"}}"#);
    let nodes = answer("200 OK", r#"{"nodes":[]}"#);
    // The first connection is kept after `busy`, answers, and is closed before the second question.
    let (place, requests, closed) = server_that_tells(vec![vec![busy, nodes], vec![nodes]]);
    let local = Local::new(place);
    assert!(local.nodes().unwrap().is_empty());
    closed.recv().unwrap();
    assert!(local.nodes().unwrap().is_empty());
    assert_eq!(requests.iter().take(3).count(), 3);
}

#[test]
fn nobody_listening_is_transient_and_a_refusal_keeps_its_words() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let nobody = Local::new(ClusterPlace { address: closed, fingerprint: None, token: String::new() })
        .with_patience(Duration::from_millis(50));
    assert!(matches!(nobody.nodes(), Err(DriverError::Unreachable { .. })));

    let no = r#"{"error":{"code":"api/no-such-job","message":"there is no job 9","help":"look","reason":{"code":"no_such_job","text":"there is no job 9","job":9}}}"#;
    let (place, _requests) =
        server(vec![vec![answer("404 Not Found", no), answer("403 Forbidden", no), "SSH-2.0\r\n\r\n"]]);
    let local = Local::new(place);
    let refused = local.job(&"9".into()).unwrap_err();
    assert!(refused.is_refusal());
    assert_eq!(refused.to_string(), "there is no job 9");
    assert_eq!(refused.reason().unwrap().fields["job"], 9);
    assert!(matches!(local.job(&"9".into()), Err(DriverError::NotAllowed { .. })));
}

#[test]
fn something_else_at_the_port_is_said_so() {
    let (place, _requests) = server(vec![vec!["SSH-2.0-OpenSSH\r\n\r\n"], vec![answer("200 OK", "<html>")]]);
    let local = Local::new(place);
    assert!(matches!(local.nodes(), Err(DriverError::NotUnderstood { .. })));
    assert!(matches!(local.nodes(), Err(DriverError::NotUnderstood { .. })));
}

#[test]
fn jobs_come_page_by_page() {
    let first = answer("200 OK", &format!(r#"{{"jobs":[{JOB}],"next":7}}"#));
    let last = answer("200 OK", &format!(r#"{{"jobs":[{JOB}],"next":null}}"#));
    let (place, requests) = server(vec![vec![first, last]]);
    let query = JobQuery {
        states: vec![JobState::Running, JobState::Waiting],
        user: Some("a b".into()),
        with_ended: true,
        ..JobQuery::default()
    };
    let jobs = Local::new(place).jobs(&query).unwrap();
    assert_eq!(jobs.len(), 2);
    assert_eq!((jobs[0].life.state, jobs[0].nodes.len()), (JobState::Running, 2));
    let asked = requests.recv().unwrap();
    assert!(
        asked.starts_with("GET /v1/jobs?limit=1000&state=running,waiting&user=a%20b&ended=true HTTP"),
        "{asked}"
    );
    assert!(requests.recv().unwrap().contains("&after=7 "));
}

#[test]
fn a_job_is_told_with_its_runs_and_notes() {
    let told = JOB.replace(
        r#""runs":1"#,
        r#""runs":[{"number":1},{"number":3}],"notes":[{"at_ms":4,"job":7,"node":null,"text":"began"}],"text":"name = 1""#,
    );
    let (place, _requests) = server(vec![vec![answer("200 OK", &told)]]);
    let detail = Local::new(place).job(&"7".into()).unwrap();
    assert_eq!((detail.summary.life.runs, detail.runs.len(), detail.notes.len()), (3, 2, 1));
    assert_eq!(detail.text.as_deref(), Some("name = 1"));
    let again = serde_json::to_value(&detail).unwrap();
    assert_eq!(serde_json::from_value::<bedplate_drivers::JobDetail>(again).unwrap(), detail);
}

#[test]
fn a_log_in_chunks_is_copied_and_says_where_it_goes_on() {
    let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nBedplate-Next-Offset: 31\r\n\r\n\
                  5\r\nhello\r\n6;x=1\r\n world\r\n0\r\n\r\n";
    let (place, requests) = server(vec![vec![chunks, answer("200 OK", r#"{"nodes":[]}"#)]]);
    let local = Local::new(place);
    let mut text = Vec::new();
    let query = LogQuery { rank: 3, follow: true, ..LogQuery::default() };
    assert_eq!(local.logs(&"7".into(), &query, &mut text).unwrap(), 31);
    assert_eq!(text, b"hello world");
    assert!(local.nodes().unwrap().is_empty(), "the connection goes on after the last chunk");
    let asked = requests.recv().unwrap();
    assert!(asked.starts_with("GET /v1/jobs/7/logs?rank=3&stream=stdout&offset=0&follow=true "), "{asked}");
}

#[test]
fn a_log_that_breaks_off_is_not_taken_for_a_whole_one() {
    let torn = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhel";
    let (place, _requests) = server(vec![vec![torn]]);
    let mut text = Vec::new();
    let outcome = Local::new(place).logs(&"7".into(), &LogQuery::default(), &mut text);
    assert!(matches!(outcome, Err(DriverError::Unreachable { .. })));
    assert_eq!(text, b"hel");
}

#[test]
fn watching_hands_over_events_until_enough_was_seen() {
    let stream = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: hello\n\n\
                  event: job\ndata: {\"type\":\"job\",\"job\":7,\"state\":\"running\",\"at_ms\":4}\n\n\
                  event: news\ndata: {\"type\":\"of-tomorrow\"}\n\n\
                  event: job\ndata: {\"type\":\"job\",\"job\":7,\"state\":\"succeeded\",\"at_ms\":5}\n\n";
    let (place, _requests) = server(vec![vec![stream]]);
    let mut states = Vec::new();
    let watched = Watched { job: Some("7".into()), node: None };
    let mut see = |seen| match seen {
        ClusterEvent::Job { state, .. } => {
            states.push(state);
            if state.is_final() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
        _ => ControlFlow::Continue(()),
    };
    Local::new(place).watch(&watched, &mut see).unwrap();
    assert_eq!(states, [JobState::Running, JobState::Succeeded]);
}
