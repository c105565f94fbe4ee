//! A daemon in a process of its own: killed over and over while a client submits, and under ten thousand idle
//! connections. This program is both the test and, when told by its environment, the daemon.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[path = "api/support.rs"]
#[expect(dead_code, reason = "the other tests need more of it")]
mod support;

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bedplate_daemon::Whereabouts;

use bedplate_testkit::wait_for;
use support::{Client, Folder, JOB};

const STATE: &str = "BEDPLATE_TEST_STATE";

fn main() {
    if let Some(folder) = std::env::var_os(STATE) {
        let mut options = bedplate_daemon::DaemonOptions::new(folder.into(), support::cluster());
        options.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        options.tls = false;
        bedplate_daemon::serve(options).unwrap();
        return;
    }
    // Cargo asks for a list now and then.
    if std::env::args().any(|argument| argument == "--list") {
        return;
    }
    acknowledged_jobs_survive_kills();
    ten_thousand_idle_connections_hold_nobody_up();
}

fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

struct Process(Child);

impl Process {
    fn start(folder: &Path) -> Self {
        let _ = std::fs::remove_file(folder.join("daemon.json"));
        let program = std::env::current_exe().unwrap();
        Self(Command::new(program).env(STATE, folder).stdin(Stdio::null()).spawn().unwrap())
    }

    fn address(folder: &Path) -> SocketAddr {
        wait_for("the daemon listens", || {
            let found = Whereabouts::read(folder).ok().flatten()?;
            Some(SocketAddr::new(found.address.parse().unwrap(), found.port))
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn acknowledged_jobs_survive_kills() {
    const ROUNDS: u64 = 8;
    let folder = Folder::new();
    let mut acknowledged: Vec<(u64, String)> = Vec::new();
    let mut next_key = 0;
    for round in 0..ROUNDS {
        let process = Process::start(folder.path());
        let address = Process::address(folder.path());
        let token = std::fs::read_to_string(folder.path().join("admin.token")).unwrap();
        let mut client = Client::connect(address, token.trim());
        for (id, key) in &acknowledged {
            assert_eq!(client.get(&format!("/v1/jobs/{id}")).status, 200, "job {id} with key {key} is lost");
        }
        // The kill comes in the middle of submissions, a little later in each round.
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(40 + 25 * round));
            drop(process);
        });
        while let Some((id, key)) = submit(&mut client, next_key) {
            acknowledged.push((id, key));
            next_key += 1;
        }
        killer.join().unwrap();
    }
    let _process = Process::start(folder.path());
    let address = Process::address(folder.path());
    let token = std::fs::read_to_string(folder.path().join("admin.token")).unwrap();
    let mut client = Client::connect(address, token.trim());
    for (id, key) in &acknowledged {
        let headers = [("Content-Type", "application/toml"), ("Idempotency-Key", &key[..])];
        let again = client.ask("POST", "/v1/jobs", &headers, JOB.as_bytes()).json();
        assert_eq!((again["id"].as_u64(), again["is_old"].as_bool()), (Some(*id), Some(true)), "job {id}");
    }
    assert!(!acknowledged.is_empty());
    say(&format!("{} acknowledged jobs survived {ROUNDS} kills", acknowledged.len()));
}

/// Nothing when the daemon is gone.
fn submit(client: &mut Client, number: u64) -> Option<(u64, String)> {
    let key = format!("key-{number}");
    let headers = [("Content-Type", "application/toml"), ("Idempotency-Key", &key[..])];
    client.send("POST", "/v1/jobs", &headers, JOB.as_bytes());
    let line = client.read_line()?;
    assert!(line.contains("201"), "{line}");
    let mut length = 0;
    while let Some(line) = client.read_line().filter(|line| !line.is_empty()) {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    std::io::Read::read_exact(&mut client.stream, &mut body).ok()?;
    let answer: serde_json::Value = serde_json::from_slice(&body).ok().filter(|_| length > 0)?;
    Some((answer["id"].as_u64()?, key))
}

fn ten_thousand_idle_connections_hold_nobody_up() {
    const IDLE: usize = 10_000;
    let (_, most) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    if most < IDLE as u64 + 500 {
        return say(&format!(
            "skipped: this system allows {most} files for a process, {IDLE} connections need more"
        ));
    }
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, most, most).unwrap();
    let folder = Folder::new();
    let _process = Process::start(folder.path());
    let address = Process::address(folder.path());
    let token = std::fs::read_to_string(folder.path().join("admin.token")).unwrap();
    let idle: Vec<TcpStream> = (0..IDLE).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut client = Client::connect(address, token.trim());
    let figure = |text: &str, name: &str| -> f64 {
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap()
    };
    let text = wait_for("all of them are accepted", || {
        let text = client.get("/metrics").text();
        (figure(&text, "bedplate_http_connections ") > IDLE as f64).then_some(text)
    });
    for _ in 0..200 {
        assert_eq!(client.submit(JOB).status, 201);
    }
    let memory = figure(&text, "bedplate_resident_memory_bytes ");
    say(&format!(
        "200 jobs submitted beside {} idle connections; the daemon has {} MiB",
        idle.len(),
        memory as u64 >> 20
    ));
}
