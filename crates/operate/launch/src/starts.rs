//! The ranks of a node: starting, reaping and stopping them.
//!
//! The helper adopts orphans of its ranks, so everything that a rank started is below the helper and can be ended.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_agent::ReportFile;
use bedplate_agent::processes;
use bedplate_job::FileNames;
use bedplate_job::rank_environment::{self, JobFacts, NodePart, Surroundings};
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::wire::{End, RanksStart};

/// What even the kernel cannot end is given up after this.
const LAST_PATIENCE: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The ranks of a run on this node.
#[derive(Default)]
pub(crate) struct LocalRanks {
    pub(crate) run: u32,
    running: BTreeMap<i32, u32>,
    pub(crate) reports: Vec<(u32, ReportFile)>,
}

/// What a helper knows about its node.
pub(crate) struct Here {
    pub(crate) node: String,
    pub(crate) job: u64,
    pub(crate) inherited: BTreeMap<String, String>,
    /// Where report files go, without the number of the rank.
    pub(crate) reports: PathBuf,
}

impl LocalRanks {
    /// Starts all; those that cannot be started have ended already.
    pub(crate) fn start(start: &RanksStart, here: &Here) -> (Self, Vec<(u32, End)>) {
        let mut ranks = Self { run: start.run, ..Self::default() };
        let mut ended = Vec::new();
        for rank in &start.ranks {
            let report = report_path(here, *rank);
            ranks.reports.push((*rank, ReportFile::from_now(report.clone())));
            match spawn(start, *rank, here, &report) {
                Ok(pid) => drop(ranks.running.insert(pid, *rank)),
                Err(error) => ended.push((*rank, End::NotStarted(error.to_string()))),
            }
        }
        (ranks, ended)
    }

    /// Ranks that have ended since the last question.
    pub(crate) fn reap(&mut self) -> Vec<(u32, End)> {
        let ended = reap_all();
        ended.into_iter().filter_map(|(pid, end)| Some((self.running.remove(&pid)?, end))).collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        for pid in self.running.keys() {
            let _ = killpg(Pid::from_raw(*pid), signal);
        }
    }

    /// Ends everything: with a request first, then without one.
    pub(crate) fn stop(&mut self, grace: Duration) {
        let deadline = Instant::now() + grace;
        if !self.running.is_empty() {
            self.signal(Signal::SIGTERM);
            // A rank that was stopped must run to hear it.
            self.signal(Signal::SIGCONT);
        }
        while !self.running.is_empty() && Instant::now() < deadline {
            self.reap();
            thread::sleep(LOOK_AGAIN);
        }
        kill_all();
        self.running.clear();
        self.reports.clear();
    }
}

/// Kills everything below this process until nothing is left.
pub(crate) fn kill_all() {
    let own = std::process::id() as i32;
    let deadline = Instant::now() + LAST_PATIENCE;
    while processes::kill_below(own, |_| false) && Instant::now() < deadline {
        reap_all();
        thread::sleep(LOOK_AGAIN);
    }
    reap_all();
}

/// Children that have ended, adopted ones among them.
pub(crate) fn reap_all() -> Vec<(i32, End)> {
    let mut ended = Vec::new();
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => ended.push((pid.as_raw(), End::Code(code))),
            Ok(WaitStatus::Signaled(pid, signal, _)) => {
                ended.push((pid.as_raw(), End::Signal(signal as i32)))
            }
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return ended,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return ended,
        }
    }
}

fn report_path(here: &Here, rank: u32) -> PathBuf {
    let mut name = here.reports.clone().into_os_string();
    name.push(format!("-{rank}"));
    name.into()
}

fn spawn(start: &RanksStart, rank: u32, here: &Here, report: &std::path::Path) -> io::Result<i32> {
    let (program, arguments) = start.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(environment(start, rank, here, report)).process_group(0);
    command.stdin(match &start.input {
        Some(pattern) => File::open(file_name(pattern, start, rank, here)?)?.into(),
        None => Stdio::null(),
    });
    if let Some(pattern) = &start.output {
        let file = append(file_name(pattern, start, rank, here)?)?;
        command.stdout(file.try_clone()?);
        command.stderr(file);
    }
    if let Some(pattern) = &start.error {
        command.stderr(append(file_name(pattern, start, rank, here)?)?);
    }
    // It is reaped with everything else, by its number.
    Ok(command.spawn()?.id() as i32)
}

/// A run that follows a failure continues the files.
fn append(path: String) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn file_name(pattern: &str, start: &RanksStart, rank: u32, here: &Here) -> io::Result<String> {
    let variable = |name: &str| here.inherited.get(name).map_or("", String::as_str);
    let names = FileNames {
        job: here.job,
        array: None,
        name: variable("SLURM_JOB_NAME"),
        user: variable("USER"),
        host: &here.node,
        node: start.node_index,
        task: rank,
        step: "launch",
    };
    names.expand(pattern).map_err(|error| io::Error::other(error.to_string()))
}

/// What the scheduler said about devices stays as it is.
const DEVICES: [&str; 3] = ["CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE"];

fn environment(
    start: &RanksStart,
    rank: u32,
    here: &Here,
    report: &std::path::Path,
) -> BTreeMap<String, String> {
    let variable = |name: &str| here.inherited.get(name).cloned().unwrap_or_default();
    let number = |name: &str| here.inherited.get(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let facts = JobFacts {
        partition: variable("SLURM_JOB_PARTITION"),
        account: variable("SLURM_JOB_ACCOUNT"),
        qos: variable("SLURM_JOB_QOS"),
        submit_directory: here.inherited.get("SLURM_SUBMIT_DIR").cloned(),
        tasks_per_node: start.ranks.len() as u32,
        cpus_per_task: number("SLURM_CPUS_PER_TASK") as u32,
        gpus_per_node: start.peers.first().map_or(0, |peer| peer.gpus),
        started_ms: number("SLURM_JOB_START_TIME").saturating_mul(1000),
        ends_ms: number("SLURM_JOB_END_TIME").saturating_mul(1000),
        restarts: start.restarts,
        ..JobFacts::default()
    };
    let checkpoint = start.checkpoint.as_ref().map(|(step, path)| (*step, path.as_deref()));
    let part = NodePart {
        job: here.job,
        run: start.run,
        job_name: &variable("SLURM_JOB_NAME"),
        user: &variable("USER"),
        node_index: start.node_index,
        peers: &start.peers,
        devices: &[],
        cpus: number("SLURM_CPUS_ON_NODE") as u32,
        ranks: &start.ranks,
        world_size: start.world_size,
        set: &start.set,
        facts: &facts,
        checkpoint,
        survives: false,
        is_newcomer: false,
    };
    let around = Surroundings {
        inherited: here.inherited.clone(),
        report: report.display().to_string(),
        ..Surroundings::default()
    };
    let mut variables = rank_environment::variables(&part, rank, start.master_port, &around);
    variables.remove("BEDPLATE_AGENT");
    add_step(&mut variables, start);
    // What the scheduler says and no gang changes stays.
    for (name, value) in &here.inherited {
        if DEVICES.contains(&name.as_str()) || name.starts_with("SLURM_ARRAY_") {
            variables.insert(name.clone(), value.clone());
        } else {
            variables.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
    variables.retain(|name, _| !DEVICES.contains(&name.as_str()) || here.inherited.contains_key(name));
    variables
}

/// The helper's step has one task; to the ranks the whole gang is a step.
fn add_step(variables: &mut BTreeMap<String, String>, start: &RanksStart) {
    let of_the_gang = [
        ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"),
        ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES"),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
    ];
    for (name, source) in of_the_gang {
        if let Some(value) = variables.get(source).cloned() {
            variables.insert(name.to_owned(), value);
        }
    }
    variables.insert("SLURM_RESTART_COUNT".to_owned(), start.restarts.to_string());
}
