//! What a driver tells about jobs, nodes and the cluster. Fields that a cluster does not know are absent.

use bedplate_control::JobLine;
pub use bedplate_control::record::Life;
pub use bedplate_control::wire::HostMachine as HostView;
use bedplate_diag::Reason;
use bedplate_diagnose::JobVerdict;
use bedplate_finding::OpenFinding;
use bedplate_report::{Expectation, StepHistory};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{JobId, JobState, NodeId, NodeState};

/// A job that was taken in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submitted {
    pub id: JobId,
    /// What people call it.
    pub label: String,
    /// Jobs of the array; 1 without one.
    #[serde(default = "one")]
    pub count: u32,
    /// It had been submitted before under the same key.
    #[serde(default)]
    pub is_old: bool,
    /// What of it is not honoured here.
    #[serde(default)]
    pub remarks: Vec<Value>,
    /// The jobs themselves; of an array every task.
    #[serde(default)]
    pub jobs: Vec<JobId>,
}

fn one() -> u32 {
    1
}

/// A job in a line.
pub type JobSummary = JobLine<JobId, NodeId>;

/// A job with its history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct JobDetail {
    pub summary: JobSummary,
    /// Every run, oldest first.
    pub runs: Vec<RunView>,
    pub notes: Vec<Note>,
    /// The job file, for those who may see it.
    pub text: Option<String>,
    /// What a step should take, and whose word that is.
    pub expected: Option<Expectation>,
    /// What its newest run that reported steps measured.
    pub steps: Option<StepHistory>,
    /// What slows or stops it, while it runs.
    pub diagnosis: Vec<JobVerdict>,
    /// Of an array every task, the first ones of a very long one; then the rest is told of the first.
    pub tasks: Vec<TaskView>,
}

/// A task of an array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskView {
    pub id: JobId,
    pub label: JobId,
    pub state: JobState,
}

/// One attempt to run a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunView {
    pub number: u32,
    #[serde(default)]
    pub started_ms: Option<u64>,
    #[serde(default)]
    pub ended_ms: Option<u64>,
    /// Why it ended.
    #[serde(default)]
    pub reason: Option<Reason>,
    #[serde(default)]
    pub steps: Option<StepHistory>,
    /// What else its cluster tells.
    #[serde(flatten)]
    pub rest: serde_json::Map<String, Value>,
}

/// A line of history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub at_ms: u64,
    pub job: Option<JobId>,
    pub node: Option<NodeId>,
    pub text: String,
}

impl TryFrom<Value> for JobDetail {
    type Error = serde_json::Error;

    /// Told of one job, `runs` are the runs themselves and not their number.
    fn try_from(mut value: Value) -> Result<Self, Self::Error> {
        fn take<T: Default + serde::de::DeserializeOwned>(
            value: &mut Value,
            key: &str,
        ) -> serde_json::Result<T> {
            match value.get_mut(key).map(Value::take) {
                None | Some(Value::Null) => Ok(T::default()),
                Some(value) => serde_json::from_value(value),
            }
        }
        let runs: Vec<RunView> = match value["runs"].is_array() {
            true => take(&mut value, "runs")?,
            false => Vec::new(),
        };
        if let Some(newest) = runs.iter().map(|run| run.number).max() {
            value["runs"] = newest.into();
        } else if !value["runs"].is_number() {
            value["runs"] = 0.into();
        }
        Ok(Self {
            runs,
            notes: take(&mut value, "notes")?,
            text: take(&mut value, "text")?,
            expected: take(&mut value, "expected")?,
            steps: take(&mut value, "steps")?,
            diagnosis: take(&mut value, "diagnosis")?,
            tasks: take(&mut value, "tasks")?,
            summary: serde_json::from_value(value)?,
        })
    }
}

impl From<JobDetail> for Value {
    fn from(detail: JobDetail) -> Self {
        let mut value = json!(detail.summary);
        value["runs"] = json!(detail.runs);
        value["notes"] = json!(detail.notes);
        value["predicted"] = json!(detail.expected.as_ref().and_then(|expected| expected.breakdown));
        value["expected"] = json!(detail.expected);
        value["steps"] = json!(detail.steps);
        if !detail.diagnosis.is_empty() {
            value["diagnosis"] = json!(detail.diagnosis);
        }
        if !detail.tasks.is_empty() {
            value["tasks"] = json!(detail.tasks);
        }
        if let Some(text) = detail.text {
            value["text"] = text.into();
        }
        value
    }
}

/// Why a job waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    pub wait: Reason,
    #[serde(default)]
    pub priority: Value,
    /// Jobs that wait and have their turn before it.
    #[serde(default)]
    pub ahead: Option<usize>,
    #[serde(default)]
    pub expected_start_ms: Option<u64>,
    /// Changes with which it would start earlier.
    #[serde(default)]
    pub remedies: Vec<Reason>,
    /// Where the nodes are that it might use.
    #[serde(default)]
    pub nodes: Option<NodesExplained>,
}

/// The nodes of a cluster as a waiting job meets them, each counted once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodesExplained {
    pub all: u32,
    pub left_out: u32,
    pub left_out_by: Vec<RuleExplained>,
    pub too_small: u32,
    pub out_of_service: u32,
    /// Some of them.
    pub out: Vec<NodeOut>,
    pub free: u32,
    pub held: u32,
    /// Who holds them, some of these.
    pub holders: Vec<HolderExplained>,
}

/// What a job asks for that leaves nodes out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuleExplained {
    pub by: String,
    pub nodes: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeOut {
    pub name: String,
    pub state: String,
    pub reason: Option<Reason>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HolderExplained {
    pub job: u64,
    pub nodes: u32,
    pub until_ms: u64,
}

/// Where a rank runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankPlace {
    pub rank: u32,
    /// The number of the run by which its node knows it, where nodes may come and go.
    #[serde(default)]
    pub run: Option<u32>,
    pub node: NodeId,
    pub address: String,
    #[serde(default)]
    pub devices: Vec<u32>,
}

/// A node in a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeSummary {
    pub name: NodeId,
    pub state: NodeState,
    /// Why it takes no work.
    pub reason: Option<Reason>,
    pub address: String,
    pub host: HostView,
    pub kind: String,
    pub gpus: u32,
    pub gpus_free: u32,
    pub cpus: u32,
    pub memory_mib: u64,
    pub jobs: Vec<JobId>,
    /// The cluster hears from it.
    pub is_linked: bool,
    pub heard_ms: Option<u64>,
    /// How often it was lost lately.
    #[serde(default)]
    pub losses: usize,
    /// What it found about itself.
    #[serde(default)]
    pub findings: Vec<OpenFinding>,
}

/// A node with its history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeDetail {
    #[serde(flatten)]
    pub summary: NodeSummary,
    #[serde(default)]
    pub notes: Vec<Note>,
}

/// What a cluster is. Fields beyond its name are as the cluster tells them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterView {
    pub name: String,
    #[serde(flatten)]
    pub rest: serde_json::Map<String, Value>,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ClusterEvent {
    Job {
        job: JobId,
        state: JobState,
        at_ms: u64,
    },
    Note(Note),
    /// Nothing: the stream is open. Comes first and now and then, so that a watcher can look for what it missed.
    #[serde(skip)]
    Beat,
    /// Anything else that a newer cluster may tell.
    #[serde(other)]
    Unknown,
}
