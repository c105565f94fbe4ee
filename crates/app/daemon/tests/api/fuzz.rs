//! Requests and lines of agents with mistakes in every place: no 500, no panic, bounded memory, and the daemon goes on serving.
//!
//! `BEDPLATE_FUZZ_REQUESTS=100000 cargo test --release -p bedplate-daemon --test api -- --nocapture fuzz` tries as many of each instead of a sample.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use bedplate_control::wire::{Checkpoint, FromAgent, HeldPhase, HeldRun, NodeEnd, RankEnd, RunId, Unready};
use bedplate_host::memory::own_resident_bytes;
use bedplate_report::Report;
use bedplate_testkit::Mutator;

use crate::agents::{Agent, token};
use crate::support::{Client, Daemon, JOB};

const SAMPLE: usize = 1_500;
/// What the daemon may hold more than before, whatever was asked.
const MOST_MORE_MIB: u64 = 256;

fn count() -> usize {
    let wanted = std::env::var("BEDPLATE_FUZZ_REQUESTS").ok().and_then(|count| count.parse().ok());
    wanted.unwrap_or(SAMPLE)
}

fn resident_mib() -> u64 {
    own_resident_bytes().unwrap_or(0) >> 20
}

/// Tells of the memory while something is done to the daemon, and holds it to its bound.
struct Memory {
    before: u64,
    most: u64,
}

impl Memory {
    fn new() -> Self {
        Self { before: resident_mib(), most: 0 }
    }

    fn look(&mut self) {
        self.most = self.most.max(resident_mib());
        assert!(self.most <= self.before + MOST_MORE_MIB, "{} MiB after {}", self.most, self.before);
    }

    fn tell(&self, what: &str, requests: usize) {
        let Self { before, most } = self;
        writeln!(std::io::stdout(), "{what}: {requests}, at most {most} MiB, {before} before")
            .expect("it can be written");
    }
}

/// Method, path, content type and body of requests that are good.
const GOOD: [(&str, &str, &str, &str); 22] = [
    ("POST", "/v1/jobs", "application/toml", JOB),
    (
        "POST",
        "/v1/jobs",
        "application/toml",
        "name = \"a\"\ncommand = [\"true\"]\narray = \"0-9%2\"\nhold = true\n",
    ),
    (
        "POST",
        "/v1/jobs",
        "application/toml",
        "name = \"a\"\nscript = \"#!/bin/sh\"\ndependencies = [\"afterok:1\"]\n[[role]]\nname = \"r\"\nnodes = 2\nelastic = { min = 1, max = 4 }\n",
    ),
    (
        "POST",
        "/v1/jobs",
        "application/json",
        r#"{"name":"a","command":["true"],"environment":{"A":"b"},"time_limit":"1h","placement":{"preferred":"leaf"}}"#,
    ),
    (
        "POST",
        "/v1/jobs",
        "text/x-shellscript",
        "#!/bin/sh\n#SBATCH --nodes=2 --array=1-3 -t 1:00:00\n#SBATCH --dependency=afterok:1\nsrun true\n",
    ),
    ("GET", "/v1/jobs?state=waiting,running&user=ada&account=root&name=a&limit=5&after=3", "", ""),
    ("GET", "/v1/jobs?ended=true&limit=1000", "", ""),
    ("GET", "/v1/jobs/1", "", ""),
    ("GET", "/v1/jobs/2_1", "", ""),
    ("DELETE", "/v1/jobs/1", "", ""),
    ("POST", "/v1/jobs/2/hold", "", ""),
    ("POST", "/v1/jobs/2/release", "", ""),
    ("POST", "/v1/jobs/2/requeue", "", ""),
    ("GET", "/v1/jobs/1/explain", "", ""),
    ("GET", "/v1/jobs/1/logs?rank=0&stream=stdout&run=1&offset=0", "", ""),
    ("GET", "/v1/jobs/1/ranks", "", ""),
    ("GET", "/v1/nodes/n1", "", ""),
    ("POST", "/v1/nodes/n1/drain", "application/json", r#"{"reason":"test"}"#),
    ("POST", "/v1/nodes/n1/chaos", "application/json", r#"{"kind":"cut","for_ms":5000}"#),
    ("GET", "/v1/usage?by=day&since=1&until=2000000000000&user=ada&account=root", "", ""),
    ("GET", "/v1/cluster", "", ""),
    (
        "POST",
        "/v1/history/prune",
        "application/json",
        r#"{"older_than_s":7776000,"keep":100000,"dry_run":true}"#,
    ),
];

/// Text that can stand in the first line of a request.
fn in_line(bytes: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_graphic();
    let text = bytes.iter().copied().filter(is_plain).map(char::from);
    format!("/{}", text.collect::<String>().trim_start_matches('/'))
}

#[test]
fn fuzz_of_requests_ends_in_no_fault() {
    let daemon = Daemon::start_with(|options| options.limits.requests_per_second_per_client = 1e6);
    let mut ada = daemon.client("ada", "operator");
    let mut random = Mutator::new(1);
    let mut memory = Memory::new();
    let requests = count();
    for number in 0..requests {
        let (method, path, kind, body) = GOOD[random.below(GOOD.len())];
        if random.below(5) == 0 {
            send_raw(&daemon, &ada.token, (method, path, kind, body), &mut random);
            continue;
        }
        let changes_path = random.below(3) == 0;
        let path = if changes_path { in_line(&random.mutate(path.as_bytes())) } else { path.to_owned() };
        let body = if changes_path { body.as_bytes().to_vec() } else { random.mutate(body.as_bytes()) };
        if path.contains("follow") || path.starts_with("/v1/events") {
            continue;
        }
        let answer = ada.ask(method, &path, &[("Content-Type", kind)], &body);
        let text = String::from_utf8_lossy(&body).into_owned();
        assert!(answer.status < 500, "{method} {path} {text}: {}", answer.text());
        if answer.headers.get("connection").is_some_and(|value| value == "close") || answer.status == 413 {
            ada = ada.again();
        }
        if number % 256 == 0 {
            memory.look();
        }
    }
    is_well(&daemon);
    memory.look();
    memory.tell("requests", requests);
}

/// A request of which any byte may be wrong; nothing is sent after it.
fn send_raw(daemon: &Daemon, token: &str, good: (&str, &str, &str, &str), random: &mut Mutator) {
    let (method, path, kind, body) = good;
    let length = body.len();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let Ok(mut stream) = TcpStream::connect(daemon.address) else { panic!("nobody listens") };
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("it is not zero");
    let _ = stream.write_all(&random.mutate(text.as_bytes()));
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn fuzz_of_agents_ends_in_no_fault() {
    let daemon = Daemon::start();
    let mut random = Mutator::new(2);
    let mut memory = Memory::new();
    let lines = count();
    let (secret, other) = (token(&daemon, "n1"), token(&daemon, "n2"));
    let mut agent = None;
    let mut sent = 0;
    while sent < lines {
        let link = agent.get_or_insert_with(|| Agent::join(daemon.address, &secret, "n1", Vec::new()));
        let line = serde_json::to_string(&some_message(&mut random)).expect("it is JSON");
        let mut line = random.mutate(line.as_bytes());
        line.push(b'\n');
        sent += 1;
        // A link on which something is said that cannot be understood may be closed.
        if link.write(&line).is_err() || random.below(64) == 0 {
            agent = None;
        }
        if sent % 256 == 0 {
            memory.look();
        }
    }
    drop(agent);
    is_well(&daemon);
    // Another node joins and is given work.
    let mut well = Agent::join(daemon.address, &other, "n2", Vec::new());
    assert!(well.hear().is_some(), "n2 is heard");
    memory.look();
    memory.tell("lines of agents", lines);
}

fn some_message(random: &mut Mutator) -> FromAgent {
    let run = RunId { job: random.below(4) as u64, number: random.below(3) as u32 };
    let held = vec![HeldRun { run, phase: HeldPhase::Running, is_suspended: false }];
    match random.below(9) {
        0 => FromAgent::Heartbeat { sequence: random.below(100) as u64, held, findings: Vec::new() },
        1 => FromAgent::Prepared { run, master_port: Some(1) },
        2 => FromAgent::NotPrepared { run, why: Unready::Busy { why: "busy".into() } },
        3 => FromAgent::RankFailed { run, rank: 0, end: RankEnd::Exit(1) },
        4 => {
            FromAgent::Report { run, rank: 0, report: Report::Checkpoint(Checkpoint { step: 7, path: None }) }
        }
        5 => FromAgent::Report { run, rank: 0, report: Report::Progress { step: 1 } },
        6 => FromAgent::Released { run, end: NodeEnd::default() },
        7 => FromAgent::Chunk { request: 1, bytes: vec![7; 9], next_offset: 9, is_open: true, error: None },
        _ => FromAgent::Checked { fault: None },
    }
}

/// Nothing has panicked, and new work is taken in.
fn is_well(daemon: &Daemon) {
    let mut admin = daemon.admin();
    let metrics = admin.get("/metrics").text();
    let panics = metrics.lines().find(|line| line.starts_with("bedplate_panics_total"));
    assert!(panics.is_none_or(|line| line.ends_with(" 0")), "{panics:?}");
    let fault = metrics
        .lines()
        .find(|line| line.starts_with("bedplate_http_requests_total") && line.contains("status=\"5"));
    assert_eq!(fault, None);
    assert_eq!(Client::connect(daemon.address, "").get("/healthz").status, 200);
    assert_eq!(admin.submit(JOB).status, 201);
}
