//! The real program with real processes: a cluster comes up, works, breaks, heals and leaves nothing behind.

mod faults;
#[path = "../../../operate/drivers/tests/working/mod.rs"]
mod working;

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bedplate_testkit::{wait_for, wait_to_see, wait_until};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_bedplate");

/// A cluster in a temporary folder; always taken down.
struct Cluster {
    folder: PathBuf,
    /// Whose it is where it is not ours.
    user: Option<u32>,
}

impl Cluster {
    fn up(arguments: &[&str]) -> Self {
        let cluster = Self::prepare();
        cluster.start(arguments);
        cluster
    }

    /// The folder alone.
    fn prepare() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("bp-test-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("the machine of the tests has it");
        Self { folder: fs::canonicalize(folder).expect("the machine of the tests has it"), user: None }
    }

    /// The folder of a cluster of a user without rights; nothing where this process may not act for others.
    fn prepare_as(user: u32) -> Option<Self> {
        let mut cluster = Self::prepare();
        cluster.user = Some(user);
        let is_given = std::os::unix::fs::chown(&cluster.folder, Some(user), Some(user)).is_ok();
        let can_start = cluster.program().arg("--version").output().is_ok_and(|told| told.status.success());
        (is_given && can_start).then_some(cluster)
    }

    /// A path that this process made belongs to whose cluster it is.
    fn give(&self, path: &Path) {
        if self.user.is_some() {
            std::os::unix::fs::chown(path, self.user, self.user).expect("the folder could be given too");
        }
    }

    /// The program, with the rights of whose cluster it is.
    fn program(&self) -> Command {
        let Some(user) = self.user else { return Command::new(PROGRAM) };
        let mut command = Command::new("setpriv");
        let user = user.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", PROGRAM]);
        command.env("HOME", &self.folder);
        command
    }

    fn start(&self, arguments: &[&str]) {
        let up: Vec<&str> = ["up"].into_iter().chain(arguments.iter().copied()).collect();
        succeeded(&self.run(&up));
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.program();
        command.args(arguments).current_dir(&self.folder).env("BEDPLATE_STATE", self.folder.join("state"));
        command.env_remove("BEDPLATE_SERVER").env_remove("COLUMNS").env("TOUR", "de force");
        command.output().expect("the program was built before its tests")
    }

    /// Standard output of a command that succeeds.
    fn tell(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        succeeded(&output);
        String::from_utf8(output.stdout).expect("the machine of the tests has it")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let arguments: Vec<&str> = ["--json"].into_iter().chain(arguments.iter().copied()).collect();
        serde_json::from_str(&self.tell(&arguments)).expect("the machine of the tests has it")
    }

    fn submit(&self, arguments: &[&str]) -> String {
        let arguments: Vec<&str> = ["submit"].into_iter().chain(arguments.iter().copied()).collect();
        self.tell(&arguments).trim().to_owned()
    }

    /// The job once the condition holds.
    fn wait_for(&self, job: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        wait_to_see("the job moves on", || self.json(&["job", "show", job]), is_so)
    }

    fn down(&self) {
        succeeded(&self.run(&["down"]));
        let left = processes_of(&self.folder);
        assert!(left.is_empty(), "{left:?}");
        assert!(!self.folder.join("state/daemon.json").exists());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.run(&["down", "--force"]);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn succeeded(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{:?}\n{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
}

/// Command lines of processes whose environment names the folder.
fn processes_of(folder: &Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("the machine of the tests has it").flatten() {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let is_ours = String::from_utf8_lossy(&environment).split('\0').any(|pair| {
            pair.split_once('=')
                .is_some_and(|(name, value)| name.starts_with("BEDPLATE_") && value.starts_with(&folder))
        });
        if is_ours && entry.file_name() != std::process::id().to_string().as_str() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push(String::from_utf8_lossy(&line).replace('\0', " "));
        }
    }
    found
}

fn step(job: &Value) -> u64 {
    job["checkpoint"]["step"].as_u64().unwrap_or(0)
}

#[test]
fn a_cluster_comes_up_works_and_leaves_nothing() {
    let cluster = Cluster::up(&["--nodes", "2", "--like", "p5.48xlarge"]);
    let again = cluster.run(&["up", "--nodes", "2", "--like", "p5.48xlarge"]);
    succeeded(&again);
    assert!(String::from_utf8_lossy(&again.stderr).contains("up already"));
    let other = cluster.run(&["up", "--nodes", "3", "--like", "p5.48xlarge"]);
    assert_eq!(other.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&other.stderr).contains("up/other-shape"));

    let nodes = cluster.json(&["node", "list"]);
    assert_eq!(nodes["nodes"].as_array().unwrap().len(), 2);
    assert!(nodes["nodes"].as_array().unwrap().iter().all(|node| node["state"] == "idle"));

    let told = cluster.tell(&[
        "submit",
        "--nodes",
        "2",
        "--gpus-per-node",
        "4",
        "--follow",
        "--",
        "sh",
        "-c",
        "echo rank $RANK of $WORLD_SIZE, $TOUR, in $(pwd), devices $CUDA_VISIBLE_DEVICES",
    ]);
    assert!(told.contains("rank 0 of 2, de force"), "{told}");
    assert!(told.contains(&format!("in {}", cluster.folder.display())), "{told}");
    assert!(told.contains("devices 0,1,2,3"), "{told}");
    let other = cluster.tell(&["job", "logs", "1", "--rank", "1"]);
    assert!(other.contains("rank 1 of 2"), "{other}");

    let failed = cluster.run(&["submit", "--wait", "--", "sh", "-c", "exit 7"]);
    assert_eq!(failed.status.code(), Some(7), "{failed:?}");

    let queue = cluster.tell(&["queue", "--all"]);
    assert!(queue.contains("succeeded") && queue.contains("failed"), "{queue}");
    assert!(cluster.tell(&["top", "--once"]).contains("nodes 2/2"));
    let usage = cluster.json(&["usage", "--by", "job"]);
    assert_eq!(usage["usage"].as_array().unwrap().len(), 2, "{usage}");
    cluster.down();
}

#[test]
fn a_gang_that_loses_a_node_comes_back_from_its_checkpoint() {
    let cluster = Cluster::up(&["--nodes", "3", "--like", "p5.48xlarge"]);
    let script = "step=${BEDPLATE_CHECKPOINT_STEP:-0}; while [ $step -lt 30 ]; do sleep 0.1; step=$((step+1)); \
                  [ $RANK = 0 ] && echo checkpoint $step >> $BEDPLATE_REPORT; done; echo from ${BEDPLATE_CHECKPOINT_STEP:-0}";
    let job = cluster.submit(&["--nodes", "2", "--gpus-per-node", "8", "--", "sh", "-c", script]);
    let before = cluster.wait_for(&job, |job| step(job) >= 5);
    let lost = before["nodes"][0].as_str().unwrap().to_owned();
    succeeded(&cluster.run(&["chaos", "kill-node", &lost]));
    let after = cluster.wait_for(&job, |job| {
        job["runs"].as_array().is_some_and(|runs| runs.len() > 1) && job["state"] == "running"
    });
    assert!(step(&after) >= 5, "{after:#}");
    let end = cluster.wait_for(&job, |job| job["ended_ms"].is_u64());
    assert_eq!(end["state"], "succeeded", "{end:#}");
    let log = cluster.tell(&["job", "logs", &job]);
    let from: u64 = log.trim().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(from >= 5, "{log}");

    succeeded(&cluster.run(&["node", "drain", &lost, "--reason", "to look at it"]));
    let waiting = cluster.submit(&["--nodes", "3", "--gpus-per-node", "8", "--", "true"]);
    let explained = cluster.tell(&["job", "explain", &waiting]);
    assert!(explained.contains("waits"), "{explained}");
    assert!(explained.contains(&format!("out       {lost} is ")), "{explained}");
    succeeded(&cluster.run(&["node", "start", &lost]));
    succeeded(&cluster.run(&["node", "resume", &lost]));
    let end = cluster.wait_for(&waiting, |job| job["ended_ms"].is_u64());
    assert_eq!(end["state"], "succeeded", "{end:#}");
    cluster.down();
}

#[test]
fn a_killed_daemon_comes_back_and_the_job_runs_on() {
    let cluster = Cluster::up(&["--nodes", "1", "--like", "p5.48xlarge"]);
    let job = cluster.submit(&["--", "sh", "-c", "sleep 3; echo alive"]);
    cluster.wait_for(&job, |job| job["state"] == "running");
    succeeded(&cluster.run(&["chaos", "kill-control"]));
    let end = cluster.wait_for(&job, |job| job["ended_ms"].is_u64());
    assert_eq!((end["state"].as_str(), end["restarts"].as_u64()), (Some("succeeded"), Some(0)), "{end:#}");
    assert!(cluster.tell(&["job", "logs", &job]).contains("alive"));
    cluster.down();
}

/// The process of a cluster whose command line contains some words, once there is one other than `not`.
fn process_with(cluster: &Cluster, words: &str, not: u32) -> u32 {
    wait_for(words, || {
        let pids = fs::read_dir("/proc").expect("Linux has it").flatten();
        pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).find(|pid| {
            let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let line = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            let environment = String::from_utf8_lossy(&read("environ")).into_owned();
            let is_ours = environment.contains(&format!("BEDPLATE_CLUSTER={}", cluster.folder.display()));
            *pid != not && is_ours && line.contains(words)
        })
    })
}

fn signal(pid: u32, signal: &str) {
    assert!(
        Command::new("kill")
            .args([signal, &pid.to_string()])
            .status()
            .expect("every host has `kill`")
            .success()
    );
}

#[test]
fn daemon_and_agents_that_die_come_back_by_themselves() {
    let cluster = Cluster::up(&["--nodes", "2"]);
    let daemon = process_with(&cluster, " daemon ", 0);
    let agent = process_with(&cluster, "--node n2 ", 0);
    signal(daemon, "-KILL");
    signal(agent, "-KILL");
    process_with(&cluster, " daemon ", daemon);
    process_with(&cluster, "--node n2 ", agent);
    let job = cluster.submit(&["--nodes", "2", "--", "hostname"]);
    let end = cluster.wait_for(&job, |job| job["ended_ms"].is_u64());
    assert_eq!(end["state"], "succeeded", "{end:#}");
    let supervisor = process_with(&cluster, " supervise ", 0);
    signal(supervisor, "-KILL");
    process_with(&cluster, " supervise ", supervisor);
    let tokens = cluster.json(&["token", "list"]);
    // One to join with, one to come back with.
    let of_agent = tokens["tokens"].as_array().unwrap().iter().filter(|token| token["user"] == "n2");
    assert_eq!(of_agent.count(), 2, "those of dead agents are revoked: {tokens:#}");
    cluster.down();
}

#[test]
fn no_token_reaches_a_program_that_took_the_port_of_a_dead_daemon() {
    let cluster = Cluster::up(&["--nodes", "1"]);
    let beacon = fs::read_to_string(cluster.folder.join("state/daemon.json")).expect("it is up");
    let port = serde_json::from_str::<Value>(&beacon).expect("it is JSON")["port"].as_u64().expect("a port");
    let address = ("127.0.0.1", u16::try_from(port).expect("a port"));
    let daemon = process_with(&cluster, " daemon ", 0);
    wait_to_see(
        "the supervisor holds the port",
        || cluster.json(&["status"]),
        |shown| shown["is_up"] == true,
    );
    signal(daemon, "-KILL");
    assert!(TcpListener::bind(address).is_err(), "the port is kept while its supervisor lives");
    process_with(&cluster, " daemon ", daemon);

    let (daemon, supervisor) =
        (process_with(&cluster, " daemon ", 0), process_with(&cluster, " supervise ", 0));
    // A daemon that is alone for long starts its supervisor again.
    signal(daemon, "-STOP");
    signal(supervisor, "-KILL");
    signal(daemon, "-KILL");
    let impostor = wait_for("the port is free", || TcpListener::bind(address).ok());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    std::thread::spawn(move || {
        for mut stream in impostor.incoming().flatten() {
            let mut bytes = vec![0; 65_536];
            let count = stream.read(&mut bytes).unwrap_or(0);
            hears.lock().expect("no panic").push(bytes[..count].to_vec());
        }
    });
    assert_eq!(cluster.run(&["queue"]).status.code(), Some(3));
    assert_eq!(cluster.run(&["status"]).status.code(), Some(3));
    // The agent tries to link all the time.
    wait_until("all have tried", || heard.lock().expect("no panic").len() > 3);
    let token = fs::read(cluster.folder.join("state/admin.token")).expect("it is there");
    let tokens = [token.trim_ascii(), b"bp_", b"Bearer", b"HTTP"];
    for bytes in heard.lock().expect("no panic").iter() {
        let has = |token: &&[u8]| bytes.windows(token.len()).any(|part| part == *token);
        assert!(!tokens.iter().any(has), "{}", String::from_utf8_lossy(bytes));
    }
    succeeded(&cluster.run(&["down"]));
}

#[test]
fn a_cluster_tells_why_its_daemon_is_away_and_a_journal_that_was_cut_is_repaired() {
    let cluster = Cluster::up(&["--nodes", "1"]);
    succeeded(&cluster.run(&["submit", "--wait", "--", "true"]));
    assert!(cluster.tell(&["journal", "check"]).starts_with("whole: "));
    let backup = cluster.folder.join("state/backups/first").display().to_string();
    succeeded(&cluster.run(&["journal", "backup", &backup]));
    let later = cluster.submit(&["--wait", "--", "true"]);
    signal(process_with(&cluster, " supervise ", 0), "-STOP");
    signal(process_with(&cluster, " daemon ", 0), "-KILL");
    for name in ["journal.sqlite", "journal.sqlite-wal"] {
        let file = fs::OpenOptions::new().write(true).open(cluster.folder.join("state").join(name));
        file.and_then(|file| file.set_len(0)).expect("it is ours");
    }
    signal(process_with(&cluster, " supervise ", 0), "-CONT");
    let told = |shown: &Value| {
        let troubles = shown["troubles"].to_string();
        troubles.contains("commits with") && shown["is_supervised"] == true
    };
    let status = || {
        let output = cluster.run(&["--json", "status"]);
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    };
    wait_to_see("the supervisor says what is wrong", status, told);
    succeeded(&cluster.run(&["down", "--force"]));
    assert_eq!(cluster.run(&["up"]).status.code(), Some(1), "it does not go on from nothing");
    let repaired = cluster.json(&["journal", "repair"]);
    assert!(repaired["from"].as_str().expect("a path").contains("backups/first"), "{repaired:#}");
    succeeded(&cluster.run(&["up"]));
    assert_eq!(cluster.run(&["job", "show", &later]).status.code(), Some(1), "it came after the back-up");
    succeeded(&cluster.run(&["job", "show", "1"]));
    cluster.down();
}

#[test]
fn an_agent_that_stands_still_is_replaced() {
    let cluster = Cluster::up(&["--nodes", "1"]);
    signal(process_with(&cluster, " supervise ", 0), "-KILL");
    let agent = process_with(&cluster, "--node n1 ", 0);
    signal(agent, "-STOP");
    let state = cluster.folder.join("state").display().to_string();
    let supervisor = Command::new(PROGRAM)
        .args(["supervise", "--silence", "1", "--state-dir", &state])
        .env("BEDPLATE_CLUSTER", &state)
        .spawn();
    let mut supervisor = supervisor.expect("the program was built before its tests");
    process_with(&cluster, "--node n1 ", agent);
    let job = cluster.submit(&["--", "true"]);
    let end = cluster.wait_for(&job, |job| job["ended_ms"].is_u64());
    assert_eq!(end["state"], "succeeded", "{end:#}");
    cluster.down();
    supervisor.wait().expect("it was started here");
}

/// Files below a folder that others than their owner can read, and folders that they can list.
fn readable_by_others(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("it is ours").flatten() {
        let metadata = fs::symlink_metadata(entry.path()).expect("nothing goes away while it is looked at");
        let open = metadata.permissions().mode() & 0o077;
        let is_open = match metadata.file_type() {
            kind if kind.is_dir() => {
                found.extend(readable_by_others(&entry.path()));
                open & 0o066 != 0
            }
            // Anyone may ask the agent of a root, which looks who it is.
            kind if kind.is_symlink() || kind.is_socket() => false,
            _ => open != 0,
        };
        if is_open {
            found.push(format!("{} {open:o}", entry.path().display()));
        }
    }
    found
}

#[test]
fn nothing_in_the_state_directory_can_be_read_by_others() {
    let cluster = Cluster::up(&["--nodes", "1"]);
    succeeded(&cluster.run(&[
        "submit",
        "--wait",
        "--",
        "sh",
        "-c",
        "umask 077; echo checkpoint 1 >> $BEDPLATE_REPORT",
    ]));
    let state = cluster.folder.join("state");
    assert_eq!(fs::metadata(&state).expect("it is there").permissions().mode() & 0o066, 0);
    // Captured streams are made by the rank, in a folder that nobody else can enter.
    let open: Vec<String> =
        readable_by_others(&state).into_iter().filter(|path| !path.contains("/rank-")).collect();
    assert!(open.is_empty(), "{open:#?}");
    cluster.down();
    let open: Vec<String> =
        readable_by_others(&state).into_iter().filter(|path| !path.contains("/rank-")).collect();
    assert!(open.is_empty(), "{open:#?}");
}

#[test]
fn down_names_what_starts_again_and_a_fresh_cluster_begins_without_it() {
    let cluster = Cluster::up(&["--nodes", "1", "--like", "p5.48xlarge"]);
    let held = cluster.submit(&["--hold", "--job-name", "later", "--", "true"]);
    let down = cluster.run(&["down"]);
    succeeded(&down);
    let said = String::from_utf8_lossy(&down.stderr).into_owned();
    assert!(said.contains(&format!("{held} (later)")) && said.contains("up --fresh"), "{said}");
    let shape = ["up", "--nodes", "1", "--like", "p5.48xlarge"];
    let again = cluster.run(&shape);
    succeeded(&again);
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(said.contains("revived") && said.contains("(later)"), "{said}");
    let fresh = cluster.run(&[&shape[..], &["--fresh"]].concat());
    assert_eq!(fresh.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&fresh.stderr).contains("up/still-up"));
    cluster.down();
    let fresh = cluster.run(&[&shape[..], &["--fresh"]].concat());
    succeeded(&fresh);
    let said = String::from_utf8_lossy(&fresh.stderr).into_owned();
    assert!(said.contains("state.before-") && !said.contains("revived"), "{said}");
    assert_eq!(cluster.json(&["queue"])["jobs"], Value::Array(Vec::new()));
    cluster.down();
}

#[test]
fn units_are_what_systemd_understands() {
    let folder = std::env::temp_dir().join(format!("bp-units-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let daemon = ["unit", "daemon", "--cluster", "p5.48xlarge:4", "--listen", "10.0.0.1:7431"];
    let agent = ["unit", "agent", "--server", "10.0.0.1:7431", "--node", "n7", "--address", "10.0.0.7"];
    let agent = [&agent[..], &["--fingerprint", "ab"]].concat();
    let units = [
        ("daemon", &daemon[..]),
        ("agent", &agent[..]),
        ("export", &["unit", "export"][..]),
        ("serve", &["unit", "serve", "/srv/model", "--api-key-file", "/etc/bedplate/keys"][..]),
        ("route", &["unit", "route", "--replica", "http://10.0.0.5:8000"][..]),
        ("scheduler", &["unit", "scheduler"][..]),
    ];
    for (name, arguments) in units {
        let output = Command::new(PROGRAM).args(arguments).output().unwrap();
        succeeded(&output);
        let path = folder.join(format!("bedplate-{name}.service"));
        fs::write(&path, &output.stdout).unwrap();
        match Command::new("systemd-analyze").arg("verify").arg(&path).output() {
            Ok(verified) => {
                let said = String::from_utf8_lossy(&verified.stderr);
                assert!(!said.contains("bedplate-"), "{name}: {said}");
            }
            Err(error) => println!("SKIPPED: systemd-analyze does not run here: {error}"),
        }
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn jobs_are_held_released_cancelled_and_nodes_drained() {
    let cluster = Cluster::up(&["--nodes", "1", "--like", "p5.48xlarge"]);
    let held = cluster.submit(&["--hold", "--", "true"]);
    assert!(cluster.tell(&["queue"]).contains("held"));
    succeeded(&cluster.run(&["job", "release", &held]));
    let end = cluster.wait_for(&held, |job| job["ended_ms"].is_u64());
    assert_eq!(end["state"], "succeeded");

    let long = cluster.submit(&["--", "sleep", "600"]);
    cluster.wait_for(&long, |job| job["state"] == "running");
    let beside = cluster.tell(&["job", "attach", &long, "--", "sh", "-c", "echo $RANK in $BEDPLATE_JOB"]);
    assert_eq!(beside.trim(), format!("0 in {long}"));
    let both = cluster.run(&["job", "cancel", &long, "99"]);
    assert_eq!(both.status.code(), Some(1), "one of them does not exist");
    let end = cluster.wait_for(&long, |job| job["ended_ms"].is_u64());
    assert_eq!(end["state"], "cancelled");

    succeeded(&cluster.run(&["node", "drain", "n1", "--reason", "ECC errors"]));
    assert!(cluster.tell(&["node", "list"]).contains("ECC errors"));
    let waiting = cluster.submit(&["--", "true"]);
    assert_eq!(cluster.json(&["job", "show", &waiting])["state"], "waiting");
    succeeded(&cluster.run(&["node", "resume", "n1"]));
    let end = cluster.wait_for(&waiting, |job| job["ended_ms"].is_u64());
    assert_eq!(end["state"], "succeeded");

    let token = cluster.tell(&["token", "add", "ada", "--role", "reader"]);
    assert!(token.trim().len() > 16 && cluster.tell(&["token", "list"]).contains("ada"));
    cluster.down();
}

#[test]
fn a_batch_script_runs_with_srun_as_it_is() {
    let cluster = Cluster::up(&["--nodes", "2", "--like", "p5.48xlarge"]);
    let script = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1\nsrun sh -c 'echo task $SLURM_PROCID on $SLURMD_NODENAME'\nscontrol show hostnames\n";
    fs::write(cluster.folder.join("job.sbatch"), script).unwrap();
    let told = cluster.tell(&["submit", "job.sbatch", "--follow"]);
    for line in ["task 0 on n1", "task 1 on n2", "127.0.0.1\n127.0.0.2\n"] {
        assert!(told.contains(line), "{told}");
    }
    cluster.down();
}

/// A Llama that trains in a second.
const MODEL: &str = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
  "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 64}"#;
const TRAINING: &str = "[model]\nconfig = \"config.json\"\n[data]\ncorpora = [\"corpus\"]\nsequence = 64\n\
                        [training]\nsteps = 40\nbatch = 4\nmicro_batch = 4\n[output]\nfolder = \"run\"\n";

#[test]
fn a_planned_training_job_shows_its_prediction_beside_what_it_measured() {
    let cluster = Cluster::up(&["--nodes", "1", "--like", "p5.48xlarge"]);
    let write = |name: &str, text: &str| fs::write(cluster.folder.join(name), text).unwrap();
    write("config.json", MODEL);
    write("train.toml", TRAINING);
    write(
        "job.toml",
        &format!("name = \"train\"\ncommand = [\"{PROGRAM}\", \"train\", \"train.toml\"]\nnodes = 1\n"),
    );
    cluster.tell(&["data", "generate", "--documents", "200", "--vocabulary", "512", "--out", "corpus"]);
    let host = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/inputs/host.toml");
    let question =
        "plan train --model config.json --cluster host:1 --seq 64 --global-batch 4 --precision fp32";
    let question: Vec<&str> = ["--catalog", host].into_iter().chain(question.split(' ')).collect();
    let plan = cluster.json(&[&question[..], &["--submit", "job.toml"]].concat());
    let job = plan["submitted"]["id"].as_str().unwrap().to_owned();
    let end = cluster.wait_for(&job, |job| job["state"] == "succeeded");

    let seconds = |breakdown: &Value| breakdown["compute"]["exposed_s"].as_f64().unwrap();
    assert_eq!(
        seconds(&end["predicted"]),
        seconds(&plan["breakdown"]),
        "the prediction arrives with its bits"
    );
    let steps = &end["steps"];
    assert!(steps["steps"].as_u64().is_some_and(|count| (8..=40).contains(&count)), "{steps:#}");
    assert!(
        seconds(&steps["mean"]) > 0.0 && steps["mean_s"].as_f64().unwrap() >= seconds(&steps["mean"]),
        "{steps:#}"
    );
    assert_eq!(
        (steps["latest"].as_array().unwrap().len(), &steps["latest"][7]["step"]),
        (8, &40.into()),
        "{steps:#}"
    );
    assert_eq!((&end["runs"][0]["steps"], &steps["phase"]), (steps, &"done".into()));
    let page = cluster.tell(&["job", "show", &job]);
    assert!(page.contains("PART") && page.contains("whole step") && page.contains("latest steps"), "{page}");

    // Both are in the journal.
    succeeded(&cluster.run(&["chaos", "kill-control"]));
    let after = cluster.json(&["job", "show", &job]);
    assert_eq!((&after["predicted"], &after["steps"]), (&end["predicted"], &end["steps"]));

    write("plan.json", &plan.to_string());
    let attached = cluster.submit(&["--expected", "plan.json", "--nodes", "1", "--", "true"]);
    let attached = cluster.wait_for(&attached, |job| job["state"] == "succeeded");
    assert_eq!((&attached["predicted"], &attached["steps"]), (&end["predicted"], &Value::Null));
    cluster.down();
}

#[test]
fn a_context_names_a_cluster_and_its_commands_go_there() {
    let cluster = Cluster::up(&["--nodes", "1", "--like", "p5.48xlarge"]);
    let contexts = cluster.folder.join("config/contexts.toml");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).current_dir(&cluster.folder).env("BEDPLATE_CONTEXTS", &contexts);
        command.env_remove("BEDPLATE_STATE").env_remove("BEDPLATE_SERVER").env("HOME", &cluster.folder);
        command.output().unwrap()
    };
    let beacon: Value =
        serde_json::from_str(&fs::read_to_string(cluster.folder.join("state/daemon.json")).unwrap()).unwrap();
    let url = format!("https://127.0.0.1:{}", beacon["port"]);
    let fingerprint = beacon["fingerprint"].as_str().expect("it proves itself on loopback too");
    let lab = ["context", "add", "lab", "--url", &url, "--token-file", "state/admin.token"];
    assert!(String::from_utf8_lossy(&run(&lab).stderr).contains("cluster/unproven"));
    succeeded(&run(&[&lab[..], &["--fingerprint", fingerprint]].concat()));
    succeeded(&run(&["context", "add", "here", "--state-dir", "state"]));
    for name in ["lab", "here"] {
        let output = run(&["node", "list", "--context", name]);
        succeeded(&output);
        assert!(String::from_utf8_lossy(&output.stdout).contains("n1"), "{name}");
    }
    assert_eq!(run(&["node", "list"]).status.code(), Some(3), "no context is current");
    let said = |output: Output| String::from_utf8(output.stderr).unwrap();
    assert!(said(run(&["context", "list"])).contains("none is current: commands talk to"));
    let listed = Command::new(PROGRAM)
        .args(["context", "list"])
        .env("BEDPLATE_CONTEXTS", &contexts)
        .env("BEDPLATE_STATE", "/elsewhere")
        .output();
    assert!(said(listed.unwrap()).contains("commands talk to /elsewhere"));
    succeeded(&run(&["context", "use", "lab"]));
    succeeded(&run(&["submit", "--nodes", "1", "--wait", "--", "true"]));
    succeeded(&run(&["usage"]));
    succeeded(&run(&["context", "remove", "lab"]));
    let unknown = run(&["--json", "queue", "--context", "lab"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("context/unknown"));
    cluster.down();
}

#[test]
fn the_last_chapter_of_the_tour_trains_on_four_nodes_loses_one_and_learns() {
    let output = Command::new(PROGRAM).args(["tour", "--json"]).output().unwrap();
    succeeded(&output);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let happened = &told["chapters"].as_array().unwrap().last().unwrap()["happened"];
    assert_eq!(happened["end"], "succeeded", "{happened:#}");
    assert!(happened["from_step"].as_u64().unwrap() >= 60, "{happened:#}");
    let losses: Vec<f64> = serde_json::from_value(happened["losses"].clone()).unwrap();
    assert_eq!(losses.len(), 300, "every step is reported once, before and after the loss");
    let ranks: Vec<u64> = serde_json::from_value(happened["ranks"].clone()).unwrap();
    assert_eq!((ranks.len(), ranks[0]), (300, 4));
    assert!(ranks.contains(&3), "those that were left went on: {ranks:?}");
    assert!(losses[299] < 0.6 * losses[0], "{} -> {}", losses[0], losses[299]);
    assert_ne!(happened["samples"][0], happened["samples"][1]);
    assert!(happened["explanation"]["wait"]["code"].is_string(), "{happened:#}");
}

#[test]
fn job_show_has_the_steps_of_a_python_loop() {
    let cluster = Cluster::up(&["--nodes", "1", "--like", "p5.48xlarge"]);
    let program = "import time, bedplate
for number in (steps := bedplate.Steps(range(4), tokens_per_step=100)):
    with bedplate.part('forward'):
        time.sleep(0.05)
    steps.loss = 2.5
with bedplate.saving(4, '/c/4'):
    pass";
    let sources = bedplate_testkit::root().join("python/src").display().to_string();
    let command = format!("PYTHONPATH={sources} exec python3 -c \"{program}\"");
    let job = cluster.submit(&["--", "sh", "-c", &command]);
    let end = cluster.wait_for(&job, |job| job["ended_ms"].is_u64());
    assert_eq!(end["state"], "succeeded", "{end:#}");
    let steps = &end["steps"];
    assert_eq!((&steps["steps"], &steps["latest"][3]["tokens"]), (&4.into(), &400.into()), "{end:#}");
    assert!(steps["mean"]["compute"]["exposed_s"].as_f64().is_some_and(|seconds| seconds >= 0.05), "{end:#}");
    let page = cluster.tell(&["job", "show", &job]);
    assert!(page.contains("compute") && page.contains("whole step") && page.contains("2.5"), "{page}");
    cluster.down();
}

#[test]
fn a_cluster_of_ours_passes_the_suite_of_all_drivers_that_run_jobs() {
    let cluster = Cluster::up(&["--nodes", "2", "--like", "p5.48xlarge"]);
    let place = bedplate_drivers::StateDirectory(cluster.folder.join("state")).place().expect("it is up");
    working::conforms(&bedplate_drivers::Local::new(place), &cluster.folder);
    cluster.down();
}
