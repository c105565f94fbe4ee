//! Orders to start that are read too late begin nothing: whoever hands them on may have stood still while the control plane gave
//! the run up and started the next one elsewhere. Here a test is the agent, so that it is known what is read when.

#![allow(clippy::unwrap_used, reason = "helpers fail as the tests do")]

use std::io::{BufRead, BufReader, IoSlice, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bedplate_host::clock::since_boot;
use bedplate_testkit::wait_until;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde_json::{Value, json};

/// Enough that some would begin before they are killed, whatever the machine does.
const MANY: u64 = 64;

/// Far enough from now that no machine is so slow.
const LONG: u64 = 3_600_000;

fn now() -> u64 {
    since_boot().as_millis() as u64
}

/// A fork server whose agent is the test.
struct ForkServer {
    process: Child,
    orders: UnixStream,
    notices: BufReader<UnixStream>,
}

impl ForkServer {
    fn start() -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_bedplate-node"));
        let process =
            command.arg("keeper").stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).spawn().unwrap();
        let mut fork_server =
            Self { process, notices: BufReader::new(ours.try_clone().unwrap()), orders: ours };
        fork_server.order(&json!({"Begin": {"node": "n1", "cores": []}}));
        assert!(fork_server.hear().get("Ready").is_some());
        fork_server
    }

    fn order(&mut self, order: &Value) {
        self.orders.write_all(format!("{order}\n").as_bytes()).unwrap();
    }

    fn hear(&mut self) -> Value {
        hear(&mut self.notices).unwrap()
    }

    /// Its end of the socket to the run shim is closed here.
    fn order_fork(&mut self, number: u64, end: UnixStream) {
        let order =
            json!({"Guard": {"guardian": number, "group": format!("{number}.1@n1"), "is_isolated": true}});
        let (line, files) = (format!("{order}\n"), [end.as_raw_fd()]);
        let rights = [ControlMessage::ScmRights(&files)];
        let bytes = [IoSlice::new(line.as_bytes())];
        let sent = sendmsg::<()>(self.orders.as_raw_fd(), &bytes, &rights, MsgFlags::empty(), None);
        assert_eq!(sent.unwrap(), line.len());
    }

    /// A run shim to which all this was said before it was there, as to one that stood still, and its process.
    fn fork_run_shim(&mut self, number: u64, orders: &[Value]) -> (RunShim, i32) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut run_shim = RunShim { notices: BufReader::new(ours.try_clone().unwrap()), orders: ours };
        orders.iter().for_each(|order| run_shim.order(order));
        self.order_fork(number, theirs);
        let forked = self.hear();
        (run_shim, forked["Guarding"]["pid"].as_i64().unwrap() as i32)
    }

    fn await_end(&mut self) {
        wait_until("the fork server to end", || self.process.try_wait().unwrap().is_some());
    }
}

impl Drop for ForkServer {
    fn drop(&mut self) {
        let _ = self.orders.shutdown(std::net::Shutdown::Both);
        let _ = self.process.wait();
    }
}

struct RunShim {
    orders: UnixStream,
    notices: BufReader<UnixStream>,
}

impl RunShim {
    fn order(&mut self, order: &Value) {
        self.orders.write_all(format!("{order}\n").as_bytes()).unwrap();
    }

    /// What it says but that it knows the lease.
    fn hear(&mut self) -> Value {
        loop {
            let notice = hear(&mut self.notices).unwrap();
            if notice != "Leased" {
                return notice;
            }
        }
    }
}

fn hear(notices: &mut impl BufRead) -> Option<Value> {
    let mut line = String::new();
    (notices.read_line(&mut line).unwrap() > 0).then(|| serde_json::from_str(&line).unwrap())
}

fn lease(until_ms: u64) -> Value {
    json!({"Lease": {"until_ms": until_ms}})
}

fn start(id: u64, script: &str, until_ms: Option<u64>) -> Value {
    json!({"Start": {
        "id": id, "arguments": ["/bin/sh", "-c", script], "environment": {"PATH": "/usr/bin:/bin"}, "directory": "/",
        "stdin": null, "stdout": null, "stderr": null, "memory_mib": 0, "identity": null, "until_ms": until_ms,
    }})
}

/// A place for the marks of processes that begin.
struct Marks(tempfile::TempDir);

impl Marks {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, id: u64) -> PathBuf {
        self.0.path().join(id.to_string())
    }

    /// Many orders to start, each of which leaves a mark.
    fn starts(&self, until_ms: u64) -> Vec<Value> {
        let script = |id| format!(": > {}", self.path(id).display());
        (0..MANY).map(|id| start(id, &script(id), Some(until_ms))).collect()
    }

    fn count(&self) -> usize {
        std::fs::read_dir(self.0.path()).unwrap().count()
    }
}

#[test]
fn what_is_read_after_the_lease_has_ended_does_not_begin() {
    let mut fork_server = ForkServer::start();
    let over = now() - 1;
    let (mut run_shim, _) = fork_server.fork_run_shim(1, &[lease(over), start(7, "sleep 1000", Some(over))]);
    assert_eq!(run_shim.hear(), "LeaseEnded");
    assert_eq!(run_shim.hear(), json!({"NotStarted": {"id": 7, "error": libc::ECANCELED}}));
}

#[test]
fn an_order_that_is_handed_on_after_the_lease_has_ended_begins_nothing_either() {
    let mut fork_server = ForkServer::start();
    let over = now() - 1;
    let (mut run_shim, _) = fork_server.fork_run_shim(1, &[lease(over)]);
    assert_eq!(run_shim.hear(), "LeaseEnded");
    // The agent stood still between its decision and this line, when the run shim has no lease any more.
    run_shim.order(&start(8, "sleep 1000", Some(over)));
    assert_eq!(run_shim.hear(), "LeaseEnded");
    assert_eq!(run_shim.hear(), json!({"NotStarted": {"id": 8, "error": libc::ECANCELED}}));
}

#[test]
fn a_lease_that_was_renewed_since_lets_an_old_order_begin() {
    let mut fork_server = ForkServer::start();
    let over = now() - 1;
    let orders = [lease(over), start(9, "exit 3", Some(over)), lease(now() + LONG)];
    let (mut run_shim, _) = fork_server.fork_run_shim(1, &orders);
    assert_eq!(run_shim.hear(), json!({"Ended": {"id": 9, "end": {"exit": 3}}}));
}

#[test]
fn an_epilog_needs_no_lease() {
    let mut fork_server = ForkServer::start();
    let (mut run_shim, _) = fork_server.fork_run_shim(1, &[lease(now() - 1)]);
    assert_eq!(run_shim.hear(), "LeaseEnded");
    run_shim.order(&start(10, "exit 0", None));
    assert_eq!(run_shim.hear(), json!({"Ended": {"id": 10, "end": {"exit": 0}}}));
}

#[test]
fn the_last_orders_of_an_agent_that_is_gone_begin_nothing() {
    let marks = Marks::new();
    let mut fork_server = ForkServer::start();
    let (ours, theirs) = UnixStream::pair().unwrap();
    for order in [lease(now() + LONG)].into_iter().chain(marks.starts(now() + LONG)) {
        (&ours).write_all(format!("{order}\n").as_bytes()).unwrap();
    }
    drop(ours);
    fork_server.order_fork(1, theirs);
    assert!(fork_server.hear().get("Guarding").is_some());
    assert_eq!(fork_server.hear(), json!({"Gone": {"guardian": 1}}));
    assert_eq!(marks.count(), 0);
}

#[test]
fn nor_does_a_fork_server_fork_for_an_agent_that_is_gone() {
    let marks = Marks::new();
    let mut fork_server = ForkServer::start();
    signal(fork_server.process.id() as i32, "-STOP");
    let (ours, theirs) = UnixStream::pair().unwrap();
    for order in [lease(now() + LONG)].into_iter().chain(marks.starts(now() + LONG)) {
        (&ours).write_all(format!("{order}\n").as_bytes()).unwrap();
    }
    fork_server.order_fork(1, theirs);
    // The link to the run shim stays open: only the fork server can see that the agent is gone.
    fork_server.orders.shutdown(std::net::Shutdown::Write).unwrap();
    signal(fork_server.process.id() as i32, "-CONT");
    fork_server.await_end();
    assert_eq!(marks.count(), 0);
}

#[test]
fn a_run_whose_run_shim_and_agent_both_stand_still_ends_with_its_lease() {
    let mut fork_server = ForkServer::start();
    let (_run_shim, pid) =
        fork_server.fork_run_shim(1, &[lease(now() + LONG), start(11, "sleep 1000", None)]);
    wait_until("the rank", || !children(pid).is_empty());
    signal(pid, "-STOP");
    fork_server.order(&json!({"Lease": {"until_ms": now() - 1, "unleased": []}}));
    assert_eq!(fork_server.hear(), json!({"Gone": {"guardian": 1}}));
}

#[test]
fn what_needs_no_lease_lives_on_beside_what_does() {
    let mut fork_server = ForkServer::start();
    let rank = |id| start(id, "sleep 1000", None);
    let (_first, of_epilog) = fork_server.fork_run_shim(1, &[rank(12)]);
    let (_second, of_ranks) = fork_server.fork_run_shim(2, &[rank(13)]);
    wait_until("both", || !children(of_epilog).is_empty() && !children(of_ranks).is_empty());
    fork_server.order(&json!({"Lease": {"until_ms": now() - 1, "unleased": [1]}}));
    assert_eq!(fork_server.hear(), json!({"Gone": {"guardian": 2}}));
    assert!(!children(of_epilog).is_empty());
}

fn children(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn signal(pid: i32, signal: &str) {
    assert!(Path::new(&format!("/proc/{pid}")).exists());
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}
