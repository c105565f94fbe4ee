//! Jobs that put pipes, links and devices where files should be harm themselves at most: their neighbours start, run and
//! end, and they can be stopped.

mod fixture;

use std::fs;
use std::path::Path;
use std::process::Command;

use bedplate_control::wire::*;
use fixture::{Cluster, gang, wait_until};

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("every host has `mkfifo`").success());
}

/// A job that runs beside the hostile one, from its start to its end.
fn neighbour_is_well(cluster: &Cluster) {
    let launches = gang(9, &["n1"], "echo well");
    cluster.start_gang(&launches);
    cluster.released(launches[0].run, "n1");
    assert_eq!(cluster.log(launches[0].run, "n1", 0, LogStream::Stdout), "well\n");
}

#[test]
fn a_pipe_without_a_peer_as_a_stream_holds_up_its_own_rank_alone() {
    type Set = fn(&mut Launch, String);
    let streams: [(&str, Set); 3] = [
        ("stdin", |launch, path| launch.stdin = Some(path)),
        ("stdout", |launch, path| launch.stdout = Some(path)),
        ("stderr", |launch, path| launch.stderr = Some(path)),
    ];
    for (name, set) in streams {
        let cluster = Cluster::start(&["n1"]);
        let pipe = cluster.state.join("pipe");
        make_pipe(&pipe);
        let mut launches = gang(1, &["n1"], "sleep 1000");
        set(&mut launches[0], pipe.display().to_string());
        cluster.start_gang(&launches);
        neighbour_is_well(&cluster);
        let run = launches[0].run;
        cluster.tell("n1", &ToAgent::Stop { run, grace_ms: 0 });
        cluster.released(run, "n1");
        println!("{name}: stopped");
    }
}

#[test]
fn reports_and_logs_replaced_by_pipes_links_and_devices_stop_nobody() {
    let cluster = Cluster::start(&["n1"]);
    let secret = cluster.state.join("secret");
    fs::write(&secret, "of another user").unwrap();
    let swaps = format!(
        "rm -f $BEDPLATE_REPORT; mkfifo $BEDPLATE_REPORT; rm -f rank-0.out; mkfifo rank-0.out; \
         ln -sf {} rank-0.err; mkfifo outputs.json; touch ready; sleep 1000",
        secret.display()
    );
    let launches = gang(1, &["n1"], &swaps);
    let run = launches[0].run;
    cluster.start_gang(&launches);
    wait_until("the swaps", || cluster.state.join("runs/1.1/n1/ready").exists());
    for stream in [LogStream::Stdout, LogStream::Stderr] {
        let why = cluster.try_log(run, "n1", 0, stream).unwrap_err();
        assert!(why.starts_with("cannot read the log"), "{why}");
    }
    neighbour_is_well(&cluster);
    cluster.tell("n1", &ToAgent::Stop { run, grace_ms: 0 });
    cluster.released(run, "n1");
    cluster.tell("n1", &ToAgent::Forget { run });
    cluster.try_log(run, "n1", 0, LogStream::Stderr).unwrap_err();
    neighbour_is_well_again(&cluster);
}

fn neighbour_is_well_again(cluster: &Cluster) {
    let launches = gang(10, &["n1"], "true");
    cluster.start_gang(&launches);
    cluster.released(launches[0].run, "n1");
}
