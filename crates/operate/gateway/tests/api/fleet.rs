//! Replicas as processes behind a router: killed, stopped, replaced.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bedplate_gateway::{
    Checks, FleetOptions, ReplicaFleet, ReplicaHealth, RouteOptions, RunningRouter, route,
};
use bedplate_testkit::wait_until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::{Fixture, PATIENCE, Parrot, Reply, chat, exchange, in_service, request, send_chat};

const PAUSE: &str = "BEDPLATE_TEST_REPLICA_PAUSE_MS";

/// Is a replica where a test of this file has started it as a process, and nothing in an ordinary run.
#[test]
fn a_process_that_is_a_replica() {
    let Ok(pause) = std::env::var(PAUSE) else { return };
    let pause = Duration::from_millis(pause.parse().unwrap());
    let process = std::process::id();
    let parrot = Parrot::new(move |_| format!("{process} {}", "the garden ".repeat(20))).slow(pause);
    let fixture = Fixture::start(parrot);
    println!("\nhttp://{}", fixture.address);
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    std::process::exit(0);
}

fn replica(pause_ms: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "fleet::a_process_that_is_a_replica", "--nocapture"]);
    command.env(PAUSE, pause_ms.to_string()).stderr(Stdio::null());
    command
}

struct Site {
    // Ends before the router, whose members it changes.
    fleet: ReplicaFleet,
    routing: RunningRouter,
}

impl Site {
    fn start(replicas: u32, command: impl Fn(u32) -> Command + Send + 'static) -> Self {
        let checks = Checks {
            interval: Duration::from_millis(100),
            timeout: Duration::from_secs(3),
            failures: 2,
            hang: PATIENCE,
        };
        let listen = "127.0.0.1:0".parse().unwrap();
        let routing = route(RouteOptions { listen, checks, ..RouteOptions::default() }).unwrap();
        let options = FleetOptions {
            replicas,
            silence: Duration::from_secs(2),
            grace: Duration::from_secs(20),
            first_delay: Duration::from_millis(50),
            ..FleetOptions::default()
        };
        let fleet = ReplicaFleet::start(routing.members().clone(), options, command).unwrap();
        Self { fleet, routing }
    }

    fn ready(replicas: u32, pause_ms: u64) -> Self {
        let site = Self::start(replicas, move |_| replica(pause_ms));
        site.until_in(replicas as usize);
        site
    }

    fn until_in(&self, count: usize) {
        wait_until(&format!("{count} replicas are in"), || self.in_service() == count);
    }

    fn in_service(&self) -> usize {
        in_service(self.routing.address())
    }

    fn chat(&self, text: &str, more: Value) -> Reply {
        send_chat(self.routing.address(), text, more)
    }

    fn processes(&self) -> Vec<u32> {
        self.fleet.state().processes
    }
}

fn send(process: u32, signal: Signal) {
    kill(Pid::from_raw(process as i32), signal).unwrap();
}

fn is_running(process: u32) -> bool {
    kill(Pid::from_raw(process as i32), None).is_ok()
}

fn text_of(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
}

/// A stream that is read until it has told which process speaks.
struct Speaking {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Speaking {
    fn begin(site: &Site) -> (Self, u32) {
        let mut stream = TcpStream::connect(site.routing.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = chat("who?", json!({ "stream": true })).to_string();
        stream.write_all(&request("POST", "/v1/chat/completions", &[], body.as_bytes())).unwrap();
        let mut speaking = Self { stream, read: Vec::new() };
        loop {
            let mut buffer = [0; 4096];
            let count = speaking.stream.read(&mut buffer).unwrap();
            assert_ne!(count, 0, "{}", String::from_utf8_lossy(&speaking.read));
            speaking.read.extend(&buffer[..count]);
            if let Some((process, _)) = speaking.text().split_once(' ') {
                return (speaking, process.parse().unwrap());
            }
        }
    }

    fn text(&self) -> String {
        let read = String::from_utf8_lossy(&self.read);
        let events = read.lines().filter_map(|line| line.strip_prefix("data: "));
        text_of(&events.filter_map(|event| serde_json::from_str(event).ok()).collect::<Vec<Value>>())
    }

    fn end(mut self) -> Vec<Value> {
        self.stream.read_to_end(&mut self.read).unwrap();
        Reply::parse(&self.read).events()
    }
}

#[test]
fn a_replica_killed_in_a_stream_ends_that_stream_alone_and_comes_back() {
    let site = Site::ready(2, 60);
    let has_failed = |events: &[Value]| events.last().unwrap().get("error").is_some();
    let killed = std::thread::scope(|scope| {
        let streams: Vec<_> = (0..5)
            .map(|at| {
                let site = &site;
                scope.spawn(move || site.chat(&format!("{at} lamps").repeat(30), json!({ "stream": true })))
            })
            .collect();
        let (speaking, process) = Speaking::begin(&site);
        send(process, Signal::SIGKILL);
        let events = speaking.end();
        assert!(has_failed(&events), "{events:?}");
        assert_eq!(events.last().unwrap()["error"]["code"], "replica_lost");
        // Those on the other replica end well, as do those of which no byte had been passed on.
        let others = streams.into_iter().map(|stream| stream.join().unwrap().events());
        let well: Vec<String> =
            others.filter(|events| !has_failed(events)).map(|events| text_of(&events)).collect();
        assert!(!well.is_empty());
        assert!(well.iter().all(|text| !text.starts_with(&format!("{process} "))), "{process} {well:?}");
        assert!(well.iter().all(|text| text.matches("garden").count() == 20), "{well:?}");
        process
    });
    assert_eq!(site.chat("x", json!({})).status, 200);
    wait_until("it is started again", || site.fleet.state().restarts == 1 && site.processes().len() == 2);
    site.until_in(2);
    let last = site.processes();
    assert!(!last.contains(&killed));
    site.fleet.stop();
    assert!(!last.iter().any(|process| is_running(*process)));
}

#[test]
fn a_stopped_replica_loses_its_requests_to_another_and_is_replaced() {
    let site = Site::ready(2, 0);
    let frozen = site.processes()[0];
    send(frozen, Signal::SIGSTOP);
    for at in 0..8 {
        let reply = site.chat(&format!("{at}"), json!({}));
        assert_eq!(reply.status, 200, "{}", reply.text());
        let said = reply.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        assert!(!said.starts_with(&frozen.to_string()), "{said}");
    }
    wait_until("it is killed", || !is_running(frozen));
    site.until_in(2);
    assert_eq!(site.fleet.state().restarts, 1);
}

#[test]
fn replicas_are_replaced_under_load_without_a_failed_request() {
    let site = Site::ready(2, 5);
    let before = site.processes();
    let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (site, is_over, answered) = (&site, &is_over, &answered);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let reply = site.chat(&format!("worker {worker}"), json!({ "stream": worker % 2 == 0 }));
                    assert_eq!(reply.status, 200, "{}", reply.text());
                    assert!(!reply.text().contains("\"error\""), "{}", reply.text());
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        wait_until("requests are answered", || answered.load(Ordering::Relaxed) > 8);
        site.fleet.update();
        wait_until("the update is over", || site.fleet.state().updates == 1);
        let then = answered.load(Ordering::Relaxed);
        wait_until("requests go on", || answered.load(Ordering::Relaxed) > then + 8);
        is_over.store(true, Ordering::Relaxed);
    });
    let after = site.processes();
    assert!(
        after.len() == 2 && after.iter().all(|process| !before.contains(process)),
        "{before:?} {after:?}"
    );
    wait_until("the old ones have ended", || !before.iter().any(|process| is_running(*process)));
    assert_eq!(site.fleet.state().restarts, 0);
}

#[test]
fn an_update_that_does_not_start_leaves_the_old_replicas() {
    let is_broken = std::sync::Arc::new(AtomicBool::new(false));
    let broken = is_broken.clone();
    let site = Site::start(2, move |_| match broken.load(Ordering::Relaxed) {
        true => Command::new("false"),
        false => replica(0),
    });
    site.until_in(2);
    let before = site.processes();
    is_broken.store(true, Ordering::Relaxed);
    site.fleet.update();
    wait_until("the update is given up", || site.fleet.state().updates == 1);
    assert_eq!((site.processes(), site.in_service()), (before, 2));
    assert_eq!(site.chat("x", json!({})).status, 200);
}

#[test]
fn replicas_that_never_start_end_the_fleet_with_the_reason() {
    let site = Site::start(2, |_| Command::new("false"));
    wait_until("it gives up", || site.fleet.state().failure.is_some());
    assert_eq!(site.fleet.state().failure.unwrap(), "replica 0 ended with exit status: 1");
    let site = Site::start(1, |_| Command::new("/no/such/program"));
    wait_until("it gives up", || site.fleet.state().failure.is_some());
    assert!(site.processes().is_empty());
}

#[test]
fn a_replica_ends_with_the_one_who_started_it() {
    let mut child = replica(0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(said.map_while(Result::ok).any(|line| line.starts_with("http://")), "it serves");
    drop(child.stdin.take());
    wait_until("it ends", || child.try_wait().unwrap().is_some());
}

#[test]
fn a_fleet_that_is_dropped_leaves_no_process_and_no_replica() {
    let site = Site::ready(2, 0);
    let processes = site.processes();
    let urls: Vec<String> = {
        let text = exchange(site.routing.address(), &request("GET", "/metrics", &[], b"")).text();
        let lines = text.lines().filter(|line| line.starts_with("bedplate_router_replica_up"));
        lines.map(|line| line.split('"').nth(1).unwrap().to_owned()).collect()
    };
    let Site { fleet, routing } = site;
    assert!(
        urls.iter()
            .all(|url| routing.members().replica_health(&url.parse().unwrap()) == Some(ReplicaHealth::In))
    );
    drop(fleet);
    assert!(!processes.iter().any(|process| is_running(*process)));
    assert!(urls.iter().all(|url| routing.members().replica_health(&url.parse().unwrap()).is_none()));
}
