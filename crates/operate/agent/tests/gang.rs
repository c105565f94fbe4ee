//! Gangs of real processes on two nodes: they start together, end as they should, and leave nothing behind.

mod fixture;

use std::fs;

use bedplate_control::wire::*;
use fixture::{Cluster, gang, read, script, wait_until};

const NODES: &[&str] = &["n1", "n2"];

#[test]
fn a_gang_runs_on_two_nodes_with_prolog_and_epilog_and_its_place_in_the_world() {
    let cluster = Cluster::start(NODES);
    let trail = cluster.state.join("trail");
    let mut launches = gang(
        1,
        NODES,
        "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR on $BEDPLATE_NODE sees $CUDA_VISIBLE_DEVICES",
    );
    for launch in &mut launches {
        launch.prolog = Some(format!("echo prolog $BEDPLATE_NODE >> {}", trail.display()));
        launch.epilog = Some(format!("echo epilog $BEDPLATE_NODE >> {}", trail.display()));
    }
    let run = launches[0].run;
    cluster.start_gang(&launches);
    for node in NODES {
        let end = cluster.released(run, node);
        assert_eq!(end.failed, None);
        assert!(!end.was_lost && !end.was_stopped && end.epilog_failed.is_none(), "{end:?}");
    }
    let out = cluster.log(run, "n2", 1, LogStream::Stdout);
    assert_eq!(out, "rank 1 of 2 at 127.0.0.1 on n2 sees 0,1\n");
    let mut lines: Vec<String> = read(&trail).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["epilog n1", "epilog n2", "prolog n1", "prolog n2"]);
    assert_eq!(cluster.processes(), [0; 0]);
}

#[test]
fn a_failing_prolog_and_a_missing_directory_are_told_apart() {
    let cluster = Cluster::start(&["n1"]);
    let mut launches = gang(1, &["n1"], "true");
    launches[0].prolog = Some("echo no GPU here; exit 3".to_owned());
    let mut elsewhere = gang(2, &["n1"], "true");
    elsewhere[0].directory = Some("/no/such/place".to_owned());
    for launch in [&launches[0], &elsewhere[0]] {
        cluster.tell("n1", &ToAgent::Prepare(Box::new(launch.clone())));
    }
    let why = |job| {
        cluster.hear("a refusal", "n1", |message| match message {
            FromAgent::NotPrepared { run, why } if run.job == job => Some(why.clone()),
            _ => None,
        })
    };
    assert_eq!(why(1), Unready::Prolog { status: 3, output: "no GPU here".to_owned() });
    let Unready::Job { why } = why(2) else { panic!("it is the job's fault") };
    assert!(why.starts_with("its directory /no/such/place cannot be used"), "{why}");
    for job in [1, 2] {
        assert!(cluster.released(RunId { job, number: 1 }, "n1").was_lost);
    }
}

#[test]
fn a_failing_rank_is_told_with_its_status_and_a_missing_program_too() {
    let cluster = Cluster::start(&["n1"]);
    let mut missing = gang(2, &["n1"], "");
    missing[0].program = Program::Command(vec!["no-such-program".to_owned()]);
    cluster.start_gang(&gang(1, &["n1"], "exit 7"));
    cluster.start_gang(&missing);
    cluster.start_gang(&gang(3, &["n1"], "kill -9 $$"));
    for (job, end) in [(1, RankEnd::Exit(7)), (2, RankEnd::NotStarted(2)), (3, RankEnd::Signal(9))] {
        let found = cluster.released(RunId { job, number: 1 }, "n1");
        assert_eq!(found.failed, Some(FailedRank { rank: 0, end }));
    }
}

#[test]
fn who_ignores_the_request_to_end_is_killed_after_the_grace() {
    let cluster = Cluster::start(NODES);
    let launches = gang(1, NODES, "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done");
    let run = launches[0].run;
    cluster.start_gang(&launches);
    for (rank, node) in NODES.iter().enumerate() {
        wait_until("the rank to be up", || cluster.log(run, node, rank as u32, LogStream::Stdout) == "up\n");
    }
    cluster.stop(run, NODES, 700);
    for (rank, node) in NODES.iter().enumerate() {
        assert!(cluster.released(run, node).was_stopped);
        assert_eq!(cluster.log(run, node, rank as u32, LogStream::Stdout), "up\nasked\n");
    }
    assert_eq!(cluster.processes(), [0; 0]);
}

#[test]
fn a_suspended_gang_stands_still_and_goes_on() {
    let cluster = Cluster::start(&["n1"]);
    let launches = gang(1, &["n1"], "sleep 1000 & wait");
    let run = launches[0].run;
    cluster.start_gang(&launches);
    // Inside the run they may have other numbers.
    let pids = fixture::wait_for("the rank", || Some(cluster.processes()).filter(|pids| pids.len() == 2));
    let are_all = |expected: char| {
        pids.iter().all(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().unwrap_or_default().starts_with(expected)
        })
    };
    cluster.tell("n1", &ToAgent::Suspend { run });
    wait_until("the rank to stop", || are_all('T'));
    cluster.tell("n1", &ToAgent::Resume { run });
    wait_until("the rank to go on", || are_all('S'));
    cluster.tell("n1", &ToAgent::Suspend { run });
    wait_until("the rank to stop again", || are_all('T'));
    // Who is asked to end must be able to.
    cluster.stop(run, &["n1"], 600_000);
    assert!(cluster.released(run, "n1").was_stopped);
}

#[test]
fn signals_reach_every_process_of_a_run() {
    let cluster = Cluster::start(&["n1"]);
    // A shell that, unlike others, leaves the signal mask as it found it.
    let child = "trap 'echo child heard; exit' USR1; echo child up; while :; do sleep 0.05; done";
    let command = format!("trap 'echo parent heard' USR1; bash -c \"{child}\" & wait; wait");
    let launches = gang(1, &["n1"], &command);
    let run = launches[0].run;
    cluster.start_gang(&launches);
    wait_until("the child", || cluster.log(run, "n1", 0, LogStream::Stdout).contains("child up"));
    cluster.tell("n1", &ToAgent::Signal { run, signal: 10, to: Audience::All });
    cluster.released(run, "n1");
    let out = cluster.log(run, "n1", 0, LogStream::Stdout);
    assert!(out.contains("parent heard") && out.contains("child heard"), "{out}");
}

#[test]
fn a_script_runs_once_on_the_first_node_while_the_others_hold_their_lease() {
    let cluster = Cluster::start(NODES);
    let text = "#!/bin/sh -e\necho script on $SLURMD_NODENAME of $SLURM_JOB_NODELIST\nexit 0\n";
    let launches = script(1, NODES, text);
    let run = launches[0].run;
    cluster.start_gang(&launches);
    assert_eq!(cluster.released(run, "n1").failed, None);
    assert_eq!(cluster.log(run, "n1", 0, LogStream::Stdout), "script on n1 of n[1-2]\n");
    cluster.stop(run, &["n2"], 0);
    assert_eq!(cluster.released(run, "n2").failed, None);
}

#[test]
fn what_a_run_used_is_told() {
    let cluster = Cluster::start(&["n1"]);
    let work = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let launches = gang(1, &["n1"], work);
    cluster.start_gang(&launches);
    let end = cluster.released(launches[0].run, "n1");
    assert!(end.cpu_ms > 0 && end.peak_memory_mib > 0, "{end:?}");
}

#[test]
fn a_memory_limit_holds_where_the_node_says_so_and_out_of_memory_is_called_that() {
    let cluster = Cluster::start(&["n1"]);
    let enforced = cluster.hello("n1").host.enforced;
    if !enforced.iter().any(|each| each.starts_with("memory")) {
        println!("SKIPPED: this host lets no memory limit be set ({enforced:?})");
        return;
    }
    // `tail` keeps a line of 300 MB; a shell says by its status, and later, that its child was killed.
    let too_much =
        ["head -c 300000000 /dev/zero | tail", "head -c 300000000 /dev/zero | tail -n 1 | wc -c; exit 137"];
    for (job, command) in (1..).zip(too_much) {
        let mut launches = gang(job, &["n1"], command);
        launches[0].memory_mib = 50;
        launches[0].stdout = Some("/dev/null".to_owned());
        cluster.start_gang(&launches);
        let end = RankEnd::OutOfMemory { limit_mib: Some(50) };
        assert_eq!(
            cluster.released(launches[0].run, "n1").failed,
            Some(FailedRank { rank: 0, end }),
            "{command}"
        );
        assert_eq!(end.to_string(), "out of memory: its run may use 50 MiB on a node");
    }
    // One that is merely killed is not out of memory.
    let mut launches = gang(9, &["n1"], "kill -9 $$");
    launches[0].memory_mib = 50;
    cluster.start_gang(&launches);
    let failed = cluster.released(launches[0].run, "n1").failed;
    assert_eq!(failed, Some(FailedRank { rank: 0, end: RankEnd::Signal(9) }));
}

#[test]
fn a_wrong_token_ends_the_agent_with_what_the_control_plane_says() {
    let cluster = Cluster::start(&["n1"]);
    let hello = cluster.hello("n1");
    assert_eq!((hello.node.as_str(), hello.address.as_str()), ("n1", "127.0.0.1"));
    assert!(hello.host.cores > 0 && hello.host.memory_mib > 0);
    let outcome = std::process::Command::new(fixture::PROGRAM)
        .args([cluster.address(), "wrong", "n9", "127.0.0.9"])
        .arg(cluster.state.join("other"))
        .output()
        .unwrap();
    let told = String::from_utf8(outcome.stderr).unwrap();
    assert!(!outcome.status.success());
    assert!(told.contains("refuses this agent (status 401): the token is not known"), "{told}");
}

#[test]
fn ranks_share_a_limit_of_processes_where_the_host_permits_one() {
    let cluster = Cluster::start(&["n1"]);
    let enforced = cluster.hello("n1").host.enforced;
    let Some(limit) = enforced.iter().find(|each| each.contains(" processes by cgroup")) else {
        println!("SKIPPED: this host does not permit it: {enforced:?}");
        return;
    };
    // Its own cgroup, whichever version has the controller, or one above.
    let show = "g=$(grep -E '^0:|:pids:' /proc/self/cgroup | tr '\n' ' '); for at in $g; do p=${at##*:}; \
                for d in /sys/fs/cgroup$p /sys/fs/cgroup/pids$p /sys/fs/cgroup${p%/*}; do \
                cat $d/pids.max 2>/dev/null; done; done; true";
    let launches = gang(1, &["n1"], show);
    cluster.start_gang(&launches);
    cluster.released(launches[0].run, "n1");
    let shown = cluster.log(launches[0].run, "n1", 0, LogStream::Stdout);
    let number = limit.split(' ').next().unwrap_or_default();
    assert!(shown.lines().any(|line| line == number), "{shown:?} {limit}");
}
