//! The Python package passes its own tests, every line that it writes in them is a report, and an agent hears it.
//!
//! With PyTorch, which `./test` installs into `target/torch`, the tests use real loops and trainers; otherwise only those run
//! that need no more than an interpreter.

mod fixture;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bedplate_control::wire::*;
use bedplate_report::{Phase, Report};
use bedplate_testkit::root;
use fixture::{Cluster, gang};

fn package() -> PathBuf {
    root().join("python")
}

/// Each line of a file, which the package has written.
fn reports(file: &Path) -> Vec<Report> {
    let text = fs::read_to_string(file).expect("a test has just written it");
    let report = |line: &str| match Report::from_line(line.as_bytes()) {
        Ok(report) => report,
        Err(why) => panic!("{why}: {line}"),
    };
    text.lines().map(report).collect()
}

fn kind(report: &Report) -> &'static str {
    match report {
        Report::Step(step) => {
            let parts = step.breakdown.expect("its steps have a breakdown").total().get();
            assert!((parts - step.seconds).abs() < 1e-6, "the parts of a step are its duration: {step:?}");
            "step"
        }
        Report::Checkpoint(_) => "checkpoint",
        Report::Phase { .. } => "phase",
        Report::Progress { .. } => "progress",
        _ => "other",
    }
}

/// Runs the package's tests of these modules: they write reports of these kinds.
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
fn check(python: &Path, modules: &[&str], kinds: &[&str]) {
    let kept = tempfile::tempdir().expect("there is room for a folder");
    let output = Command::new(python)
        .args(["-m", "unittest", "-v"])
        .args(modules)
        .current_dir(package())
        .env("BEDPLATE_TEST_REPORTS", kept.path())
        .output();
    let Ok(output) = output else {
        return println!("SKIPPED: the Python package: there is no {}", python.display());
    };
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    for line in told.lines().filter(|line| line.contains("SKIPPED: ")) {
        println!("{line}");
    }
    let files =
        fs::read_dir(kept.path()).expect("it is a folder").map(|entry| entry.expect("it is read").path());
    let found: BTreeSet<&str> = files.flat_map(|file| reports(&file)).map(|report| kind(&report)).collect();
    assert_eq!(Vec::from_iter(found), kinds);
}

#[test]
fn the_package_writes_reports() {
    check(Path::new("python3"), &["tests.test_reports"], &["checkpoint", "phase", "progress", "step"]);
}

#[test]
fn a_loop_that_stands_says_so() {
    check(Path::new("python3"), &["tests.test_stalls"], &["other", "phase", "step"]);
}

#[test]
fn loops_and_trainers_of_pytorch_report_their_steps() {
    let python = root().join("target/torch/bin/python");
    let has_torch = Command::new(&python).args(["-c", "import torch"]).output();
    if !has_torch.is_ok_and(|output| output.status.success()) {
        return println!("SKIPPED: loops of PyTorch: ./test installs it into target/torch");
    }
    bedplate_peers::uses("torch");
    check(&python, &["tests.test_torch", "tests.test_trainers"], &["checkpoint", "phase", "step"]);
}

#[test]
fn an_agent_hears_a_loop_that_reports_by_the_package() {
    let cluster = Cluster::start(&["n1"]);
    let program = "import bedplate
for number in bedplate.Steps(range(3), tokens_per_step=100):
    pass
with bedplate.saving(3, '/c/3'):
    pass
bedplate.phase('done')";
    let command = format!("PYTHONPATH={}/src python3 -c \"{program}\"", package().display());
    let launches = gang(1, &["n1"], &command);
    let run = launches[0].run;
    cluster.start_gang(&launches);
    cluster.released(run, "n1");
    let last = cluster.heard_already("n1", |message| match message {
        FromAgent::Report { run: of, rank: 0, report: Report::Step(step) }
            if *of == run && step.step == 3 =>
        {
            Some(step.clone())
        }
        _ => None,
    });
    let last = last.expect("its third step is heard");
    assert_eq!(last.tokens, Some(300));
    let done = FromAgent::Report { run, rank: 0, report: Report::Phase { phase: Phase::Done } };
    assert!(cluster.heard_already("n1", |message| (*message == done).then_some(())).is_some());
}
