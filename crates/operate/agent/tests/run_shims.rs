//! A job that kills what started it harms itself at most: with privileges it cannot even see it, without them it ends its
//! own run and no other.

#![allow(clippy::print_stdout, reason = "a test that is skipped says so")]

mod fixture;

use bedplate_control::wire::*;
use fixture::{Cluster, gang, wait_for, wait_until};

/// Whether runs have pid namespaces here.
fn is_isolated(cluster: &Cluster) -> bool {
    cluster.hello("n1").host.enforced.iter().any(|each| each.contains("pid namespace"))
}

fn isolated() -> Option<Cluster> {
    let cluster = Cluster::start(&["n1"]);
    if !is_isolated(&cluster) {
        println!("SKIPPED: this host does not let the tests make pid namespaces");
        return None;
    }
    Some(cluster)
}

fn is_running(command: &str) -> bool {
    let listed =
        std::process::Command::new("ps").args(["-eo", "args"]).output().expect("every host has `ps`");
    String::from_utf8_lossy(&listed.stdout).lines().any(|line| line == command)
}

/// A run that is there before and after whatever the others do.
fn start_neighbour(cluster: &Cluster) -> RunId {
    let neighbour = gang(9, &["n1"], "echo up; sleep 1000");
    cluster.start_gang(&neighbour);
    let run = neighbour[0].run;
    wait_until("the neighbour", || cluster.log(run, "n1", 0, LogStream::Stdout) == "up\n");
    run
}

fn neighbour_is_unharmed(cluster: &Cluster, run: RunId) {
    assert_eq!(cluster.processes().len(), 2);
    cluster.stop(run, &["n1"], 0);
    let end = cluster.released(run, "n1");
    assert!(end.was_stopped && !end.was_lost && end.failed.is_none(), "{end:?}");
}

#[test]
fn without_privileges_a_rank_that_kills_its_parent_ends_its_own_run_alone() {
    let cluster = Cluster::start_unprivileged(&["n1"]);
    assert!(!is_isolated(&cluster));
    let neighbour = start_neighbour(&cluster);
    let hidden = "(env -i setsid sleep 7131.5 >/dev/null 2>&1 &); (setsid sleep 1000 &); sleep 0.2; ";
    let launches = gang(1, &["n1"], &format!("{hidden} kill -9 $PPID; sleep 1000"));
    cluster.start_gang(&launches);
    let end = cluster.released(launches[0].run, "n1");
    assert_eq!(end.failed, Some(FailedRank { rank: 0, end: RankEnd::ShimKilled }));
    assert!(!is_running("sleep 7131.5"));
    neighbour_is_unharmed(&cluster, neighbour);
}

#[test]
fn without_privileges_a_rank_that_kills_the_fork_server_harms_no_neighbour() {
    let cluster = Cluster::start_unprivileged(&["n1"]);
    let neighbour = start_neighbour(&cluster);
    let fork_server = "kill -9 $(cut -d' ' -f4 /proc/$PPID/stat); echo killed";
    let launches = gang(1, &["n1"], fork_server);
    cluster.start_gang(&launches);
    assert_eq!(cluster.released(launches[0].run, "n1").failed, None);
    let launches = gang(2, &["n1"], "true");
    cluster.start_gang(&launches);
    assert_eq!(cluster.released(launches[0].run, "n1").failed, None);
    neighbour_is_unharmed(&cluster, neighbour);
}

#[test]
fn without_privileges_a_rank_that_stops_its_parent_loses_its_own_run_alone() {
    let cluster = Cluster::start_unprivileged(&["n1"]);
    let neighbour = start_neighbour(&cluster);
    let launches = gang(1, &["n1"], "kill -STOP $PPID; sleep 1000");
    cluster.start_gang(&launches);
    assert!(cluster.released(launches[0].run, "n1").was_lost);
    neighbour_is_unharmed(&cluster, neighbour);
}

#[test]
fn in_a_namespace_a_rank_cannot_kill_or_stop_its_parent() {
    let Some(cluster) = isolated() else { return };
    let neighbour = start_neighbour(&cluster);
    let launches = gang(1, &["n1"], "kill -9 $PPID; kill -STOP $PPID; kill -9 -1; echo I am $$ of $PPID");
    cluster.start_gang(&launches);
    let run = launches[0].run;
    assert_eq!(cluster.released(run, "n1").failed, None);
    assert_eq!(cluster.log(run, "n1", 0, LogStream::Stdout), "I am 2 of 1\n");
    neighbour_is_unharmed(&cluster, neighbour);
}

#[test]
fn in_a_namespace_the_end_of_a_run_shim_is_no_fault_of_its_run() {
    let Some(cluster) = isolated() else { return };
    let launches = gang(1, &["n1"], "sleep 1000");
    cluster.start_gang(&launches);
    let shim = wait_for("the run shim", || cluster.run_shim_pids("n1").first().copied()).to_string();
    let killed = std::process::Command::new("kill").args(["-9", &shim]).status();
    assert!(killed.expect("every host has `kill`").success());
    let end = cluster.released(launches[0].run, "n1");
    assert!(end.was_lost && end.failed.is_none(), "{end:?}");
}

#[test]
fn in_a_namespace_a_run_sees_its_own_processes_only() {
    let Some(cluster) = isolated() else { return };
    let neighbour = start_neighbour(&cluster);
    let launches = gang(1, &["n1"], "sleep 1000 & ls -d /proc/[0-9]* | grep -v $$ | wc -l; kill $!");
    cluster.start_gang(&launches);
    let run = launches[0].run;
    assert_eq!(cluster.released(run, "n1").failed, None);
    let seen: u32 = cluster.log(run, "n1", 0, LogStream::Stdout).trim().parse().expect("a number");
    assert!(seen <= 5, "{seen} processes");
    neighbour_is_unharmed(&cluster, neighbour);
}

#[test]
fn in_a_namespace_a_daemon_that_hides_dies_with_the_run() {
    let Some(cluster) = isolated() else { return };
    let neighbour = start_neighbour(&cluster);
    let launches = gang(1, &["n1"], "(env -i setsid sleep 7129.5 >/dev/null 2>&1 &); sleep 0.2");
    cluster.start_gang(&launches);
    assert_eq!(cluster.released(launches[0].run, "n1").failed, None);
    let listed =
        std::process::Command::new("ps").args(["-eo", "args"]).output().expect("every host has `ps`");
    assert!(!String::from_utf8_lossy(&listed.stdout).lines().any(|line| line == "sleep 7129.5"));
    neighbour_is_unharmed(&cluster, neighbour);
}

#[test]
fn ranks_of_one_run_share_what_they_see() {
    let Some(cluster) = isolated() else { return };
    let mut launches = gang(1, &["n1"], "readlink /proc/self/ns/pid; sleep 0.2");
    launches[0].ranks = vec![0, 1];
    cluster.start_gang(&launches);
    let run = launches[0].run;
    assert_eq!(cluster.released(run, "n1").failed, None);
    let [first, second] = [0, 1].map(|rank| cluster.log(run, "n1", rank, LogStream::Stdout));
    assert!(first.starts_with("pid:") && first == second, "{first} {second}");
}
