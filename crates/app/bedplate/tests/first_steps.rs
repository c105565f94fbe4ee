//! What a newcomer types first: a model in one line, how it went, on with it, and its answers.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_bedplate");

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("bp-first-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("elsewhere")).unwrap();
        Self(fs::canonicalize(folder).unwrap())
    }

    fn run_in(&self, folder: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).current_dir(self.0.join(folder)).env("BEDPLATE_STATE", self.0.join("state"));
        command.output().unwrap()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.run_in("", arguments)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

const SHORT: [&str; 8] = [
    "--set",
    "training.steps=4",
    "--set",
    "evaluation.batches=1",
    "--set",
    "checkpoint.every=2",
    "--set",
    "evaluation.sample_tokens=4",
];

#[test]
fn a_model_in_one_line_is_shown_resumed_from_anywhere_and_found_by_its_run() {
    let place = Place::new("quick");
    let quick = place.run(&[&["train", "--quick"][..], &SHORT].concat());
    succeeded(&quick);
    let said = text(&quick.stderr);
    assert!(
        said.contains("bedplate train show quick/run --plot") && said.contains("bedplate serve quick/run")
    );
    let again = place.run(&["train", "--quick"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("bedplate train --resume quick/run"), "{}", text(&again.stderr));

    let shown = succeeded(&place.run(&["train", "show", "quick/run", "--plot"]));
    assert!(shown.contains("4, all") && shown.contains("learning rate x 1000"), "{shown}");
    let json = succeeded(&place.run(&["--json", "train", "show", "quick/run"]));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["step"], &json["steps"]), (&4.into(), &4.into()));
    assert_eq!(json["records"].as_array().unwrap().len(), 4);
    succeeded(&place.run(&["train", "show", "quick/run", "--html", "run.html"]));
    assert_eq!(fs::read_to_string(place.0.join("run.html")).unwrap().matches("<svg").count(), 3);

    // The settings that the run has left mean the same from another folder.
    let on =
        ["train", "--resume", "../quick/run", "--set", "training.steps=6", "--accept-changes", "--quiet"];
    let on = place.run_in("elsewhere", &on);
    assert!(succeeded(&on).contains("steps        6"), "{}", text(&on.stdout));
    assert!(!place.0.join("elsewhere/quick").exists() && !place.0.join("elsewhere/run").exists());

    let generate = ["generate", "quick/run", "One day", "--tokens", "4"];
    let generate = place.run(&generate);
    assert!(generate.status.code() != Some(2), "{}", text(&generate.stderr));
}

#[test]
fn a_run_that_has_not_ended_says_how_to_go_on() {
    let place = Place::new("unended");
    fs::create_dir_all(place.0.join("run")).unwrap();
    fs::write(place.0.join("run/settings.toml"), "").unwrap();
    let served = place.run(&["serve", "run"]);
    let said = text(&served.stderr);
    assert!(
        said.contains("bedplate train --resume run") && said.contains("bedplate train show run"),
        "{said}"
    );
    fs::create_dir_all(place.0.join("run/adapter")).unwrap();
    let served = text(&place.run(&["serve", "run"]).stderr);
    assert!(served.contains("--adapter NAME=run/adapter"), "{served}");
    let shown = place.run(&["train", "show", "elsewhere"]);
    assert_eq!(shown.status.code(), Some(2));
    assert!(text(&shown.stderr).contains("holds no run"), "{}", text(&shown.stderr));
    let resumed = text(&place.run(&["train", "--resume", "elsewhere"]).stderr);
    assert!(resumed.contains("has no settings.toml"), "{resumed}");
    assert!(Path::new(&place.0).exists());
}

/// What is printed on standard output with `--launch` is what would be run, and nothing else.
#[test]
fn launch_settings_are_all_of_the_output() {
    let place = Place::new("launch");
    let plan =
        ["plan", "train", "--model", "llama-3.1-8b", "--cluster", "p5.48xlarge:2", "--layout", "dp16.zero3"];
    let script = place.run(&[&plan[..], &["--launch", "megatron-lm"]].concat());
    let script = succeeded(&script);
    fs::write(place.0.join("start.sh"), &script).unwrap();
    let parsed = Command::new("bash").arg("-n").arg(place.0.join("start.sh")).output().unwrap();
    assert!(parsed.status.success(), "{script}\n{}", text(&parsed.stderr));
    assert!(script.contains("torchrun"), "{script}");

    let own = succeeded(&place.run(&[&plan[..], &["--launch", "bedplate"]].concat()));
    let source = bedplate_diag::Source::new("plan.toml", &own);
    assert!(bedplate_train::TrainConfig::from_toml(source).is_ok(), "{own}");

    let serve = [
        "plan",
        "serve",
        "--model",
        "llama-3.1-8b",
        "--cluster",
        "p5en.48xlarge:1",
        "--isl",
        "1000",
        "--osl",
        "200",
    ];
    let serve =
        [&serve[..], &["--rate", "5/s", "--slo", "itl=30ms", "--launch", "vllm", "--kubernetes", "chat"]]
            .concat();
    let manifests = succeeded(&place.run(&serve));
    let kinds: Vec<&str> = manifests.lines().filter(|line| line.starts_with("kind: ")).collect();
    assert!(manifests.starts_with("apiVersion: ") || manifests.starts_with('#'), "{manifests}");
    assert!(kinds.contains(&"kind: Deployment"), "{manifests}");

    let experts = ["plan", "train", "--model", "qwen3-30b-a3b", "--cluster", "p6-b200.48xlarge:2"];
    let cannot =
        place.run(&[&experts[..], &["--layout", "dp16.ep8.zero1", "--launch", "accelerate"]].concat());
    assert_eq!(text(&cannot.stdout), "");
    let said = text(&cannot.stderr);
    assert!(said.contains("plan/cannot-launch") && said.contains("another --layout"), "{said}");
}
