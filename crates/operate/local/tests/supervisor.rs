//! A supervisor never gives up by mistake, and tells a slow daemon from a dead one. The program is a script here.

#![allow(clippy::unwrap_used, reason = "helpers fail as the test does")]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bedplate_catalog::Catalog;
use bedplate_drivers::StateDirectory;
use bedplate_local::{Launcher, Machine, Shape, Supervision, SupervisorNote, Wanted, take_down};
use bedplate_testkit::{wait_for, wait_until};
use tempfile::TempDir;

/// A cluster whose daemon is a script, and its supervisor on a thread.
struct Cluster {
    folder: TempDir,
    state: StateDirectory,
    said: Arc<Mutex<Vec<String>>>,
}

impl Cluster {
    fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The kernel names a script's thread after its file.
        let program = folder.path().join("control");
        fs::write(
            &program,
            format!("#!/bin/sh\necho start >> {}/starts\n{script}\n", folder.path().display()),
        )
        .unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let state = StateDirectory(folder.path().join("state"));
        let wanted = Wanted { nodes: Some(1), like: Some("p5.48xlarge".into()), ..Wanted::default() };
        Shape::new(&wanted, &Catalog::builtin(), Machine::this()).unwrap().keep(&state).unwrap();
        Self { folder, state, said: Arc::default() }
    }

    fn supervise(&self) -> thread::JoinHandle<()> {
        let said = Arc::clone(&self.said);
        let say = Arc::new(move |text: &str| said.lock().unwrap().push(text.to_owned()));
        let launcher = Launcher::new(self.folder.path().join("control"), Vec::new(), say);
        let patience =
            Supervision { silence: Duration::from_secs(1), longest_delay: Duration::from_millis(200) };
        let state = self.state.clone();
        thread::spawn(move || launcher.supervise(state, patience))
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.state.path().join(name)
    }

    /// How often the daemon was started.
    fn starts(&self) -> usize {
        fs::read_to_string(self.folder.path().join("starts")).unwrap_or_default().lines().count()
    }

    fn has_said(&self, words: &str) -> bool {
        self.said.lock().unwrap().iter().any(|text| text.contains(words))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The supervisor sees it and ends.
        let _ = fs::write(self.path("concluded"), "");
        let _ = take_down(&self.state, true, &|_| {});
    }
}

#[test]
fn a_daemon_that_fails_to_start_is_started_again_for_ever_and_that_is_said() {
    let cluster = Cluster::new("echo cannot listen: the port is taken; exit 1");
    // No daemon.json: neither a daemon that failed nor a file that was lost is a good end.
    let supervisor = cluster.supervise();
    wait_until("three starts have failed", || cluster.starts() >= 3);
    let failed = |note: SupervisorNote| note.troubles.into_iter().find(|trouble| trouble.failures >= 2);
    let trouble = wait_for("the note tells it", || SupervisorNote::read(&cluster.state).and_then(failed));
    assert!(trouble.what == "the daemon" && trouble.why.contains("the port is taken"), "{trouble:?}");
    assert!(cluster.has_said("starts have failed; it is tried again"));

    fs::write(cluster.path("daemon.json"), "not JSON").unwrap();
    fs::write(cluster.path("supervisor.json"), "").unwrap();
    let starts = cluster.starts();
    wait_until("it goes on whatever its files say", || cluster.starts() > starts + 1);
    assert!(!supervisor.is_finished());
    fs::write(cluster.path("concluded"), "").unwrap();
    supervisor.join().unwrap();
}

#[test]
fn what_cannot_be_read_or_locked_now_is_waited_for_and_a_directory_that_is_gone_ends_it() {
    let cluster = Cluster::new("exit 1");
    let shape = fs::read(cluster.path("up.json")).unwrap();
    fs::remove_file(cluster.path("up.json")).unwrap();
    fs::create_dir(cluster.path("start.lock")).unwrap();
    let supervisor = cluster.supervise();
    wait_until("the lock is missed", || cluster.has_said("start.lock"));
    fs::remove_dir(cluster.path("start.lock")).unwrap();
    wait_until("the shape is missed", || cluster.has_said("no cluster was ever started"));
    assert!(!supervisor.is_finished());
    fs::write(cluster.path("up.json"), shape).unwrap();
    wait_until("it starts the daemon at last", || cluster.starts() > 0);
    fs::remove_dir_all(cluster.state.path()).unwrap();
    supervisor.join().unwrap();
}

/// A daemon that never answers, at a port of which the test sees who holds it.
fn silent_daemon(cluster: &Cluster, port: u16) -> std::process::Child {
    let mut command = Command::new(cluster.folder.path().join("control"));
    command.args(["daemon", "--state-dir"]).arg(cluster.state.path());
    let daemon = command.env("BEDPLATE_CLUSTER", cluster.state.path()).spawn().unwrap();
    let beacon = format!(
        r#"{{"address":"127.0.0.1","port":{port},"pid":{},"fingerprint":"{}","version":"1"}}"#,
        daemon.id(),
        "ab".repeat(32)
    );
    fs::write(cluster.path("admin.token"), "bp_secret").unwrap();
    fs::write(cluster.path("daemon.json"), beacon).unwrap();
    daemon
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap_or_default();
    stat.contains(") R") || stat.contains(") S") || stat.contains(") T")
}

#[test]
fn a_daemon_that_works_is_never_killed_and_one_that_stands_still_is() {
    let cluster = Cluster::new("while :; do :; done");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut daemon = silent_daemon(&cluster, port);
    let supervisor = cluster.supervise();
    wait_until("it is called slow", || cluster.has_said("it is slow"));
    assert!(is_alive(daemon.id()) && cluster.starts() == 1);
    // Nobody else gets the port of a daemon while its supervisor lives.
    assert!(TcpListener::bind(("127.0.0.1", port)).is_err());
    assert!(TcpListener::bind(("0.0.0.0", port)).is_err());

    Command::new("kill").args(["-STOP", &daemon.id().to_string()]).status().unwrap();
    wait_until("it is replaced", || !is_alive(daemon.id()));
    // Unless the supervisor did, which reaps all children of its process.
    let _ = daemon.wait();
    assert!(cluster.has_said("does nothing, replacing it"));
    wait_until("another is started", || cluster.starts() == 2);
    assert!(TcpListener::bind(("127.0.0.1", port)).is_err());
    drop(cluster);
    // It waits for the daemon that it has just started, which was killed.
    supervisor.join().unwrap();
}
