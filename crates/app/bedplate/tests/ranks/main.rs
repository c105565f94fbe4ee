//! Training on several ranks of this machine: the same losses as one process, whatever happens to the ranks.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(300);

const MODEL: &str = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "vocab_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}"#;

/// A folder with a model, a corpus and a configuration.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
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

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bedplate"));
        command.args(arguments).current_dir(&self.0);
        for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "BEDPLATE_REPORT"] {
            command.env_remove(name);
        }
        command
    }

    /// A run of `steps` steps in a folder of its own.
    fn train(&self, output: &str, steps: u64, more: &[&str]) -> Command {
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

    fn finish(&self, output: &str, steps: u64, more: &[&str]) -> BTreeMap<u64, f64> {
        let done = self.train(output, steps, more).output().unwrap();
        assert!(done.status.success(), "{output}: {}", String::from_utf8_lossy(&done.stderr));
        self.losses(output)
    }

    /// The losses by step; a step that is told twice fails the test.
    fn losses(&self, output: &str) -> BTreeMap<u64, f64> {
        let mut found = BTreeMap::new();
        for line in self.lines(output) {
            if let (Some(step), Some(loss)) = (line["step"].as_u64(), line["loss"].as_f64()) {
                assert!(found.insert(step, loss).is_none(), "{output}: step {step} is told twice");
            }
        }
        found
    }

    fn lines(&self, output: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.0.join(output).join("metrics.jsonl")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn wait_for_step(&self, output: &str, step: u64) {
        let began = Instant::now();
        while self.lines(output).iter().filter_map(|line| line["step"].as_u64()).max().unwrap_or(0) < step {
            assert!(began.elapsed() < PATIENCE, "{output} does not reach step {step}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn weights(&self, output: &str) -> Vec<u8> {
        fs::read(self.0.join(output).join("model/model.safetensors")).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The processes that a launcher has started, as ranks or spares.
fn children(launcher: &Child) -> Vec<i32> {
    let id = launcher.id();
    let path = format!("/proc/{id}/task/{id}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn variable(pid: i32, name: &str) -> Option<String> {
    let bytes = fs::read(Path::new("/proc").join(pid.to_string()).join("environ")).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    text.split('\0').find_map(|entry| Some(entry.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

/// The process that was started as a rank.
fn rank(launcher: &Child, rank: u32) -> i32 {
    let is_it = |pid: &i32| {
        variable(*pid, "LOCAL_RANK") == Some(rank.to_string())
            && variable(*pid, "BEDPLATE_TRAIN_SPARE").is_none()
    };
    children(launcher).into_iter().find(is_it).expect("the rank runs")
}

fn strike(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

fn end(launcher: Child) -> Output {
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || sender.send(launcher.wait_with_output()));
    receiver.recv_timeout(PATIENCE).expect("the run ends").unwrap()
}

fn start(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn assert_same(expected: &BTreeMap<u64, f64>, found: &BTreeMap<u64, f64>, tolerance: f64) {
    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>(), "steps");
    for (step, loss) in expected {
        let off = (loss - found[step]).abs();
        assert!(off <= tolerance, "step {step}: {} instead of {loss}, off by {off:.1e}", found[step]);
    }
}

#[test]
fn ranks_of_this_machine_learn_what_one_process_learns() {
    let place = Place::new("layouts");
    let alone = place.finish("alone", 12, &[]);
    for layout in ["dp2", "dp2.zero3", "tp2.sp", "pp2"] {
        let found = place.finish(layout, 12, &["--ranks", "2", "--layout", layout]);
        assert_same(&alone, &found, 1e-5);
        assert!(!place.weights(layout).is_empty());
    }
}

/// Any layout goes on from the checkpoint of any other, with the losses of a run that was never stopped.
#[test]
fn a_run_goes_on_in_another_layout() {
    let place = Place::new("resume");
    let whole = place.finish("whole", 12, &[]);
    let every = ["--set", "checkpoint.every=6"];
    let mut first = vec!["--ranks", "2", "--layout", "dp2.zero3", "--set", "training.steps=12"];
    first.extend(every);
    place.finish("run", 12, &first);
    for (layout, ranks) in [("tp2", "2"), ("dp4.zero1", "4")] {
        let back = ["--resume", "step-6", "--ranks", ranks, "--layout", layout];
        let found = place.finish("run", 12, &back);
        assert_same(&whole, &found, 1e-5);
    }
    let alone = place.finish("run", 12, &["--resume", "step-6"]);
    assert_same(&whole, &alone, 1e-5);
}

#[test]
fn a_spare_takes_the_place_of_a_killed_rank_without_a_checkpoint() {
    let place = Place::new("spare");
    let layout = ["--ranks", "3", "--layout", "dp3.zero3", "--set", "training.batch=6"];
    let undisturbed = place.finish("undisturbed", 60, &layout);
    let mut more = layout.to_vec();
    more.extend(["--spares", "1"]);
    let run = start(place.train("run", 60, &more));
    place.wait_for_step("run", 10);
    strike(rank(&run, 1), Signal::SIGKILL);
    let done = end(run);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_same(&undisturbed, &place.losses("run"), 0.0);
    assert!(place.weights("run") == place.weights("undisturbed"), "the weights have the same bits");
    assert_eq!(fs::read_dir(place.0.join("run/checkpoints")).unwrap().count(), 1, "only the last checkpoint");
}

#[test]
fn without_a_spare_the_others_go_on_and_take_the_rank_back() {
    let place = Place::new("shrink");
    let layout = ["--ranks", "3", "--layout", "dp3.zero2"];
    let undisturbed = place.finish("undisturbed", 120, &layout);
    let run = start(place.train("run", 120, &layout));
    for (step, victim) in [(10, 2), (40, 0)] {
        place.wait_for_step("run", step);
        strike(rank(&run, victim), Signal::SIGKILL);
    }
    let done = end(run);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    assert!(said.contains("rank 2 was killed by SIGKILL"), "{said}");
    assert_same(&undisturbed, &place.losses("run"), 1e-5);
}

#[test]
fn the_rank_that_fails_says_why_and_the_others_are_silent() {
    let place = Place::new("fails");
    let run = place.train(
        "run",
        20,
        &[
            "--ranks",
            "3",
            "--layout",
            "dp3.zero3",
            "--set",
            "optimizer.learning_rate=100",
            "--set",
            "optimizer.warmup=0",
            "--set",
            "optimizer.clip=0",
        ],
    );
    let done = end(start(run));
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(!done.status.success());
    assert_eq!(said.matches("train/not-finite").count(), 1, "{said}");
    let wrong = place.train("wrong", 5, &["--ranks", "2", "--layout", "dp4"]).output().unwrap();
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!(said.matches("train/bad-layout").count(), 1, "{said}");
}
