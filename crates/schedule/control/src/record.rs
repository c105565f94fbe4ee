//! What must be on disk before it is acknowledged, and what comes back from there.
//!
//! The control plane's memory is a function of these records: [`Restored`] holds all that a restarted one needs.
//! Records replace what they are about, so writing one twice does no harm.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use bedplate_diag::Reason;
use bedplate_gangs::{JobId, Time};
use bedplate_job::Job;
pub use bedplate_job::JobState;
use bedplate_report::StepHistory;

use crate::wire::{Checkpoint, RunId};

/// One change. A batch of them is durable as a whole or not at all.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A new job.
    Submitted(JobRow),
    /// What changes about it later.
    Job {
        job: JobId,
        life: Life,
    },
    /// How far an array is whose tasks are recorded in slices, said with each slice: this one and all after it are still to come; nothing once
    /// all are there.
    Arriving {
        array: JobId,
        next: Option<JobId>,
    },
    Run(RunRow),
    Node(NodeRow),
    Share(ShareRow),
    /// Something people may want to know later.
    Note(Note),
}

/// A job as it was submitted, and what became of it.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRow {
    pub id: JobId,
    /// The first job of its array, and its index.
    pub array: Option<ArrayPlace>,
    pub user: String,
    pub name: String,
    pub account: String,
    pub submitted: Time,
    /// Given by the submitter: the same key twice is the same job.
    pub key: Option<String>,
    /// The job in the one format.
    pub text: Arc<str>,
    pub life: Life,
}

impl JobRow {
    /// Whether it says how long a job of its kind takes: it ended after one run that nothing interrupted.
    pub fn is_runtime_sample(&self) -> bool {
        let Life { state, runs, restarts, started_ms, ended_ms, .. } = self.life;
        let ended = [JobState::Succeeded, JobState::Failed, JobState::Cancelled, JobState::TimedOut];
        let ran_once = runs == 1 && restarts == 0 && started_ms.is_some() && ended_ms.is_some();
        ran_once && ended.contains(&state)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrayPlace {
    pub array: JobId,
    pub index: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Life {
    pub state: JobState,
    #[serde(default)]
    pub is_held: bool,
    /// The number of its newest run; none yet when zero.
    #[serde(default)]
    pub runs: u32,
    /// How often it came back after failures and losses; its retries are counted by it.
    #[serde(default)]
    pub restarts: u32,
    pub checkpoint: Option<Checkpoint>,
    /// Milliseconds: when its first run started, when it ended for good.
    pub started_ms: Option<u64>,
    pub ended_ms: Option<u64>,
    /// Of the rank that failed first; 0 when all succeeded.
    pub exit_status: Option<i32>,
    /// Why it is in this state.
    pub reason: Option<Reason>,
    #[serde(skip)]
    pub charges: Charges,
}

/// What is held against a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charges {
    /// Restarts since it last made progress.
    pub restarts: u32,
    /// Its failures that it can have caused itself.
    pub failures: Vec<Charge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    pub node: String,
    /// The name of a kind of fault.
    pub kind: String,
    pub at_ms: u64,
}

impl Charges {
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }
}

/// One run of a job. Its devices do not change; a gang that changes its nodes begins a new run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    pub run: RunId,
    pub phase: RunPhase,
    pub shares: Vec<HeldShare>,
    pub started: Time,
    /// When its ranks were let go.
    pub running: Option<Time>,
    /// When its time is up.
    pub ends: Time,
    /// It was told to stop, and its job to become this: `Waiting` when it shall come back.
    pub stops_as: Option<JobState>,
    pub ended: Option<Time>,
    /// Why it ended.
    pub reason: Option<Reason>,
    pub cpu_ms: u64,
    pub energy_joules: Option<u64>,
    /// What its ranks reported about their training steps; absent when they reported none.
    pub steps: Option<Box<StepHistory>>,
    /// The run in which its ranks first met; itself, unless they went on while nodes came and went.
    pub began: u32,
    /// Where its ranks meet, once they were let go.
    pub master_port: Option<u16>,
}

impl RunRow {
    /// A run that begins now: nothing has happened to it yet.
    pub fn begun(run: RunId, shares: Vec<HeldShare>, now: Time) -> Self {
        Self {
            began: run.number,
            run,
            phase: RunPhase::Preparing,
            shares,
            started: now,
            running: None,
            ends: now,
            stops_as: None,
            ended: None,
            reason: None,
            cpu_ms: 0,
            energy_joules: None,
            steps: None,
            master_port: None,
        }
    }

    pub fn gpus(&self) -> u32 {
        self.shares.iter().map(|share| share.devices.count_ones()).sum()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunPhase {
    /// No rank has been let go. After a restart such a run is called off.
    Preparing,
    /// Ranks may run.
    Running,
    Suspended,
    Ended,
}

/// What a run holds of a node, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldShare {
    pub node: String,
    pub role: u16,
    /// One bit for each device.
    pub devices: u64,
    /// Where it did not begin together with all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined: Option<Joined>,
}

/// How a node takes part in a run that goes on while nodes come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// The number of the run by which its agent knows it.
    pub run: u32,
    pub first_rank: u32,
}

/// What is remembered about a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRow {
    pub name: String,
    /// Takes no work, and why.
    pub drained: Option<Reason>,
    pub address: String,
    pub incarnation: u64,
    /// When it was lost lately: a node that comes and goes is kept out.
    pub losses: Vec<Time>,
    /// Findings until then, by the node's clock, are known to an operator who trusts it all the same.
    pub acknowledged_ms: u64,
    /// When it was taken out of service for a finding.
    pub found_out: Option<Time>,
}

/// GPU time of a user in an account, for fair share.
#[derive(Debug, Clone, PartialEq)]
pub struct ShareRow {
    pub account: String,
    pub user: String,
    pub gpu_ms: u128,
    /// With the half-life, as of `at`.
    pub faded: f64,
    pub at: Time,
}

/// A line in the history of a job or a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub at_ms: u64,
    pub job: Option<u64>,
    pub node: Option<String>,
    pub text: String,
}

/// All that a restarted control plane needs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Restored {
    /// Larger than any number given before.
    pub next_job: u64,
    /// Jobs that have not ended, by number.
    pub jobs: Vec<JobRow>,
    /// Arrays of which not all tasks are recorded.
    pub arriving: Vec<ArrivingRow>,
    /// Of the jobs that have ended, the tasks of arrays of which others have not, and those that live jobs
    /// [await](Self::awaited).
    pub ended: Vec<EndedRow>,
    /// How many have ended.
    pub ended_count: u64,
    /// The newest of those that ended [after a single run](JobRow::is_runtime_sample), in the order in which they did.
    pub runtime_samples: Vec<JobRow>,
    /// The newest run of each job that has not ended, where that run has not ended either.
    pub runs: Vec<RunRow>,
    pub nodes: Vec<NodeRow>,
    pub shares: Vec<ShareRow>,
    /// The latest time in any record: time does not go back.
    pub latest: Time,
}

impl Restored {
    /// Jobs that have ended, or are not there any more, and that live jobs depend on.
    pub fn awaited(&self) -> Vec<JobId> {
        let live: BTreeSet<JobId> = self.jobs.iter().map(|row| row.id).collect();
        let mentions = |row: &&JobRow| row.text.contains("dependencies");
        let jobs =
            self.jobs.iter().filter(mentions).filter_map(|row| Job::from_toml(&row.text, "journal").ok());
        let dependencies = jobs.flat_map(|job| job.policy.dependencies);
        let named = dependencies.flat_map(|dependency| dependency.jobs);
        let awaited: BTreeSet<JobId> = named.filter_map(|name| name.parse().ok().map(JobId)).collect();
        awaited.difference(&live).copied().collect()
    }
}

/// An array of which not all tasks are recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct ArrivingRow {
    /// The first task, whatever became of it.
    pub first: JobRow,
    /// The first that is not there.
    pub next: JobId,
}

/// A job that has ended, in short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedRow {
    pub id: JobId,
    pub state: JobState,
    pub array: Option<ArrayPlace>,
}
