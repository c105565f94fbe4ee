//! A node that the control plane cannot hear kills its ranks before the control plane starts them elsewhere.

mod fixture;

use std::time::{Duration, Instant};

use bedplate_control::wire::*;
use fixture::{Cluster, gang, wait_until};

fn start(cluster: &Cluster, node: &str) -> RunId {
    let launches = gang(1, &[node], "echo up; sleep 1000");
    cluster.start_gang(&launches);
    wait_until("the rank", || cluster.log(launches[0].run, node, 0, LogStream::Stdout) == "up\n");
    launches[0].run
}

#[test]
fn ranks_die_when_nobody_answers_and_the_run_is_told_as_lost_later() {
    let cluster = Cluster::start(&["n1"]);
    let run = start(&cluster, "n1");
    cluster.tell("n1", &ToAgent::Chaos(Chaos::Cut { for_ms: cluster.silence_ms + 2000 }));
    let begun = Instant::now();
    wait_until("the ranks to die", || cluster.processes().is_empty());
    println!(
        "{} ms after the cut; the control plane waits {}",
        begun.elapsed().as_millis(),
        cluster.silence_ms
    );
    assert!(cluster.released(run, "n1").was_lost);
}

#[test]
fn ranks_live_while_the_control_plane_restarts() {
    let mut cluster = Cluster::start(&["n1"]);
    let run = start(&cluster, "n1");
    let processes = cluster.processes();
    cluster.stop_control_plane();
    // Longer than the silence after which a node that is not heard is given up.
    std::thread::sleep(Duration::from_millis(cluster.silence_ms + 1500));
    assert_eq!(cluster.processes(), processes);
    cluster.start_control_plane();
    wait_until("a second greeting", || cluster.hellos("n1") == 2);
    let held = cluster.hello("n1").held;
    assert_eq!(held, [HeldRun { run, phase: HeldPhase::Running, is_suspended: false }]);
    assert_eq!(cluster.processes(), processes);
    cluster.stop(run, &["n1"], 0);
    assert!(cluster.released(run, "n1").was_stopped);
}

#[test]
fn delayed_messages_still_come_and_keep_the_lease() {
    let cluster = Cluster::start(&["n1"]);
    let run = start(&cluster, "n1");
    cluster.tell("n1", &ToAgent::Chaos(Chaos::Delay { by_ms: 150, for_ms: 60_000 }));
    // Longer than a lease lasts that nothing renews.
    std::thread::sleep(Duration::from_millis(cluster.silence_ms + 500));
    assert_eq!(cluster.processes().len(), 2);
    cluster.stop(run, &["n1"], 0);
    assert!(!cluster.released(run, "n1").was_lost);
}

#[test]
fn a_rank_that_chaos_kills_has_failed_by_a_signal() {
    let cluster = Cluster::start(&["n1"]);
    let run = start(&cluster, "n1");
    cluster.tell("n1", &ToAgent::Chaos(Chaos::KillRank { run: None, rank: None }));
    let end = RankEnd::Signal(9);
    assert_eq!(cluster.released(run, "n1").failed, Some(FailedRank { rank: 0, end }));
}

/// Stops a process as a debugger or a swap storm would.
fn freeze(pid: u32) {
    assert!(
        std::process::Command::new("kill")
            .args(["-STOP", &pid.to_string()])
            .status()
            .expect("every host has `kill`")
            .success()
    );
}

fn thaw(pid: u32) {
    let _ = std::process::Command::new("kill").args(["-CONT", &pid.to_string()]).status();
}

#[test]
fn a_frozen_agent_does_not_keep_its_ranks_alive() {
    let cluster = Cluster::start(&["n1"]);
    let run = start(&cluster, "n1");
    let agent = cluster.agent_pid("n1");
    freeze(agent);
    wait_until("the ranks to die", || cluster.processes().is_empty());
    thaw(agent);
    wait_until("the agent to come back", || {
        cluster.heard_already("n1", |message| match message {
            FromAgent::Released { run: of, end } if *of == run => Some(end.was_lost),
            _ => None,
        }) == Some(true)
    });
}

#[test]
fn a_run_shim_that_is_frozen_with_its_agent_does_not_keep_its_ranks_alive_either() {
    let cluster = Cluster::start(&["n1"]);
    let run = start(&cluster, "n1");
    let (agent, run_shim) = (cluster.agent_pid("n1"), cluster.run_shim_pids("n1")[0]);
    freeze(run_shim);
    freeze(agent);
    wait_until("the ranks to die", || cluster.processes().is_empty());
    thaw(agent);
    wait_until("the agent to come back", || {
        cluster.heard_already("n1", |message| match message {
            FromAgent::Released { run: of, end } if *of == run => Some((end.was_lost, end.failed.is_none())),
            _ => None,
        }) == Some((true, true))
    });
}

#[test]
fn a_frozen_fork_server_is_replaced_and_no_run_is_harmed() {
    let cluster = Cluster::start(&["n1"]);
    let run = start(&cluster, "n1");
    let before = cluster.processes();
    freeze(cluster.fork_server_pid("n1"));
    let launches = gang(2, &["n1"], "echo not yet");
    cluster.start_gang(&launches);
    // It was to be started by the frozen fork server.
    assert!(cluster.released(launches[0].run, "n1").was_lost);
    let launches = gang(3, &["n1"], "echo works again");
    cluster.start_gang(&launches);
    cluster.released(launches[0].run, "n1");
    assert_eq!(cluster.log(launches[0].run, "n1", 0, LogStream::Stdout), "works again\n");
    assert_eq!(cluster.processes(), before);
    cluster.stop(run, &["n1"], 0);
    let end = cluster.released(run, "n1");
    assert!(end.was_stopped && !end.was_lost, "{end:?}");
}

#[test]
fn a_frozen_run_shim_is_killed_and_its_run_alone_is_lost() {
    let cluster = Cluster::start(&["n1"]);
    let run = start(&cluster, "n1");
    let other = gang(2, &["n1"], "echo up; sleep 1000");
    cluster.start_gang(&other);
    wait_until("the other", || cluster.log(other[0].run, "n1", 0, LogStream::Stdout) == "up\n");
    freeze(cluster.run_shim_pids("n1")[0]);
    assert!(cluster.released(run, "n1").was_lost);
    assert_eq!(cluster.processes().len(), 2);
    cluster.stop(other[0].run, &["n1"], 0);
    assert!(!cluster.released(other[0].run, "n1").was_lost);
}

#[test]
fn a_link_that_falls_silent_is_made_again() {
    let cluster = Cluster::start(&["n1"]);
    cluster.mute_links();
    wait_until("a second greeting", || cluster.hellos("n1") == 2);
}
