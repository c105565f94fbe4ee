//! Everything that the project offers to Prometheus speaks one vocabulary: the daemon, nodes and training runs.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use bedplate_exporter::metrics;
use bedplate_record::{EvaluationRecord, Metrics, StepRecord};

use crate::support::{Daemon, JOB};

/// What a name stands for: its kind and its explanation, and who writes it.
#[derive(Debug, PartialEq, Eq)]
struct Meaning {
    kind: String,
    help: String,
}

/// Names of one source. Series of histograms have names of their own.
fn meanings(text: &str) -> BTreeMap<String, Meaning> {
    let mut found = BTreeMap::new();
    let mut help = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let series: &[&str] =
                if kind == "histogram" { &["", "_bucket", "_sum", "_count"] } else { &[""] };
            for end in series {
                let meaning = Meaning { kind: kind.to_owned(), help: help.to_owned() };
                let before = found.insert(format!("{name}{end}"), meaning);
                assert_eq!(before, None, "{name}{end} is told twice in\n{text}");
            }
        }
    }
    found
}

fn of_the_daemon() -> String {
    let daemon = Daemon::start();
    let mut admin = daemon.admin();
    assert_eq!(admin.submit(JOB).status, 201);
    admin.get("/metrics").text()
}

fn of_a_node() -> String {
    metrics::all()
        .map(|metric| {
            format!("# HELP {0} {1}\n# TYPE {0} {2}\n", metric.name, metric.help, metric.kind.name())
        })
        .collect()
}

/// Everything that a run can tell is known.
fn of_training() -> String {
    let metrics = Metrics::default();
    metrics.set_step(&StepRecord {
        step: 1,
        mfu: Some(0.4),
        predicted: Some(Default::default()),
        ..StepRecord::default()
    });
    let (loss, perplexity) = (Some(2.0), Some(7.4));
    metrics.set_evaluation(&EvaluationRecord { loss, perplexity, ..EvaluationRecord::default() });
    metrics.text()
}

#[test]
fn a_name_has_one_meaning_over_everything_that_is_exported() {
    let mut all: BTreeMap<String, (&str, Meaning)> = BTreeMap::new();
    for (source, text) in
        [("the daemon", of_the_daemon()), ("a node", of_a_node()), ("training", of_training())]
    {
        let found = meanings(&text);
        assert!(found.len() > 10, "{source} offers more than\n{text}");
        for (name, meaning) in found {
            if let Some((other, known)) = all.get(&name) {
                panic!("{name} means {known:?} to {other} and {meaning:?} to {source}");
            }
            all.insert(name, (source, meaning));
        }
    }
}

#[test]
fn promtool_takes_what_the_daemon_and_training_write() {
    for text in [of_the_daemon(), of_training()] {
        let promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut promtool) = promtool else {
            return println!("SKIPPED: promtool is not installed");
        };
        promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = promtool.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{told}\nof\n{text}");
    }
}
