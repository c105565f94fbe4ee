//! A stream of jobs on six nodes, hostile ones among them, while daemon, agents and fork servers are killed and frozen.
//!
//! First the storm, then the calm. Every rank of an honest job holds a lock of its own for as long as anything of it lives, so
//! that two runs of one job at once are seen where they would do harm. What is drawn follows from a seed; what happens
//! also depends on the machine, so nothing is asserted about when.

mod account;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_random::Random;
use serde_json::Value;

use account::Faults;

use super::{Cluster, PROGRAM, process_with, signal, succeeded};

const NODES: u32 = 6;
const FAULTS: usize = 100;
/// Faults that happen at once.
const INJECTORS: u64 = 3;
const SEED: u64 = 20_261_116;
/// How long everything may take to end after the last fault, on a machine of any speed.
const CALM: Duration = Duration::from_secs(600);

/// Holds the lock of its rank while it and its children live, and says so where the lock is taken already.
const HONEST: &str = "exec 9>\"$LOCKS/$BEDPLATE_JOB.$RANK\"; \
    flock -n 9 || echo \"job $BEDPLATE_JOB rank $RANK\" >> \"$LOCKS/overlaps\"; \
    sleep 0.4; echo done";

/// Jobs that harm whom they can reach.
const HOSTILE: [(&str, &str); 8] = [
    ("kills its parent", "kill -9 $PPID; sleep 600"),
    ("kills its whole group", "kill -9 0"),
    ("puts a pipe in the place of its report", "rm -f $BEDPLATE_REPORT; mkfifo $BEDPLATE_REPORT; sleep 0.3"),
    ("does not let itself be ended", "trap '' TERM INT HUP; while :; do sleep 1; done"),
    ("leaves a process behind", "setsid sh -c 'exec >/dev/null 2>&1; sleep 600' & exit 0"),
    ("floods its log", "head -c 30000000 /dev/zero"),
    ("floods its report", "yes checkpoint 1 | head -c 3000000 >> $BEDPLATE_REPORT"),
    ("fails", "exit 9"),
];

#[test]
fn one_bad_job_harms_only_itself_while_everything_else_is_killed_and_frozen() {
    let cluster = Cluster::prepare();
    let locks = cluster.folder.join("locks");
    fs::create_dir_all(&locks).expect("the folder is ours");
    fs::write(cluster.folder.join("site.toml"), "[rules]\nmost_losses = 100000\n")
        .expect("the folder is ours");
    cluster.start(&["--nodes", &NODES.to_string(), "--like", "p5.48xlarge", "--site", "site.toml"]);
    let mut supervisor = patient_supervisor(&cluster);

    let (injected, faults) = (AtomicUsize::new(0), Faults::default());
    let jobs = thread::scope(|scope| {
        for index in 0..INJECTORS {
            let (cluster, injected, faults) = (&cluster, &injected, &faults);
            scope.spawn(move || {
                let mut random = Random::stream(SEED, index);
                while injected.fetch_add(1, Ordering::Relaxed) < FAULTS {
                    inject(cluster, faults, &mut random);
                }
            });
        }
        let is_storm = || injected.load(Ordering::Relaxed) < FAULTS;
        submit_while(&cluster, &locks, is_storm)
    });
    assert!(jobs.honest.len() >= 10, "only {} honest jobs were taken in", jobs.honest.len());

    let began = Instant::now();
    for job in &jobs.honest {
        let end = until_ended(&cluster, &faults, job, began);
        assert_eq!(end["state"], "succeeded", "{}", account::of_job(&cluster, &faults, &end));
    }
    for job in &jobs.hostile {
        let _ = cluster.run(&["job", "cancel", job]);
        until_ended(&cluster, &faults, job, began);
    }
    let overlaps = fs::read_to_string(locks.join("overlaps")).unwrap_or_default();
    assert_eq!(overlaps, "", "ranks of two runs of one job lived at once");
    if let Some(node) = still_out_of_service(&cluster, began) {
        panic!("a node stays out of service: {}", account::of_node(&cluster, &faults, &node));
    }
    let all = cluster.submit(&["--nodes", &NODES.to_string(), "--gpus-per-node", "8", "--", "true"]);
    assert_eq!(until_ended(&cluster, &faults, &all, began)["state"], "succeeded");
    cluster.down();
    supervisor.wait().expect("it was started here");
}

/// What was acknowledged.
#[derive(Default)]
struct Acknowledged {
    honest: Vec<String>,
    hostile: Vec<String>,
}

/// One job after the other while the storm lasts; every third is hostile. A submission may fail when no daemon answers: then
/// nobody was promised anything.
fn submit_while(cluster: &Cluster, locks: &Path, is_storm: impl Fn() -> bool) -> Acknowledged {
    let mut jobs = Acknowledged::default();
    let setting = format!("ALL,LOCKS={}", locks.display());
    for number in 0.. {
        if !is_storm() {
            break;
        }
        let is_hostile = number % 3 == 2;
        let (nodes, time, script) = match is_hostile {
            true => ("1", "00:00:05", HOSTILE[number / 3 % HOSTILE.len()].1),
            false => (["1", "2", "3"][number % 2], "00:10:00", HONEST),
        };
        let flags =
            ["submit", "--nodes", nodes, "--gpus-per-node", "2", "--time", time, "--export", &setting];
        let command = ["--", "sh", "-c", script];
        let output = cluster.run(&[&flags[..], &command[..]].concat());
        if output.status.success() {
            let job = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if is_hostile { jobs.hostile.push(job) } else { jobs.honest.push(job) }
        }
        thread::sleep(Duration::from_millis(100));
    }
    jobs
}

/// Kills or freezes a daemon, an agent or a fork server, for less or for longer than a lease lasts.
fn inject(cluster: &Cluster, faults: &Faults, random: &mut Random) {
    let victims = victims(cluster);
    if !victims.is_empty() {
        let Victim { pid, what } = &victims[random.below(victims.len())];
        match random.remainder(3) {
            0 => {
                faults.note(format!("{what} is killed"));
                try_signal(*pid, "-KILL");
            }
            kind => {
                let long = if kind == 1 { 0 } else { 4_000 };
                let frozen_ms = long + random.remainder(1_000);
                faults.note(format!("{what} is frozen for {frozen_ms} ms"));
                try_signal(*pid, "-STOP");
                thread::sleep(Duration::from_millis(frozen_ms));
                try_signal(*pid, "-CONT");
            }
        }
    }
    thread::sleep(Duration::from_millis(200 + random.remainder(600)));
}

/// A process that faults happen to.
struct Victim {
    pid: u32,
    /// For people.
    what: String,
}

/// The daemon, all agents and all fork servers of the cluster.
fn victims(cluster: &Cluster) -> Vec<Victim> {
    let mark = format!("BEDPLATE_CLUSTER={}", cluster.folder.display());
    let pids = fs::read_dir("/proc").expect("Linux has it").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let victim = |pid| Some(Victim { pid, what: format!("{} (process {pid})", role(pid)?) });
    pids.filter(|pid| read(*pid, "environ").contains(&mark)).filter_map(victim).collect()
}

/// What a process is, if it is one that faults happen to.
fn role(pid: u32) -> Option<String> {
    let line = read(pid, "cmdline");
    if line.contains(" daemon ") {
        return Some("the daemon".to_owned());
    }
    if let Some(node) = node_of_agent(&line) {
        return Some(format!("the agent of {node}"));
    }
    let kin = Kin::of(pid)?;
    let node = node_of_agent(&read(kin.parent, "cmdline"))?;
    (line.trim_end().ends_with(" keeper") && kin.is_fork_server(pid))
        .then(|| format!("the fork server of {node}"))
}

fn node_of_agent(line: &str) -> Option<String> {
    let (_, arguments) = line.split_once(" agent ")?;
    let mut words = arguments.split(' ').skip_while(|word| *word != "--node");
    words.nth(1).map(str::to_owned)
}

/// Where a process belongs.
struct Kin {
    parent: u32,
    group: u32,
    session: u32,
}

impl Kin {
    fn of(pid: u32) -> Option<Self> {
        let stat = read(pid, "stat");
        // The name of the program is in parentheses.
        let mut numbers = stat.rsplit_once(") ")?.1.split(' ').skip(1).map_while(|word| word.parse().ok());
        Some(Self { parent: numbers.next()?, group: numbers.next()?, session: numbers.next()? })
    }

    /// A run shim is a fork of a fork server, has its command line, and becomes a child of the agent when that fork server
    /// dies. It is part of a run, and a job whose run shim is killed fails, so it must not be taken for a fork server. A fork
    /// server leads a process group and no session; a run shim stays in that group until it leads a session.
    fn is_fork_server(&self, pid: u32) -> bool {
        self.group == pid && self.session != pid
    }
}

/// A file of a process, which may have ended meanwhile.
fn read(pid: u32, file: &str) -> String {
    let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&text).replace('\0', " ")
}

/// The victim may have ended meanwhile.
fn try_signal(pid: u32, signal: &str) {
    let killed = Command::new("kill").args([signal, &pid.to_string()]).output();
    drop(killed.expect("every host has `kill`"));
}

/// Replaces the cluster's supervisor by one that does not wait ever longer between starts: here all of them die for no fault of
/// their own.
fn patient_supervisor(cluster: &Cluster) -> std::process::Child {
    signal(process_with(cluster, " supervise ", 0), "-KILL");
    let state = cluster.folder.join("state").display().to_string();
    let supervisor = Command::new(PROGRAM)
        .args(["supervise", "--longest-delay", "1", "--state-dir", &state])
        .env("BEDPLATE_CLUSTER", &state)
        .spawn();
    supervisor.expect("the program was built before its tests")
}

/// A node that does not come back into service. One whose agent was hit last may take a moment; what a job had caused
/// would stay.
fn still_out_of_service(cluster: &Cluster, began: Instant) -> Option<Value> {
    loop {
        let nodes = cluster.json(&["node", "list"]);
        let is_well =
            |node: &&Value| (node["state"] == "idle" || node["state"] == "busy") && node["reason"].is_null();
        let broken = nodes["nodes"].as_array().expect("a list of nodes").iter().find(|node| !is_well(node));
        match broken {
            Some(node) if began.elapsed() > CALM => return Some(node.clone()),
            Some(_) => thread::sleep(Duration::from_millis(100)),
            None => return None,
        }
    }
}

/// The job once it has ended. Commands may fail while a daemon comes back.
fn until_ended(cluster: &Cluster, faults: &Faults, job: &str, began: Instant) -> Value {
    loop {
        let output = cluster.run(&["--json", "job", "show", job]);
        if output.status.success() {
            let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON was asked for");
            if shown["ended_ms"].is_u64() {
                return shown;
            }
        }
        if began.elapsed() > CALM {
            succeeded(&output);
            let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON was asked for");
            panic!("job {job} does not end: {}", account::of_job(cluster, faults, &shown));
        }
        thread::sleep(Duration::from_millis(100));
    }
}
