//! File systems that do not answer, under every path that an agent reads for a job: the job waits, its neighbours start, run and end, and it can be stopped.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod fixture;

use std::fs;
use std::path::PathBuf;

use bedplate_control::wire::*;
use bedplate_report::Report;
use bedplate_testkit::{Hanging, HangingMount};
use fixture::{Cluster, gang, wait_until};

/// Another job, from its start to its end.
fn neighbour_is_well(cluster: &Cluster, number: u64) {
    let launches = gang(number, &["n1"], "echo well");
    cluster.start_gang(&launches);
    cluster.released(launches[0].run, "n1");
    assert_eq!(cluster.log(launches[0].run, "n1", 0, LogStream::Stdout), "well\n");
}

fn dead(cluster: &Cluster, hanging: Hanging) -> Option<(PathBuf, HangingMount)> {
    let folder = cluster.state.join("dead");
    fs::create_dir(&folder).unwrap();
    let mount = HangingMount::at(&folder, "s3fs", hanging)?;
    Some((folder, mount))
}

fn end(cluster: &Cluster, run: RunId) {
    cluster.tell("n1", &ToAgent::Stop { run, grace_ms: 0 });
    cluster.released(run, "n1");
    cluster.tell("n1", &ToAgent::Forget { run });
}

#[test]
fn directories_and_files_that_do_not_answer_before_the_start_hold_up_their_job_alone() {
    type Set = fn(&mut Launch, String);
    let places: [Set; 4] = [
        |launch, path| launch.directory = Some(path),
        |launch, path| launch.facts.submit_directory = Some(path),
        |launch, path| launch.stdin = Some(path + "/input"),
        |launch, path| launch.stdout = Some(path + "/output"),
    ];
    let cluster = Cluster::start(&["n1"]);
    let Some((folder, _mount)) = dead(&cluster, Hanging::Everything) else { return };
    let mut runs = Vec::new();
    for (number, set) in (1..).zip(places) {
        let mut launch = gang(number, &["n1"], "true").remove(0);
        set(&mut launch, folder.display().to_string());
        runs.push(launch.run);
        cluster.tell("n1", &ToAgent::Prepare(Box::new(launch)));
    }
    neighbour_is_well(&cluster, 20);
    runs.into_iter().for_each(|run| end(&cluster, run));
    neighbour_is_well(&cluster, 21);
}

#[test]
fn output_to_a_file_system_that_has_died_holds_up_its_rank_alone() {
    let cluster = Cluster::start(&["n1"]);
    let Some((folder, _mount)) = dead(&cluster, Hanging::Contents) else { return };
    let mut launches = gang(1, &["n1"], "echo lost; sleep 1000");
    launches[0].stdout = Some(folder.join("output").display().to_string());
    cluster.start_gang(&launches);
    neighbour_is_well(&cluster, 20);
    // What others write to files of their own is still watched.
    let mut others = gang(2, &["n1"], "echo torch.OutOfMemoryError: CUDA out of memory.; sleep 1000");
    others[0].stdout = Some(cluster.state.join("alive").display().to_string());
    cluster.start_gang(&others);
    cluster.hear("the error in the other's log", "n1", |message| match message {
        FromAgent::Report { run, report: Report::Log { .. }, .. } if *run == others[0].run => Some(()),
        _ => None,
    });
    let why = cluster.try_log(launches[0].run, "n1", 0, LogStream::Stdout).unwrap_err();
    assert!(why.contains("has not answered"), "{why}");
    end(&cluster, launches[0].run);
    end(&cluster, others[0].run);
    neighbour_is_well(&cluster, 21);
}

#[test]
fn a_mount_over_a_run_s_own_folder_holds_nobody_up() {
    let cluster = Cluster::start(&["n1"]);
    let launches = gang(1, &["n1"], "echo before; sleep 1000");
    let run = launches[0].run;
    cluster.start_gang(&launches);
    wait_until("it has written", || {
        cluster.try_log(run, "n1", 0, LogStream::Stdout).is_ok_and(|log| log == "before\n")
    });
    let folder = cluster.state.join("runs/1.1/n1");
    let Some(mount) = HangingMount::at(&folder, "s3fs", Hanging::Everything) else { return };
    neighbour_is_well(&cluster, 20);
    let why = cluster.try_log(run, "n1", 0, LogStream::Stdout).unwrap_err();
    assert!(why.contains("something is mounted there"), "{why}");
    end(&cluster, run);
    let why = cluster.try_log(run, "n1", 0, LogStream::Stdout).unwrap_err();
    assert!(why.contains("something is mounted there"), "{why}");
    neighbour_is_well(&cluster, 21);
    drop(mount);
}
