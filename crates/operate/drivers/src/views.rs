//! What a driver tells about a cluster, beside the views of jobs and nodes that the control plane has itself.

use bedplate_control::record::{JobState, Note};
use bedplate_control::{JobView, NodeView};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A job that was taken in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submitted {
    pub id: u64,
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
}

fn one() -> u32 {
    1
}

/// A job with its history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct JobDetail {
    pub view: JobView,
    /// Every run, oldest first.
    pub runs: Vec<Value>,
    pub notes: Vec<Note>,
    /// The job file, for those who may see it.
    pub text: Option<String>,
}

impl TryFrom<Value> for JobDetail {
    type Error = serde_json::Error;

    /// Told of one job, `runs` are the runs themselves and not their number.
    fn try_from(mut value: Value) -> Result<Self, Self::Error> {
        let runs: Vec<Value> = match value["runs"].take() {
            Value::Array(runs) => {
                let newest = runs.iter().filter_map(|run| run["number"].as_u64()).max();
                value["runs"] = newest.unwrap_or(runs.len() as u64).into();
                runs
            }
            number => {
                value["runs"] = number;
                Vec::new()
            }
        };
        let notes = Vec::<Note>::deserialize(value.get("notes").unwrap_or(&Value::Array(Vec::new())))?;
        let text = value.get("text").and_then(Value::as_str).map(str::to_owned);
        Ok(Self { view: serde_json::from_value(value)?, runs, notes, text })
    }
}

impl From<JobDetail> for Value {
    fn from(detail: JobDetail) -> Self {
        let mut value = json!(detail.view);
        value["runs"] = Value::Array(detail.runs);
        value["notes"] = json!(detail.notes);
        if let Some(text) = detail.text {
            value["text"] = text.into();
        }
        value
    }
}

/// Why a job waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    pub wait: String,
    #[serde(default)]
    pub priority: Value,
    /// Gangs that are considered before it.
    #[serde(default)]
    pub ahead: Option<usize>,
    #[serde(default)]
    pub expected_start_ms: Option<u64>,
    /// Changes with which it would start earlier.
    #[serde(default)]
    pub remedies: Vec<String>,
}

/// Where a rank runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankPlace {
    pub rank: u32,
    pub node: String,
    pub address: String,
    #[serde(default)]
    pub devices: Vec<u32>,
}

/// A node with its history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeDetail {
    #[serde(flatten)]
    pub view: NodeView,
    #[serde(default)]
    pub notes: Vec<Note>,
}

/// What a cluster is. Fields beyond its name are as its control plane tells them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterView {
    pub name: String,
    #[serde(flatten)]
    pub rest: serde_json::Map<String, Value>,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Seen {
    Job {
        job: u64,
        state: JobState,
        at_ms: u64,
    },
    Note(Note),
    /// Nothing: the stream is open. Comes first and now and then, so that a watcher can look for what it missed.
    #[serde(skip)]
    Beat,
    /// Anything else that a newer control plane may tell.
    #[serde(other)]
    Unknown,
}

/// What usage is added up by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageBy {
    User,
    Account,
    Day,
    Job,
}

impl UsageBy {
    pub const ALL: [(&'static str, UsageBy); 4] = [
        ("user", UsageBy::User),
        ("account", UsageBy::Account),
        ("day", UsageBy::Day),
        ("job", UsageBy::Job),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, by)| *by == self).map_or("", |(name, _)| name)
    }
}

/// What somebody used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UsageRow {
    /// The user, account, day or job.
    pub key: String,
    pub gpu_hours: f64,
    #[serde(default)]
    pub runs: u64,
    #[serde(default)]
    pub energy_joules: Option<f64>,
}

/// A token that was just made; its text is never shown again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenMade {
    #[serde(default)]
    pub id: Value,
    pub token: String,
}

/// A token without its text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenView {
    pub id: Value,
    pub user: String,
    pub role: String,
    #[serde(default)]
    pub expires_ms: Option<u64>,
    #[serde(flatten)]
    pub rest: serde_json::Map<String, Value>,
}
