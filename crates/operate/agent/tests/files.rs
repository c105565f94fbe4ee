//! What ranks write: their own files, captured logs, reports; and what probes say.

mod fixture;

use std::fs;

use bedplate_control::wire::*;
use bedplate_report::Report;
use fixture::{Cluster, gang, read, wait_until};

#[test]
fn captured_logs_are_read_back_by_stream_while_a_run_lives_and_after() {
    let cluster = Cluster::start(&["n1"]);
    let launches =
        gang(1, &["n1"], "echo out; echo err >&2; while [ ! -e go ]; do sleep 0.02; done; echo end");
    let run = launches[0].run;
    cluster.start_gang(&launches);
    wait_until("the first line", || cluster.log(run, "n1", 0, LogStream::Stdout) == "out\n");
    assert_eq!(cluster.log(run, "n1", 0, LogStream::Stderr), "err\n");
    fs::write(cluster.state.join("runs/1.1/n1/go"), "").unwrap();
    cluster.released(run, "n1");
    cluster.tell("n1", &ToAgent::Forget { run });
    assert_eq!(cluster.log(run, "n1", 0, LogStream::Stdout), "out\nend\n");
}

#[test]
fn a_job_that_names_its_files_gets_them_by_rank_and_a_restart_appends() {
    let cluster = Cluster::start(&["n1", "n2"]);
    let directory = cluster.state.join("home");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("0-n1.log"), "older\n").unwrap();
    fs::write(directory.join("input"), "from a file\n").unwrap();
    for (number, appends) in [(1, false), (2, true)] {
        let mut launches = gang(1, &["n1", "n2"], "cat; echo err >&2");
        for launch in &mut launches {
            launch.run.number = number;
            launch.directory = Some(directory.display().to_string());
            launch.stdin = Some("input".to_owned());
            launch.stdout = Some("%t-%N.log".to_owned());
            launch.appends = appends;
        }
        cluster.start_gang(&launches);
        cluster.released(launches[0].run, "n1");
        cluster.released(launches[0].run, "n2");
        assert_eq!(
            cluster.log(launches[0].run, "n2", 1, LogStream::Stderr),
            "from a file\nerr\n".repeat(number as usize)
        );
    }
    for name in ["0-n1.log", "1-n2.log"] {
        assert_eq!(read(&directory.join(name)), "from a file\nerr\n".repeat(2));
    }
}

#[test]
fn output_that_cannot_be_written_is_the_fault_of_the_job() {
    let cluster = Cluster::start(&["n1"]);
    let mut launches = gang(1, &["n1"], "true");
    launches[0].stdout = Some("/no/such/place/out".to_owned());
    cluster.tell("n1", &ToAgent::Prepare(Box::new(launches[0].clone())));
    let why = cluster.hear("a refusal", "n1", |message| match message {
        FromAgent::NotPrepared { why: Unready::Job { why }, .. } => Some(why.clone()),
        _ => None,
    });
    assert!(why.starts_with("cannot write /no/such/place/out"), "{why}");
}

#[test]
fn ranks_report_progress_and_checkpoints_the_last_word_included() {
    let cluster = Cluster::start(&["n1"]);
    let command = "echo progress 10 >> $BEDPLATE_REPORT; echo nonsense >> $BEDPLATE_REPORT; sleep 0.5; \
                   echo checkpoint 20 /shared/c20 >> $BEDPLATE_REPORT; echo progress 21 >> $BEDPLATE_REPORT";
    let launches = gang(1, &["n1"], command);
    let run = launches[0].run;
    cluster.start_gang(&launches);
    cluster.released(run, "n1");
    let checkpoint = Checkpoint { step: 20, path: Some("/shared/c20".to_owned()) };
    let report = |report| FromAgent::Report { run, rank: 0, report };
    for expected in [
        report(Report::Progress { step: 10 }),
        report(Report::Checkpoint(checkpoint)),
        report(Report::Progress { step: 21 }),
    ] {
        assert!(cluster.heard_already("n1", |message| (*message == expected).then_some(())).is_some());
    }
}

#[test]
fn a_failing_probe_of_the_node_is_told_with_its_output_and_so_is_its_recovery() {
    let mut cluster = Cluster::without_agents();
    let bad = cluster.state.join("bad");
    fs::write(&bad, "").unwrap();
    let probe = format!("if [ -e {} ]; then echo XID 79; exit 1; fi", bad.display());
    cluster.start_agent("n1", &[&probe, "100"]);
    let reason = cluster.hear("a failing probe", "n1", |message| match message {
        FromAgent::Unhealthy { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(reason, "the node's probe failed with exit code 1: XID 79");
    fs::remove_file(bad).unwrap();
    cluster.hear("its recovery", "n1", |message| (*message == FromAgent::Healthy).then_some(()));
}

#[test]
fn a_node_checks_itself_when_it_is_asked_and_only_a_check_that_ends_in_failure_has_found_something() {
    for (check, found) in [
        (None, None),
        (Some("true"), None),
        (Some("/bin/sh -c 'echo products differ; exit 1'"), Some("the node's check failed: products differ")),
        (Some("/bin/sh -c 'kill -9 $$'"), None),
        (Some("no-such-program"), None),
    ] {
        let mut cluster = Cluster::without_agents();
        cluster.check = check.map(str::to_owned);
        cluster.start_agent("n1", &[]);
        cluster.hello("n1");
        cluster.tell("n1", &ToAgent::Check);
        let fault = cluster.hear("what the check found", "n1", |message| match message {
            FromAgent::Checked { fault } => Some(fault.clone()),
            _ => None,
        });
        assert_eq!(fault.as_deref(), found, "{check:?}");
    }
}

#[test]
fn the_probe_of_a_job_finds_fault_with_its_node() {
    let cluster = Cluster::start(&["n1"]);
    let mut launches = gang(1, &["n1"], "sleep 1000");
    launches[0].probe = Some(Probe { command: "echo slow link; exit 2".to_owned(), every_ms: 100 });
    cluster.start_gang(&launches);
    let reason = cluster.hear("a failing probe", "n1", |message| match message {
        FromAgent::Unhealthy { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(reason, "the probe of run 1 of job 1 failed with exit code 2: slow link");
}

#[test]
fn nothing_but_logs_is_left_of_a_run() {
    let cluster = Cluster::start(&["n1"]);
    let launches = gang(1, &["n1"], "echo hello; echo progress 1 > $BEDPLATE_REPORT");
    cluster.start_gang(&launches);
    cluster.released(launches[0].run, "n1");
    let entries = fs::read_dir(cluster.state.join("runs/1.1/n1")).unwrap();
    let mut left: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["rank-0.err", "rank-0.out"]);
}
