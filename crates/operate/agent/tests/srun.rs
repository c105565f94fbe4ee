//! Scripts that were written for Slurm, inside a gang of two nodes.

mod fixture;

use std::fs;

use bedplate_control::wire::*;
use fixture::{Cluster, script, wait_until};

const NODES: &[&str] = &["n1", "n2"];

/// What a script printed, and how it ended.
fn run(body: &str) -> (String, String, Option<RankEnd>) {
    let cluster = Cluster::start(NODES);
    let launches = script(1, NODES, &format!("#!/bin/bash\n{body}"));
    let run = launches[0].run;
    cluster.start_gang(&launches);
    let end = cluster.released(run, "n1").failed.map(|failed| failed.end);
    cluster.stop(run, &["n2"], 0);
    cluster.released(run, "n2");
    assert_eq!(cluster.processes(), [0; 0]);
    let log = |stream| cluster.log(run, "n1", 0, stream);
    (log(LogStream::Stdout), log(LogStream::Stderr), end)
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn a_step_runs_on_every_node_of_the_gang() {
    let (out, err, end) = run(
        "srun bash -c 'echo $SLURM_PROCID of $SLURM_NTASKS, rank $RANK on $SLURMD_NODENAME in step $SLURM_STEP_ID; echo complaint >&2'",
    );
    assert_eq!(sorted(&out), ["0 of 2, rank 0 on n1 in step 0", "1 of 2, rank 1 on n2 in step 0"]);
    assert_eq!((err.as_str(), end), ("complaint\ncomplaint\n", None));
}

#[test]
fn labels_counts_and_exports_are_honoured() {
    let (out, _, end) = run(
        "export COLOUR=red\nsrun -l -N2 --ntasks-per-node=2 --export=ALL,SHAPE=round bash -c 'echo $LOCAL_RANK $COLOUR $SHAPE'",
    );
    assert_eq!(sorted(&out), ["0: 0 red round", "1: 1 red round", "2: 0 red round", "3: 1 red round"]);
    assert_eq!(end, None);
}

#[test]
fn the_usual_head_node_lines_give_an_address_that_can_be_reached() {
    let body = "nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )\n\
                head=${nodes[0]}\n\
                other=$(srun --nodes=1 --ntasks=1 -w ${nodes[1]} bash -c 'echo $SLURMD_NODENAME')\n\
                echo ${#nodes[@]} $head $other\n";
    let (out, err, end) = run(body);
    assert_eq!((out.as_str(), err.as_str(), end), ("2 127.0.0.1 n2\n", "", None));
}

#[test]
fn the_highest_status_of_the_tasks_is_the_status_of_srun() {
    let (out, _, end) = run(
        "srun bash -c 'exit $((SLURM_PROCID * 5))'; echo status $?\nsrun no-such-program; echo status $?\nexit 3",
    );
    assert_eq!(out, "status 5\nstatus 127\n");
    assert_eq!(end, Some(RankEnd::Exit(3)));
}

#[test]
fn a_bad_exit_kills_the_other_tasks_when_asked_to() {
    let (out, _, _) =
        run("srun -K1 bash -c 'if [ $SLURM_PROCID = 0 ]; then exit 4; fi; sleep 1000'; echo status $?");
    assert_eq!(out, "status 137\n");
}

#[test]
fn a_signal_to_srun_reaches_its_tasks() {
    let body = "touch out\n\
                srun bash -c 'trap \"echo heard; exit 0\" TERM; echo up; while :; do sleep 0.05; done' > out &\n\
                pid=$!\n\
                while [ \"$(grep -c up out)\" != 2 ]; do sleep 0.05; done\n\
                kill -TERM $pid; wait $pid; echo status $?; cat out";
    let (out, _, _) = run(body);
    assert_eq!(out, "status 0\nup\nup\nheard\nheard\n");
}

#[test]
fn tasks_die_with_an_srun_that_is_killed() {
    let cluster = Cluster::start(NODES);
    let body = "#!/bin/bash\nsrun sleep 1000 &\npid=$!\nwhile [ ! -e go ]; do sleep 0.05; done\nkill -9 $pid\nwait\nsleep 1000";
    let launches = script(1, NODES, body);
    cluster.start_gang(&launches);
    let sleeping = || {
        let is_sleep = |pid: &&i32| {
            fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default() == "sleep\x001000\x00"
        };
        cluster.processes().iter().filter(is_sleep).count()
    };
    wait_until("both tasks", || sleeping() == 2);
    fs::write(cluster.state.join("runs/1.1/n1/go"), "").unwrap();
    // The script's own remains.
    wait_until("the tasks to be gone", || sleeping() == 1);
}

#[test]
fn what_cannot_be_had_is_said() {
    let (out, err, _) = run(
        "srun --container-image=x true; echo $?\nscontrol show job; echo $?\nscontrol reboot; echo $?\nsrun --frobnicate true; echo $?",
    );
    assert_eq!(out, "1\n1\n1\n1\n");
    let expected = "\
srun: error: `--container-image` cannot be honoured: tasks run as the job does; start the container in the command itself (docker, enroot, apptainer)
scontrol: error: use `bedplate job show` instead
scontrol: error: inside Bedplate only `scontrol show hostnames [LIST]` is there, not `reboot`
srun: error: unknown option `--frobnicate`
";
    assert_eq!(err, expected);
}

#[test]
fn long_output_comes_through_whole() {
    let (out, _, end) = run(
        "srun -n 2 bash -c 'seq 1 100000 | sed s/^/$SLURM_PROCID-/' > out; wc -l < out; sort -u out | wc -l",
    );
    assert_eq!((out.as_str(), end), ("200000\n200000\n", None));
}
