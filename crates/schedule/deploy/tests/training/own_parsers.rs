//! The parsers of Accelerate, DeepSpeed and torchtitan read the settings; `./test` installs the packages.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use bedplate_deploy::training::Trainer;

use crate::corpus::{Case, cases};

const SCRIPT: &str = "tests/training/own_parsers.py";

/// Parsing takes seconds; a parser that hangs must not hold the tests up.
const DEADLINE: Duration = Duration::from_secs(300);

fn python() -> Option<PathBuf> {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).expect("the workspace is above the crate");
    let installed = root.join("target/trainers/bin/python");
    let check = Command::new(&installed)
        .args([SCRIPT, "check"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    check.is_ok_and(|status| status.success()).then_some(installed)
}

fn line(trainer: &str, case: &Case, settings: &str) -> String {
    let (ranks, data) = (case.layout.world(), u64::from(case.layout.data));
    let text: String = settings.chars().flat_map(escaped).collect();
    format!(
        "{{\"trainer\": \"{trainer}\", \"ranks\": {ranks}, \"data_ranks\": {data}, \"settings\": \"{text}\"}}\n"
    )
}

fn escaped(character: char) -> Vec<char> {
    match character {
        '\n' => vec!['\\', 'n'],
        '"' | '\\' => vec!['\\', character],
        _ => vec![character],
    }
}

/// One answer for every line, empty where the settings are accepted.
fn ask(python: &Path, lines: &str) -> Vec<String> {
    let mut parser = Command::new(python)
        .arg(SCRIPT)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the interpreter was just tried");
    let mut input = parser.stdin.take().expect("it is piped");
    let questions = lines.to_owned();
    let writer = std::thread::spawn(move || input.write_all(questions.as_bytes()));
    let id = parser.id();
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || done.send(parser.wait_with_output()));
    let Ok(output) = ended.recv_timeout(DEADLINE) else {
        Command::new("kill").args(["-9", &id.to_string()]).status().ok();
        panic!("no answer within {DEADLINE:?}");
    };
    let output = output.expect("its output is read");
    let _ = writer.join();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(String::from).collect()
}

/// Every seventh case: all of them would take a minute.
fn questions(trainer: Trainer, name: &str) -> Vec<(String, String)> {
    let settings = cases().into_iter().step_by(7).filter_map(|case| {
        let settings = trainer.settings(&case.job()).ok()?;
        Some((line(name, &case, &settings), format!("{}\n{settings}", case.name())))
    });
    settings.collect()
}

#[expect(clippy::print_stdout, reason = "a skipped test says so")]
fn check(trainer: Trainer, name: &str) {
    let Some(python) = python() else {
        return println!("SKIPPED: the parser of {name}: ./test installs it into target/trainers");
    };
    let questions = questions(trainer, name);
    assert!(questions.len() > 50, "only {} layouts", questions.len());
    let lines: String = questions.iter().map(|(line, _)| line.as_str()).collect();
    let answers = ask(&python, &lines);
    assert_eq!(answers.len(), questions.len());
    for (answer, (_, shown)) in answers.iter().zip(&questions) {
        assert_eq!(answer, "", "{shown}");
    }
}

#[test]
fn accelerate_reads_its_configuration() {
    check(Trainer::Accelerate, "accelerate");
}

#[test]
fn deepspeed_reads_its_configuration() {
    check(Trainer::DeepSpeed, "deepspeed");
}

#[test]
fn torchtitan_reads_its_configuration() {
    check(Trainer::Torchtitan, "torchtitan");
}

/// The parsers are really asked: they object to what is wrong.
#[test]
fn wrong_configurations_are_refused_by_the_parsers() {
    let Some(python) = python() else {
        return println!("SKIPPED: parsers of trainers: ./test installs them into target/trainers");
    };
    let all = cases();
    let spoiled = |trainer: Trainer, name: &str, from: &str, to: &str| {
        let found = all.iter().find_map(|case| {
            let settings = trainer.settings(&case.job()).ok().filter(|settings| settings.contains(from))?;
            Some(line(name, case, &settings.replace(from, to)))
        });
        found.expect("some settings have it")
    };
    let lines = [
        spoiled(Trainer::Accelerate, "accelerate", "fsdp_config:", "fsdp_settings:"),
        spoiled(Trainer::Accelerate, "accelerate", "config_tp_size: 4", "config_tp_size: 3"),
        spoiled(Trainer::DeepSpeed, "deepspeed", "\"stage\": 1", "\"stage\": 7"),
        spoiled(Trainer::DeepSpeed, "deepspeed", "\"train_batch_size\": 256", "\"train_batch_size\": 255"),
        spoiled(Trainer::Torchtitan, "torchtitan", "training.seq_len", "training.sequence"),
        spoiled(
            Trainer::Torchtitan,
            "torchtitan",
            "reshard_after_forward = \"never\"",
            "reshard_after_forward = \"no\"",
        ),
    ];
    let answers = ask(&python, &lines.concat());
    assert_eq!(answers.len(), lines.len());
    assert!(answers.iter().all(|answer| !answer.is_empty()), "{answers:#?}");
}
