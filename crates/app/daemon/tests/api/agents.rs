//! Agents over their link: joining, running a job to its end, coming back after a restart, reading logs.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use bedplate_control::wire::{FromAgent, HeldPhase, HeldRun, Hello, HostMachine, NodeEnd, RunId, ToAgent};
use bedplate_testkit::wait_for;
use serde_json::json;

use crate::support::{Client, Daemon, JOB};

/// An agent that does what it is told, and nothing else.
pub(crate) struct Agent {
    stream: BufReader<TcpStream>,
}

impl Agent {
    /// Asks for a link; the status when there is none.
    fn link(address: SocketAddr, token: &str) -> Result<Self, u16> {
        let mut client = Client::connect(address, token);
        let headers = [("Connection", "Upgrade"), ("Upgrade", "bedplate-link")];
        client.send("POST", "/v1/agents/link", &headers, b"");
        match client.read_head().status {
            101 => Ok(Self { stream: client.stream }),
            status => Err(status),
        }
    }

    pub(crate) fn join(address: SocketAddr, token: &str, node: &str, held: Vec<HeldRun>) -> Self {
        let mut agent = Self::link(address, token).unwrap();
        agent.hello(node, held);
        agent
    }

    fn hello(&mut self, node: &str, held: Vec<HeldRun>) {
        let host = HostMachine {
            name: "here".into(),
            cores: 2,
            memory_mib: 1000,
            gpus: 0,
            ..HostMachine::default()
        };
        let (node, address) = (node.to_owned(), "127.0.0.1".to_owned());
        self.say(&FromAgent::Hello(Hello { node, address, incarnation: 1, held, host }));
    }

    pub(crate) fn say(&mut self, message: &FromAgent) {
        let line = serde_json::to_string(message).unwrap() + "\n";
        self.stream.get_mut().write_all(line.as_bytes()).unwrap();
    }

    /// Says these bytes, whatever they are.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// The next message that is not about heartbeats; nothing when the link is closed.
    pub(crate) fn hear(&mut self) -> Option<ToAgent> {
        loop {
            match self.hear_any()? {
                ToAgent::Alive { .. } | ToAgent::Retain { .. } => {}
                message => return Some(message),
            }
        }
    }

    fn hear_any(&mut self) -> Option<ToAgent> {
        self.stream.get_mut().set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut line = String::new();
        if self.stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        Some(serde_json::from_str(&line).unwrap())
    }
}

pub(crate) fn token(daemon: &Daemon, node: &str) -> String {
    let made = daemon.admin().post("/v1/tokens", &json!({ "user": node, "role": "agent" }));
    made.json()["token"].as_str().unwrap().to_owned()
}

fn start_job(daemon: &Daemon, agent: &mut Agent) -> RunId {
    assert_eq!(daemon.admin().submit(JOB).status, 201);
    let Some(ToAgent::Prepare(launch)) = agent.hear() else { panic!("no order to prepare") };
    assert_eq!((launch.devices.len(), launch.world_size), (8, 1));
    agent.say(&FromAgent::Prepared { run: launch.run, master_port: Some(29500) });
    let Some(ToAgent::Go { run, master_port: 29500 }) = agent.hear() else { panic!("no order to go") };
    run
}

#[test]
fn a_job_is_prepared_let_go_and_succeeds() {
    let daemon = Daemon::start();
    let mut agent = Agent::join(daemon.address, &token(&daemon, "n1"), "n1", Vec::new());
    assert!(matches!(agent.hear(), Some(ToAgent::Welcome { .. })));
    let run = start_job(&daemon, &mut agent);
    let mut admin = daemon.admin();
    let shown = admin.get("/v1/jobs/1").json();
    assert_eq!((&shown["state"], &shown["nodes"]), (&json!("running"), &json!(["n1"])));
    let ranks = admin.get("/v1/jobs/1/ranks").json();
    let devices: Vec<u32> = (0..8).collect();
    assert_eq!(
        ranks,
        json!([{ "rank": 0, "run": 1, "node": "n1", "address": "127.0.0.1", "devices": devices }])
    );
    let cluster = admin.get("/v1/cluster").json();
    assert_eq!(cluster["hosts"][0]["is_overcommitted"], true, "{cluster}");
    agent.say(&FromAgent::Released { run, end: NodeEnd { cpu_ms: 5, ..NodeEnd::default() } });
    assert!(matches!(agent.hear(), Some(ToAgent::Forget { .. })));
    wait_for("the job has ended", || (admin.get("/v1/jobs/1").json()["state"] == "succeeded").then_some(()));
    let shown = admin.get("/v1/jobs/1").json();
    assert_eq!(shown["runs"][0]["phase"], "ended");
    assert_eq!(shown["runs"][0]["cpu_ms"], 5);
    let usage = admin.get("/v1/usage?by=user").json();
    assert_eq!((&usage["usage"][0]["key"], &usage["usage"][0]["runs"]), (&json!("root"), &json!(1)));
}

#[test]
fn a_running_job_is_adopted_after_a_restart() {
    let mut daemon = Daemon::start();
    let secret = token(&daemon, "n1");
    let mut agent = Agent::join(daemon.address, &secret, "n1", Vec::new());
    assert!(matches!(agent.hear(), Some(ToAgent::Welcome { .. })));
    let run = start_job(&daemon, &mut agent);
    daemon.restart();
    assert_eq!(agent.hear(), None, "the old link is closed");
    assert_eq!(daemon.admin().get("/v1/jobs/1").json()["state"], "running");
    // The token was used before; for the same node it stays good.
    let held = vec![HeldRun { run, phase: HeldPhase::Running, is_suspended: false }];
    let mut agent = Agent::join(daemon.address, &secret, "n1", held);
    match agent.hear() {
        Some(ToAgent::Welcome { keep, .. }) => assert_eq!(keep, [run]),
        other => panic!("{other:?}"),
    }
    agent.say(&FromAgent::Released { run, end: NodeEnd::default() });
    let mut admin = daemon.admin();
    wait_for("the job has ended", || (admin.get("/v1/jobs/1").json()["state"] == "succeeded").then_some(()));
}

#[test]
fn a_join_token_is_for_one_node() {
    let mut daemon = Daemon::start();
    let any = token(&daemon, "");
    let mut first = Agent::join(daemon.address, &any, "n1", Vec::new());
    assert!(matches!(first.hear(), Some(ToAgent::Welcome { .. })));
    for _ in 0..2 {
        let mut second = Agent::join(daemon.address, &any, "n2", Vec::new());
        assert!(matches!(second.hear(), Some(ToAgent::Unwelcome { .. })), "it belongs to n1 now");
        assert_eq!(second.hear(), None);
        daemon.restart();
    }
    let mut again = Agent::join(daemon.address, &any, "n1", Vec::new());
    assert!(matches!(again.hear(), Some(ToAgent::Welcome { .. })));
    let named = token(&daemon, "n2");
    let mut wrong = Agent::join(daemon.address, &named, "n1", Vec::new());
    assert!(matches!(wrong.hear(), Some(ToAgent::Unwelcome { .. })), "the token names n2");
    let mut unknown = Agent::join(daemon.address, &token(&daemon, "n7"), "n7", Vec::new());
    assert!(matches!(unknown.hear(), Some(ToAgent::Unwelcome { .. })), "there is no such node");
    assert_eq!(Agent::link(daemon.address, &daemon.admin().token).err(), Some(403));
    assert_eq!(Agent::link(daemon.address, "bp_nonsense").err(), Some(401));
}

#[test]
fn a_link_that_says_nonsense_is_closed_and_nobody_else_notices() {
    let daemon = Daemon::start();
    let secret = token(&daemon, "n1");
    for line in
        ["\n", "{}\n", "nonsense\n", "{\"type\":\"heartbeat\",\"sequence\":1,\"held\":[]}\n", "\u{0}\u{0}\n"]
    {
        let mut agent = Agent::link(daemon.address, &secret).unwrap();
        agent.stream.get_mut().write_all(line.as_bytes()).unwrap();
        assert_eq!(agent.hear(), None, "{line:?}");
    }
    let mut agent = Agent::join(daemon.address, &secret, "n1", Vec::new());
    assert!(matches!(agent.hear(), Some(ToAgent::Welcome { .. })));
    agent.stream.get_mut().write_all(b"{\"type\":\"released\"}\n").unwrap();
    assert_eq!(agent.hear(), None);
    assert_eq!(daemon.admin().get("/healthz").status, 200);
}

#[test]
fn logs_come_from_the_node_and_from_what_it_left_here() {
    let daemon = Daemon::start();
    let mut agent = Agent::join(daemon.address, &token(&daemon, "n1"), "n1", Vec::new());
    assert!(matches!(agent.hear(), Some(ToAgent::Welcome { .. })));
    let run = start_job(&daemon, &mut agent);
    let answers = std::thread::spawn(move || {
        let text = b"hello from rank 0\n";
        for _ in 0..2 {
            let Some(ToAgent::ReadLog { request, offset, .. }) = agent.hear() else { panic!("no reading") };
            let bytes = text[(offset as usize).min(text.len())..].to_vec();
            let next_offset = text.len() as u64;
            agent.say(&FromAgent::Chunk { request, bytes, next_offset, is_open: true, error: None });
        }
        agent
    });
    let mut admin = daemon.admin();
    let log = admin.get("/v1/jobs/1/logs?rank=0&stream=stdout&offset=6");
    assert_eq!((log.status, &log.text()[..]), (200, "from rank 0\n"));
    assert_eq!(log.headers["bedplate-next-offset"], "18");
    let mut agent = answers.join().unwrap();
    agent.say(&FromAgent::Released { run, end: NodeEnd::default() });
    wait_for("the job has ended", || (admin.get("/v1/jobs/1").json()["state"] == "succeeded").then_some(()));
    drop(agent);
    wait_for("the node is away", || (admin.get("/v1/nodes/n1").json()["is_linked"] == false).then_some(()));
    let missing = admin.get("/v1/jobs/1/logs");
    assert_eq!((missing.status, &missing.code()[..]), (503, "api/no-log"));
    assert!(
        missing.text().contains("runs/1.1/n1/rank-0.out"),
        "it says where the log is: {}",
        missing.text()
    );
    let left = daemon.folder.path().join("runs/1.1/n1");
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(left.join("rank-0.out"), "what was left").unwrap();
    assert_eq!(admin.get("/v1/jobs/1/logs").text(), "what was left");
    assert_eq!(admin.get("/v1/jobs/1/logs?follow=true").text(), "what was left");
    assert_eq!(admin.get("/v1/jobs/1/logs?rank=1").status, 404);
    assert_eq!(admin.get("/v1/jobs/1/logs?run=2").status, 404);
    assert_eq!(daemon.client("eve", "user").get("/v1/jobs/1/logs").status, 403);
}

#[test]
fn nodes_are_drained_resumed_and_broken_on_purpose() {
    let daemon = Daemon::start();
    let mut agent = Agent::join(daemon.address, &token(&daemon, "n1"), "n1", Vec::new());
    assert!(matches!(agent.hear(), Some(ToAgent::Welcome { .. })));
    let mut operator = daemon.client("ops", "operator");
    let drained = operator.post("/v1/nodes/n1/drain", &json!({ "reason": "fan" })).json();
    assert_eq!((&drained["state"], &drained["reason"]["text"]), (&json!("drained"), &json!("fan (ops)")));
    assert_eq!(operator.post("/v1/nodes/n1/resume", &json!({})).json()["state"], "idle");
    assert_eq!(operator.post("/v1/nodes/n1/chaos", &json!({ "kind": "die" })).status, 200);
    assert!(matches!(agent.hear(), Some(ToAgent::Chaos(_))));
    assert_eq!(operator.post("/v1/nodes/n2/chaos", &json!({ "kind": "die" })).status, 409);
    assert_eq!(operator.post("/v1/nodes/n1/chaos", &json!({ "kind": "fire" })).status, 400);
}

/// Lets the deciding thread pass while it is open.
#[derive(Default)]
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        drop(self.opened.wait_while(self.is_shut.lock().unwrap(), |is_shut| *is_shut).unwrap());
    }

    fn set(&self, is_shut: bool) {
        *self.is_shut.lock().unwrap() = is_shut;
        self.opened.notify_all();
    }
}

#[test]
fn a_decision_that_takes_long_ends_no_lease_and_is_named_as_the_cause() {
    let gate = Arc::new(Gate::default());
    let daemon = Daemon::start_with(|options| {
        let gate = gate.clone();
        options.on_turn = Arc::new(move || gate.pass());
        options.limits.durable = Duration::from_millis(500);
        options.rules.silence = bedplate_gangs::Span::seconds(3);
    });
    let mut agent = Agent::join(daemon.address, &token(&daemon, "n1"), "n1", Vec::new());
    assert!(matches!(agent.hear(), Some(ToAgent::Welcome { .. })));
    let run = start_job(&daemon, &mut agent);
    gate.set(true);
    let held = vec![HeldRun { run, phase: HeldPhase::Running, is_suspended: false }];
    // Well past the silence after which a node is given up.
    let began = Instant::now();
    let mut sequence = 1_000;
    while began.elapsed() < Duration::from_secs(4) {
        sequence += 1;
        agent.say(&FromAgent::Heartbeat { sequence, held: held.clone(), findings: Vec::new() });
        while agent.hear_any() != Some(ToAgent::Alive { sequence }) {}
        std::thread::sleep(Duration::from_millis(100));
    }
    let refused = daemon.admin().submit(JOB);
    assert_eq!((refused.status, &refused.code()[..]), (503, "api/deciding"));
    let refused = daemon.admin().get("/v1/jobs");
    assert_eq!((refused.status, &refused.code()[..]), (503, "api/deciding"));
    gate.set(false);
    agent.say(&FromAgent::Heartbeat { sequence: sequence + 1, held, findings: Vec::new() });
    let job = wait_for("the control plane to answer", || {
        let job = daemon.admin().get("/v1/jobs/1");
        (job.status == 200).then(|| job.json())
    });
    assert_eq!((&job["state"], &job["runs"].as_array().map(Vec::len)), (&json!("running"), &Some(1)));
    assert_eq!(daemon.admin().get("/v1/nodes/n1").json()["losses"], 0);
}
