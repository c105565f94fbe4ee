//! `bedplate serve --replicas` and `bedplate route` with a real model, real processes and a real cluster on this machine.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bedplate_testkit::wait_until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PROGRAM: &str = env!("CARGO_BIN_EXE_bedplate");
/// Longer than anything here takes, on any machine.
const PATIENCE: Duration = Duration::from_secs(180);
const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 400,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": true}"#;

/// A folder with a model that was trained for a step, and perhaps a cluster.
struct Desk {
    folder: PathBuf,
    has_cluster: bool,
}

impl Desk {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("bedplate-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("config.json"), CONFIG).unwrap();
        let desk = Self { folder, has_cluster: false };
        desk.run("data generate --documents 40 --validation 2 --vocabulary 400 --seed 3 --out corpus");
        let defaults = desk.run("train --defaults");
        fs::write(desk.folder.join("train.toml"), defaults).unwrap();
        desk.run(
            "train train.toml -q --set model.config=config.json --set data.corpora=[\"corpus\"] --set data.sequence=32 \
             --set training.steps=1 --set training.batch=1 --set training.micro_batch=1 --set training.threads=1 \
             --set evaluation.every=0 --set output.folder=run",
        );
        assert!(desk.folder.join("run/model/config.json").exists());
        desk
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(arguments.split_whitespace()).current_dir(&self.folder);
        command.env("BEDPLATE_STATE", self.folder.join("state")).env_remove("BEDPLATE_SERVER");
        command
    }

    fn run(&self, arguments: &str) -> String {
        let output = self.command(arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "bedplate {arguments}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        if self.has_cluster {
            let _ = self.command("down").output();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A command that serves, known by the address that it printed. It is killed when this is dropped.
struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    fn start(desk: &Desk, arguments: &str) -> Self {
        let mut command = desk.command(arguments);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address =
            line.trim().strip_prefix("http://").unwrap_or_else(|| panic!("printed {line:?}")).to_owned();
        Self { child, address }
    }

    fn signal(&self, signal: Signal) {
        send(self.child.id(), signal);
    }

    /// Status and body.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        let text = String::from_utf8_lossy(&text).into_owned();
        (text.split(' ').nth(1).unwrap().parse().unwrap(), text)
    }

    fn complete(&self, more: &str) -> (u16, String) {
        let body = format!(
            r#"{{"model": "model", "prompt": "the garden", "max_tokens": 20, "ignore_eos": true{more}}}"#
        );
        self.ask("POST", "/v1/completions", &body)
    }

    /// The replicas that get requests, by their lines of the metrics.
    fn in_service(&self) -> Vec<String> {
        let (_, text) = self.ask("GET", "/metrics", "");
        let lines = text.lines().filter(|line| line.starts_with("bedplate_router_replica_up"));
        lines.filter(|line| line.ends_with(" 1")).map(str::to_owned).collect()
    }

    fn until_in(&self, count: usize) {
        wait_until(&format!("{count} replicas are in"), || self.in_service().len() == count);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(process: u32, signal: Signal) {
    kill(Pid::from_raw(process as i32), signal).unwrap();
}

/// Processes that this one has started and that have not ended.
fn children(of: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter(|process| parent(*process) == Some(of)).collect()
}

fn parent(process: u32) -> Option<u32> {
    let text = fs::read_to_string(Path::new("/proc").join(process.to_string()).join("stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let is_dead = fields.next() == Some("Z");
    fields.next()?.parse().ok().filter(|_| !is_dead)
}

#[test]
fn replicas_of_a_model_survive_a_kill_an_update_under_load_and_end_with_their_parent() {
    let desk = Desk::new("replicas");
    let serving = Serving::start(
        &desk,
        "serve run/model --replicas 2 --listen 127.0.0.1:0 --kv-memory 4MB --max-seqs 8",
    );
    serving.until_in(2);
    let (status, text) = serving.ask("GET", "/v1/models", "");
    assert!(status == 200 && text.contains("\"id\":\"model\""), "{text}");
    let first = children(serving.child.id());
    assert_eq!(first.len(), 2);

    send(first[0], Signal::SIGKILL);
    assert_eq!(serving.complete("").0, 200);
    wait_until("it is started again", || children(serving.child.id()).len() == 2);
    serving.until_in(2);

    let before = children(serving.child.id());
    let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for more in ["", r#", "stream": true"#] {
            let (serving, is_over, answered) = (&serving, &is_over, &answered);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let (status, text) = serving.complete(more);
                    assert!(status == 200 && !text.contains("\"error\""), "{text}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        serving.signal(Signal::SIGHUP);
        wait_until("all are replaced", || {
            let now = children(serving.child.id());
            now.len() == 2 && now.iter().all(|process| !before.contains(process))
        });
        let then = answered.load(Ordering::Relaxed);
        wait_until("requests go on", || answered.load(Ordering::Relaxed) > then + 4);
        is_over.store(true, Ordering::Relaxed);
    });

    let last = children(serving.child.id());
    serving.signal(Signal::SIGKILL);
    wait_until("they end with their parent", || last.iter().all(|process| parent(*process).is_none()));
}

#[test]
fn a_model_whose_files_change_is_loaded_anew_where_it_is_watched() {
    let desk = Desk::new("replicas-watched");
    let serving = Serving::start(
        &desk,
        "serve run/model --replicas 1 --watch --listen 127.0.0.1:0 --kv-memory 4MB --max-seqs 8",
    );
    let before = children(serving.child.id());
    assert_eq!(before.len(), 1);
    fs::write(desk.folder.join("run/model/note.txt"), "newer").unwrap();
    wait_until("it is replaced", || {
        let now = children(serving.child.id());
        now.len() == 1 && now != before
    });
    assert_eq!(serving.complete("").0, 200);
}

#[test]
fn a_model_that_cannot_be_loaded_ends_the_command_with_the_reason() {
    let desk = Desk::new("replicas-broken");
    fs::remove_file(desk.folder.join("run/model/tokenizer.json")).unwrap();
    let output = desk.command("serve run/model --replicas 2 --listen 127.0.0.1:0").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("error[replicas/not-started]: the replicas do not start"), "{error}");
    assert!(error.contains("tokenizer.json"), "{error}");
}

#[test]
fn replicas_that_are_jobs_of_a_cluster_are_found_healed_and_cancelled() {
    let mut desk = Desk::new("replica-jobs");
    desk.has_cluster = true;
    desk.run("up --nodes 2");
    let arguments = format!(
        "route --listen 127.0.0.1:0 --min 2 --max 2 --scale-interval 200ms --check-interval 200ms -- {PROGRAM} serve run/model --kv-memory 4MB --max-seqs 8 --threads 1"
    );
    let mut serving = Serving::start(&desk, &arguments);
    serving.until_in(2);
    assert_eq!(serving.complete("").0, 200);

    // The cluster starts it again, and the router finds its new address.
    let before = serving.in_service();
    desk.run("chaos kill-rank 1 --rank 0");
    wait_until("the cluster has started it again", || desk.run("queue --json").contains("\"runs\": 2"));
    wait_until("it is found", || {
        let now = serving.in_service();
        now.len() == 2 && now.iter().filter(|replica| before.contains(replica)).count() == 1
    });
    assert_eq!(serving.complete("").0, 200);

    serving.signal(Signal::SIGTERM);
    assert!(serving.child.wait().unwrap().success());
    wait_until("the jobs are cancelled", || !desk.run("queue").contains("running"));
}
