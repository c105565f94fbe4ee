//! Nothing outlives its job: not a daemon that hides, not when the agent dies, not when its fork server does.

#![allow(clippy::unwrap_used, reason = "helpers fail as the tests do")]

mod fixture;

use std::process::Command;

use bedplate_control::wire::*;
use fixture::{Cluster, gang, wait_for, wait_until};

/// Forks twice into a session of its own, as daemons do, and stays.
const DAEMON: &str = "(setsid sh -c 'sleep 1000 & exec sleep 1000' >/dev/null 2>&1 &) ; sleep 0.2; echo up; ";

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

fn start_with_daemon(cluster: &Cluster, nodes: &[&str], then: &str) -> RunId {
    let launches = gang(1, nodes, &format!("{DAEMON}{then}"));
    cluster.start_gang(&launches);
    for (rank, node) in nodes.iter().enumerate() {
        wait_until("the ranks to be up", || {
            cluster.log(launches[0].run, node, rank as u32, LogStream::Stdout) == "up\n"
        });
    }
    launches[0].run
}

#[test]
fn a_daemon_that_a_rank_left_behind_dies_with_the_run() {
    let cluster = Cluster::start(&["n1"]);
    let run = start_with_daemon(&cluster, &["n1"], "exit 0");
    assert_eq!(cluster.released(run, "n1").failed, None);
    assert_eq!(cluster.processes(), [0; 0]);
}

#[test]
fn a_daemon_that_hides_its_environment_dies_with_the_run_too() {
    let cluster = Cluster::start(&["n1"]);
    let hidden = "(env -i setsid sleep 7123.5 >/dev/null 2>&1 &); sleep 0.2; echo up";
    let launches = gang(1, &["n1"], hidden);
    cluster.start_gang(&launches);
    assert_eq!(cluster.released(launches[0].run, "n1").failed, None);
    wait_until("the daemon to be gone", || {
        let outcome = Command::new("ps").args(["-eo", "args"]).output().unwrap();
        !String::from_utf8_lossy(&outcome.stdout).lines().any(|line| line == "sleep 7123.5")
    });
}

#[test]
fn other_runs_live_on_when_one_is_killed() {
    let cluster = Cluster::start(&["n1"]);
    let other = gang(2, &["n1"], "(setsid sleep 1000 &); echo up; sleep 1000");
    cluster.start_gang(&other);
    let of_other = wait_for("the other run", || Some(cluster.processes()).filter(|found| found.len() == 3));
    let run = start_with_daemon(&cluster, &["n1"], "sleep 1000");
    assert!(cluster.processes().len() > of_other.len());
    cluster.stop(run, &["n1"], 0);
    assert!(cluster.released(run, "n1").was_stopped);
    let mut left = cluster.processes();
    left.sort_unstable();
    let mut expected = of_other;
    expected.sort_unstable();
    assert_eq!(left, expected);
}

#[test]
fn an_agent_that_is_killed_takes_every_process_with_it() {
    let mut cluster = Cluster::start(&["n1", "n2"]);
    start_with_daemon(&cluster, &["n1", "n2"], "sleep 1000");
    assert!(cluster.processes().len() >= 6);
    cluster.kill_agent("n1");
    cluster.kill_agent("n2");
    wait_until("all processes to be gone", || cluster.processes().is_empty());
}

#[test]
fn an_agent_asked_to_die_by_the_control_plane_does() {
    let cluster = Cluster::start(&["n1"]);
    start_with_daemon(&cluster, &["n1"], "sleep 1000");
    cluster.tell("n1", &ToAgent::Chaos(Chaos::Die));
    wait_until("all processes to be gone", || cluster.processes().is_empty());
}

#[test]
fn a_killed_fork_server_is_replaced_and_its_runs_go_on() {
    let cluster = Cluster::start(&["n1"]);
    let run = start_with_daemon(&cluster, &["n1"], "sleep 1000");
    let before = cluster.processes();
    let fork_server = cluster.fork_server_pid("n1");
    kill(fork_server);
    wait_until("a new fork server", || cluster.fork_servers("n1").iter().any(|pid| *pid != fork_server));
    let launches = gang(2, &["n1"], "echo again");
    cluster.start_gang(&launches);
    assert_eq!(cluster.released(launches[0].run, "n1").failed, None);
    assert_eq!(cluster.processes(), before);
    cluster.stop(run, &["n1"], 0);
    let end = cluster.released(run, "n1");
    assert!(end.was_stopped && !end.was_lost, "{end:?}");
    assert_eq!(cluster.processes(), [0; 0]);
}

#[test]
fn runs_of_a_killed_fork_server_end_with_the_agent() {
    let mut cluster = Cluster::start(&["n1"]);
    start_with_daemon(&cluster, &["n1"], "sleep 1000");
    let fork_server = cluster.fork_server_pid("n1");
    kill(fork_server);
    wait_until("a new fork server", || cluster.fork_servers("n1").iter().any(|pid| *pid != fork_server));
    assert!(cluster.end_agent("n1").success());
    assert_eq!(cluster.processes(), [0; 0]);
}

#[test]
fn what_a_killed_agent_and_a_killed_fork_server_left_goes_when_the_agent_comes_back() {
    let mut cluster = Cluster::start(&["n1"]);
    start_with_daemon(&cluster, &["n1"], "sleep 1000");
    let fork_server = cluster.fork_server_pid("n1");
    // Stopped, the agent cannot see its fork server die, and the run shim cannot clean up by itself.
    let run_shims = cluster.run_shim_pids("n1");
    assert!(!run_shims.is_empty());
    for pid in run_shims.iter().copied().chain([cluster.agent_pid("n1")]) {
        assert!(Command::new("kill").args(["-STOP", &pid.to_string()]).status().unwrap().success());
    }
    kill(fork_server);
    cluster.kill_agent("n1");
    assert!(!cluster.processes().is_empty());
    cluster.start_agent("n1", &[]);
    wait_until("its greeting", || cluster.hellos("n1") == 2);
    // So the control plane may start their run elsewhere: nothing may be left that could still start ranks.
    assert_eq!(cluster.processes(), [0; 0]);
    // One that has died and was not reaped has no command line.
    let is_left =
        |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
    let left: Vec<u32> = run_shims.into_iter().filter(is_left).collect();
    assert!(left.is_empty(), "run shims that would obey their last orders: {left:?}");
}

#[test]
fn an_agent_that_is_told_to_end_leaves_nothing_when_it_has() {
    let mut cluster = Cluster::start(&["n1"]);
    start_with_daemon(&cluster, &["n1"], "sleep 1000");
    assert!(cluster.end_agent("n1").success());
    assert_eq!(cluster.processes(), [0; 0]);
}

#[test]
fn an_agent_ended_by_the_control_plane_leaves_nothing_either() {
    let mut cluster = Cluster::start(&["n1"]);
    start_with_daemon(&cluster, &["n1"], "sleep 1000");
    cluster.tell("n1", &ToAgent::End);
    assert!(cluster.await_agent("n1").success());
    assert_eq!(cluster.processes(), [0; 0]);
}
