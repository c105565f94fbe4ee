//! A folder with a model and a corpus, and runs in it whose ranks are processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use bedplate_testkit::wait_to_see;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

const MODEL: &str = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "vocab_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}"#;

/// A folder with a model, a corpus and a configuration.
pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("bedplate-ranks-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("config.json"), MODEL).unwrap();
        let place = Self(folder);
        let made = ["data", "generate", "--documents", "400", "--vocabulary", "512", "--out", "corpus"];
        let made = place.command(&made).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        place
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bedplate"));
        // What this machine was measured at, and which runs it remembers, is no part of a test.
        command.args(arguments).current_dir(&self.0).env("BEDPLATE_STATE", self.0.join("state"));
        for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "BEDPLATE_REPORT"] {
            command.env_remove(name);
        }
        command
    }

    /// A run of `steps` steps in a folder of its own.
    pub(crate) fn train(&self, output: &str, steps: u64, more: &[&str]) -> Command {
        let text = format!(
            "[model]\nconfig = \"config.json\"\n[data]\ncorpora = [\"corpus\"]\nsequence = 32\n\
             [training]\nsteps = {steps}\nbatch = 8\nmicro_batch = 1\nthreads = 1\n\
             [evaluation]\nevery = 0\n[checkpoint]\nevery = 1000\n[output]\nfolder = \"{output}\"\n"
        );
        fs::write(self.0.join(format!("{output}.toml")), text).unwrap();
        let config = format!("{output}.toml");
        let mut command = self.command(&["train", &config, "--quiet"]);
        command.args(more);
        command
    }

    pub(crate) fn finish(&self, output: &str, steps: u64, more: &[&str]) -> BTreeMap<u64, f64> {
        let done = self.train(output, steps, more).output().unwrap();
        assert!(done.status.success(), "{output}: {}", String::from_utf8_lossy(&done.stderr));
        self.losses(output)
    }

    /// The losses by step; steps and samples that are not there exactly once, in order, fail the test.
    pub(crate) fn losses(&self, output: &str) -> BTreeMap<u64, f64> {
        let (mut found, mut next) = (BTreeMap::new(), 0);
        for line in self.lines(output).iter().filter(|line| line["kind"] == "step") {
            let (step, loss) = (line["step"].as_u64().unwrap(), line["loss"].as_f64().unwrap());
            assert_eq!(step, found.len() as u64 + 1, "{output}: steps are told in order, each once");
            assert_eq!(line["samples"][0], next, "{output}: step {step} uses the samples that follow");
            next = line["samples"][1].as_u64().unwrap();
            found.insert(step, loss);
        }
        found
    }

    /// How many ranks the run has now.
    pub(crate) fn ranks_now(&self, output: &str) -> Option<u64> {
        let lines = self.lines(output);
        lines.iter().rev().find(|line| line["kind"] == "ranks").and_then(|line| line["ranks"].as_u64())
    }

    pub(crate) fn lines(&self, output: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.0.join(output).join("metrics.jsonl")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    pub(crate) fn wait_for_step(&self, output: &str, step: u64) {
        let last = || self.lines(output).iter().filter_map(|line| line["step"].as_u64()).max();
        wait_to_see("the run reaches its step", last, |last| *last >= Some(step));
    }

    pub(crate) fn weights(&self, output: &str) -> Vec<u8> {
        fs::read(self.0.join(output).join("model/model.safetensors")).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The processes that a launcher has started, as ranks or spares.
pub(crate) fn children(launcher: &Child) -> Vec<i32> {
    let id = launcher.id();
    let path = format!("/proc/{id}/task/{id}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

pub(crate) fn variable(pid: i32, name: &str) -> Option<String> {
    let bytes = fs::read(Path::new("/proc").join(pid.to_string()).join("environ")).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    text.split('\0').find_map(|entry| Some(entry.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

/// The process that was started as a rank.
pub(crate) fn rank(launcher: &Child, rank: u32) -> i32 {
    let is_it = |pid: &i32| {
        variable(*pid, "LOCAL_RANK") == Some(rank.to_string())
            && variable(*pid, "BEDPLATE_TRAIN_SPARE").is_none()
    };
    children(launcher).into_iter().find(is_it).expect("the rank runs")
}

pub(crate) fn strike(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

pub(crate) fn end(launcher: Child) -> Output {
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || sender.send(launcher.wait_with_output()));
    receiver.recv_timeout(PATIENCE).expect("the run ends").unwrap()
}

pub(crate) fn start(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

pub(crate) fn assert_same(expected: &BTreeMap<u64, f64>, found: &BTreeMap<u64, f64>, tolerance: f64) {
    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>(), "steps");
    for (step, loss) in expected {
        let off = (loss - found[step]).abs();
        assert!(off <= tolerance, "step {step}: {} instead of {loss}, off by {off:.1e}", found[step]);
    }
}
