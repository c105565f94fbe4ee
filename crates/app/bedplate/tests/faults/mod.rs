//! A stream of jobs on six nodes, hostile ones among them, while every kind of process of the cluster is killed and frozen: daemon, supervisor,
//! agents, fork servers and run shims.
//!
//! First the storm, then the calm. Every rank of an honest job holds a lock of its own for as long as anything of it lives, so
//! that two runs of one job at once are seen where they would do harm, and leaves a mark when it begins, so that one that begins
//! after its job has ended is seen too. What is drawn follows from a seed; what happens also depends on the machine, so nothing is asserted about when.
//!
//! `BEDPLATE_FAULTS=1000 BEDPLATE_FAULT_JOBS=10000 BEDPLATE_FAULT_SEED=7` make it as long as one likes.

#![allow(clippy::print_stdout, reason = "how much was done, and what was skipped, is said")]

mod account;
mod victims;

use std::fs;
use std::path::Path;
use std::process::Child;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use bedplate_random::Random;
use serde_json::Value;

use account::Faults;
use victims::inject;

use super::{Cluster, process_with, processes_of, signal, succeeded};

const NODES: u32 = 6;
/// Faults that happen at once.
const INJECTORS: u64 = 3;
/// The user `nobody` of every Debian.
const NOBODY: u32 = 65_534;

/// How much is done.
#[derive(Clone, Copy)]
struct Scale {
    faults: usize,
    jobs: usize,
    seed: u64,
}

impl Scale {
    /// As the environment says; what every test run has otherwise.
    fn wanted() -> Self {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let faults = number("BEDPLATE_FAULTS").unwrap_or(16) as usize;
        let jobs = number("BEDPLATE_FAULT_JOBS").map_or(4 * faults, |jobs| jobs as usize);
        Self { faults, jobs, seed: number("BEDPLATE_FAULT_SEED").unwrap_or(20_261_116) }
    }

    /// Jobs of each submission: there is about one for each fault.
    fn array(&self) -> usize {
        // Every third is hostile.
        (self.jobs * 3).div_ceil(self.faults * 2).max(1)
    }

    /// How long everything may take to end after the last fault, on a machine of any speed.
    fn calm(&self) -> Duration {
        Duration::from_secs(600) + Duration::from_millis(200) * self.jobs as u32
    }
}

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
    storm(&Cluster::prepare(), Scale::wanted());
}

#[test]
fn nor_does_it_where_the_cluster_has_the_rights_of_an_ordinary_user() {
    match Cluster::prepare_as(NOBODY) {
        Some(cluster) => storm(&cluster, Scale::wanted()),
        None => println!("SKIPPED: these tests may not start a cluster as another user"),
    }
}

fn storm(cluster: &Cluster, scale: Scale) {
    let locks = cluster.folder.join("locks");
    fs::create_dir_all(&locks).expect("the folder is ours");
    cluster.give(&locks);
    fs::write(cluster.folder.join("site.toml"), "[rules]\nmost_losses = 100000\n")
        .expect("the folder is ours");
    cluster.start(&["--nodes", &NODES.to_string(), "--like", "p5.48xlarge", "--site", "site.toml"]);
    let supervisor = PatientSupervisor::start(cluster);

    let (injected, faults) = (AtomicUsize::new(0), Faults::default());
    let jobs = thread::scope(|scope| {
        for index in 0..INJECTORS {
            let (injected, faults) = (&injected, &faults);
            scope.spawn(move || {
                let mut random = Random::stream(scale.seed, index);
                while injected.fetch_add(1, Ordering::Relaxed) < scale.faults {
                    inject(cluster, faults, &mut random);
                }
            });
        }
        scope.spawn(|| supervisor.keep(cluster, || injected.load(Ordering::Relaxed) < scale.faults));
        submit_while(cluster, &locks, scale, &injected)
    });
    let count = jobs.honest.len() * scale.array();
    assert!(jobs.honest.len() >= scale.faults / 10, "only {count} honest jobs were taken in");

    let calm = Calm { began: Instant::now(), lasts: scale.calm() };
    let mut told = 0;
    for job in &jobs.honest {
        told += honest_end(cluster, &faults, job, &locks, calm);
    }
    for job in &jobs.hostile {
        let _ = cluster.run(&["job", "cancel", job]);
        until_ended(cluster, &faults, job, calm);
    }
    none_began_after_its_end(cluster, &locks);
    let overlaps = fs::read_to_string(locks.join("overlaps")).unwrap_or_default();
    assert_eq!(overlaps, "", "ranks of two runs of one job lived at once");
    if let Some(node) = still_out_of_service(cluster, calm) {
        panic!("a node stays out of service: {}", account::of_node(cluster, &faults, &node));
    }
    let all = cluster.submit(&["--nodes", &NODES.to_string(), "--gpus-per-node", "8", "--", "true"]);
    assert_eq!(until_ended(cluster, &faults, &all, calm)["state"], "succeeded");
    let left: Vec<String> =
        processes_of(&cluster.folder).into_iter().filter(|line| is_of_jobs(line)).collect();
    assert!(left.is_empty(), "processes of jobs that have ended are left: {left:?}");
    println!(
        "{}; {count} honest jobs, of which {told} were told that their run shim was killed, {} hostile ones",
        faults.summary(),
        jobs.hostile.len()
    );
    supervisor.is_over.store(true, Ordering::Relaxed);
    cluster.down();
    supervisor.bury();
}

/// Neither a process of the cluster nor of this test.
fn is_of_jobs(line: &str) -> bool {
    ![" daemon ", " agent ", " supervise ", " keeper"].iter().any(|word| line.contains(word))
}

/// What was acknowledged.
#[derive(Default)]
struct Acknowledged {
    /// Arrays.
    honest: Vec<String>,
    hostile: Vec<String>,
}

/// About one submission for each fault while the storm lasts; every third is hostile. One may fail when no daemon answers: then nobody was
/// promised anything.
fn submit_while(cluster: &Cluster, locks: &Path, scale: Scale, injected: &AtomicUsize) -> Acknowledged {
    let mut jobs = Acknowledged::default();
    for number in 0.. {
        while number > injected.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
        if injected.load(Ordering::Relaxed) >= scale.faults {
            break;
        }
        let is_hostile = number % 3 == 2;
        let path = cluster.folder.join("job.toml");
        let text = match is_hostile {
            true => hostile_job(HOSTILE[number / 3 % HOSTILE.len()].1),
            false => honest_job(locks, 1 + number % 2, scale.array()),
        };
        fs::write(&path, text).expect("the folder is ours");
        let output = cluster.run(&["submit", "job.toml"]);
        if output.status.success() {
            let job = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if is_hostile { jobs.hostile.push(job) } else { jobs.honest.push(job) }
        }
    }
    jobs
}

/// Each rank holds the lock of its place while it and its children live, and says so where the lock is taken already.
fn honest_job(locks: &Path, nodes: usize, tasks: usize) -> String {
    let locks = locks.display();
    let script = format!(
        "exec 9>\"{locks}/$BEDPLATE_JOB.$RANK\"; \
         flock -n 9 || echo \"job $BEDPLATE_JOB rank $RANK\" >> \"{locks}/overlaps\"; \
         : > \"{locks}/$BEDPLATE_JOB.begun\"; sleep 0.4; echo done"
    );
    format!(
        "name = \"honest\"\ncommand = [\"sh\", \"-c\", {script:?}]\nnodes = {nodes}\ngpus_per_node = 2\n\
         time_limit = \"10min\"\nretries = 1000\narray = \"0-{}\"\n",
        tasks - 1
    )
}

fn hostile_job(script: &str) -> String {
    format!(
        "name = \"hostile\"\ncommand = [\"sh\", \"-c\", {script:?}]\nnodes = 1\ngpus_per_node = 2\ntime_limit = \"5s\"\n"
    )
}

/// In the place of the cluster's supervisor, one that does not wait ever longer between starts: here all of them die for no fault of
/// their own. Like a service manager this test starts it again when it is killed.
struct PatientSupervisor {
    child: Mutex<Child>,
    is_over: AtomicBool,
}

impl PatientSupervisor {
    fn start(cluster: &Cluster) -> Self {
        signal(process_with(cluster, " supervise ", 0), "-KILL");
        Self { child: Mutex::new(Self::spawn(cluster)), is_over: AtomicBool::new(false) }
    }

    fn spawn(cluster: &Cluster) -> Child {
        let state = cluster.folder.join("state").display().to_string();
        let mut command = cluster.program();
        command.args(["supervise", "--longest-delay", "1", "--state-dir", &state]);
        command.env("BEDPLATE_CLUSTER", &state).current_dir("/");
        command.spawn().expect("the program was built before its tests")
    }

    /// Until the storm is over; then it lives.
    fn keep(&self, cluster: &Cluster, is_storm: impl Fn() -> bool) {
        loop {
            let goes_on = is_storm();
            let mut child = self.child.lock().expect("no holder of this lock panics");
            if matches!(child.try_wait(), Ok(Some(_))) && !self.is_over.load(Ordering::Relaxed) {
                *child = Self::spawn(cluster);
            }
            drop(child);
            if !goes_on {
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn bury(self) {
        let mut child = self.child.into_inner().expect("no holder of this lock panics");
        child.wait().expect("it was started here");
    }
}

/// How long the calm may take.
#[derive(Clone, Copy)]
struct Calm {
    began: Instant,
    lasts: Duration,
}

impl Calm {
    fn is_over(self) -> bool {
        self.began.elapsed() > self.lasts
    }
}

/// Every task succeeds, or is told that its run shim was killed where that may have been its own doing. Says how many were told so.
fn honest_end(cluster: &Cluster, faults: &Faults, array: &str, locks: &Path, calm: Calm) -> usize {
    let shown = until_ended(cluster, faults, array, calm);
    let mut told = 0;
    for task in tasks_of(&shown) {
        let id = number(&task).unwrap_or_else(|| panic!("a task without a number: {task}"));
        assert!(task["state"] != "succeeded" || locks.join(format!("{id}.0")).exists(), "job {id} never ran");
        if task["state"] == "succeeded" {
            continue;
        }
        let label = task["label"].as_str().unwrap_or_default();
        let ended = cluster.json(&["job", "show", label]);
        let is_told = ended["reason"]["text"].as_str().is_some_and(|why| why.contains("run shim was killed"));
        assert!(cluster.user.is_some() && is_told, "{}", account::of_job(cluster, faults, &ended));
        told += 1;
    }
    told
}

/// A job whose end was told does not run once more.
fn none_began_after_its_end(cluster: &Cluster, locks: &Path) {
    /// Of the clock of a file system.
    const TICK_MS: u64 = 100;
    let all = cluster.json(&["queue", "--all"]);
    let ended = all["jobs"].as_array().expect("a list of jobs").iter();
    let ended = ended.filter_map(|job| Some((number(job)?, job["ended_ms"].as_u64()?)));
    for (job, ended_ms) in ended {
        let begun = fs::metadata(locks.join(format!("{job}.begun"))).and_then(|mark| mark.modified());
        let since = begun.ok().and_then(|begun| begun.duration_since(UNIX_EPOCH).ok());
        let begun_ms = since.map_or(0, |since| since.as_millis() as u64);
        assert!(begun_ms <= ended_ms + TICK_MS, "job {job} began {} ms after its end", begun_ms - ended_ms);
    }
}

fn number(job: &Value) -> Option<u64> {
    job["id"].as_u64().or_else(|| job["id"].as_str()?.parse().ok())
}

/// The tasks of an array; an array of one is its only task.
fn tasks_of(shown: &Value) -> Vec<Value> {
    match shown["tasks"].as_array() {
        Some(tasks) if !tasks.is_empty() => tasks.clone(),
        _ => vec![shown.clone()],
    }
}

/// A node that does not come back into service. One whose agent was hit last may take a moment; what a job had caused
/// would stay.
fn still_out_of_service(cluster: &Cluster, calm: Calm) -> Option<Value> {
    loop {
        let nodes = cluster.json(&["node", "list"]);
        let is_well =
            |node: &&Value| (node["state"] == "idle" || node["state"] == "busy") && node["reason"].is_null();
        let broken = nodes["nodes"].as_array().expect("a list of nodes").iter().find(|node| !is_well(node));
        match broken {
            Some(node) if calm.is_over() => return Some(node.clone()),
            Some(_) => thread::sleep(Duration::from_millis(100)),
            None => return None,
        }
    }
}

/// The job, or the array, once all of it has ended. Commands may fail while a daemon comes back.
fn until_ended(cluster: &Cluster, faults: &Faults, job: &str, calm: Calm) -> Value {
    loop {
        let output = cluster.run(&["--json", "job", "show", job]);
        let shown = serde_json::from_slice::<Value>(&output.stdout).ok().filter(|_| output.status.success());
        let waits =
            shown.as_ref().and_then(|shown| tasks_of(shown).into_iter().find(|task| !has_ended(task)));
        match (&shown, &waits) {
            (Some(shown), None) => return shown.clone(),
            (Some(_), Some(task)) if calm.is_over() => {
                let label = task["label"].as_str().unwrap_or(job);
                let shown = cluster.json(&["job", "show", label]);
                panic!("job {label} does not end: {}", account::of_job(cluster, faults, &shown));
            }
            _ if calm.is_over() => succeeded(&output),
            _ => thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn has_ended(job: &Value) -> bool {
    let final_states = ["succeeded", "failed", "cancelled", "timed_out", "node_lost", "rejected"];
    job["state"].as_str().is_some_and(|state| final_states.contains(&state))
}
