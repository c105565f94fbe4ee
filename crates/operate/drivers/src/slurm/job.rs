//! A job as Slurm tells of it, whichever way it was asked and whatever version it is.

use bedplate_diag::Reason;
use bedplate_topology::expand_hostlist;
use serde_json::Value;

use super::note::Note;
use super::reason;
use super::value::{field, moment, number, resource, text, words};
use crate::{JobId, JobState, JobSummary, Life, NodeId};

/// No list of nodes is longer.
const MOST_NODES: usize = 100_000;

/// One job, or one task of an array, or the tasks of an array that have not started.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct JobRecord {
    pub(super) id: u64,
    pub(super) array: Option<Array>,
    pub(super) name: String,
    pub(super) user: String,
    pub(super) account: String,
    pub(super) partition: String,
    pub(super) qos: String,
    pub(super) comment: String,
    /// In Slurm's words: `RUNNING`, with flags such as `COMPLETING` behind.
    pub(super) states: Vec<String>,
    /// Slurm's code for why it waits.
    pub(super) reason: String,
    /// What an administrator or a plugin says about it.
    pub(super) description: String,
    pub(super) submitted_s: Option<u64>,
    /// While it waits, when it should start.
    pub(super) started_s: Option<u64>,
    /// While it runs, when its time is up.
    pub(super) ended_s: Option<u64>,
    pub(super) limit_min: Option<u64>,
    pub(super) priority: Option<u64>,
    pub(super) restarts: u32,
    pub(super) exit: Option<Exit>,
    pub(super) nodes_asked: u64,
    pub(super) gpus_asked: u64,
    /// All it asked for or has, in Slurm's words: `cpu=8,mem=8000M,node=2,gres/gpu=16`.
    pub(super) resources: String,
    pub(super) tasks: u32,
    pub(super) nodes: Vec<String>,
    /// What each node gives it: `gpu:h100:8(IDX:0-7)`.
    pub(super) devices: Vec<String>,
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) directory: String,
    pub(super) dependency: String,
}

/// The place of a record in an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Array {
    pub(super) job: u64,
    pub(super) task: Option<u32>,
    /// Of tasks that wait together: `0-3%2`.
    pub(super) waiting: String,
}

/// How a job's processes ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) code: i32,
    pub(super) signal: i32,
}

impl Exit {
    /// From the number that `wait` gives.
    pub(super) fn from_wait(status: u64) -> Self {
        Self { code: (status >> 8 & 0xff) as i32, signal: (status & 0x7f) as i32 }
    }

    /// From `3:0`.
    pub(super) fn from_pair(text: &str) -> Option<Self> {
        let (code, signal) = text.split_once(':')?;
        Some(Self { code: code.parse().ok()?, signal: signal.parse().ok()? })
    }

    /// As shells count: a signal is 128 and its number.
    pub(super) fn status(self) -> i32 {
        if self.signal > 0 { 128 + self.signal } else { self.code }
    }
}

impl JobRecord {
    /// From an entry of `squeue --json` or of REST's `jobs`; nothing without a number.
    pub(super) fn from_json(job: &Value) -> Option<Self> {
        let id = number(&job["job_id"])?;
        let texts = ["tres_alloc_str", "tres_req_str"].map(|name| text(&job[name]));
        let asked = texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
        let nodes_asked = number(&job["node_count"]).unwrap_or(1);
        let states = words(&job["job_state"]);
        Some(Self {
            id,
            array: Array::from_json(job),
            name: text(&job["name"]),
            user: text(field(job, &["user_name", "user"])),
            account: text(&job["account"]),
            partition: text(&job["partition"]),
            qos: text(&job["qos"]),
            comment: text(&job["comment"]),
            states,
            reason: text(&job["state_reason"]),
            description: text(&job["state_description"]),
            submitted_s: moment(&job["submit_time"]),
            started_s: moment(&job["start_time"]),
            ended_s: moment(&job["end_time"]),
            limit_min: number(&job["time_limit"]),
            priority: number(&job["priority"]),
            restarts: number(&job["restart_cnt"]).unwrap_or(0) as u32,
            exit: exit(&job["exit_code"]),
            nodes_asked,
            gpus_asked: gpus_asked(job, &asked, nodes_asked),
            resources: asked,
            tasks: number(&job["tasks"]).unwrap_or(1).max(1) as u32,
            nodes: node_names(&text(&job["nodes"])),
            devices: job["gres_detail"].as_array().into_iter().flatten().map(text).collect(),
            stdout: text(field(job, &["stdout_expanded", "standard_output"])),
            stderr: text(field(job, &["stderr_expanded", "standard_error"])),
            directory: text(&job["current_working_directory"]),
            dependency: text(&job["dependency"]),
        })
    }

    /// One task of an array, where this record is it or tells of it among others that wait.
    pub(super) fn task(mut self, task: u32) -> Option<Self> {
        let array = self.array.as_mut()?;
        if array.task.is_none() {
            let waiting: bedplate_job::Array = array.waiting.parse().ok()?;
            array.task = waiting.indices().into_iter().find(|index| *index == task);
            array.waiting.clear();
        }
        (array.task == Some(task)).then_some(self)
    }

    /// `12`, or `12_3` in an array.
    pub(super) fn label(&self) -> String {
        match &self.array {
            Some(Array { job, task: Some(task), .. }) => format!("{job}_{task}"),
            Some(Array { job, waiting, .. }) if !waiting.is_empty() => format!("{job}_[{waiting}]"),
            _ => self.id.to_string(),
        }
    }

    /// What the other methods of a driver take.
    pub(super) fn job_id(&self) -> JobId {
        match &self.array {
            Some(Array { job, task: Some(task), .. }) => JobId(format!("{job}_{task}")),
            Some(Array { job, .. }) => JobId(job.to_string()),
            None => JobId(self.id.to_string()),
        }
    }

    pub(super) fn state(&self) -> JobState {
        let base = state_of(&self.states);
        base.unwrap_or(if self.nodes.is_empty() { JobState::Waiting } else { JobState::Running })
    }

    pub(super) fn is_held(&self) -> bool {
        let held = ["JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue"].contains(&self.reason.as_str());
        self.state() == JobState::Waiting && (self.priority == Some(0) || held)
    }

    /// What we wrote into its comment.
    pub(super) fn note(&self) -> Note {
        Note::read(&self.comment)
    }

    /// When it should start, while it waits.
    pub(super) fn expected_start_s(&self) -> Option<u64> {
        self.started_s.filter(|_| self.state() == JobState::Waiting && !self.is_held())
    }

    pub(super) fn summary(&self) -> JobSummary {
        let state = self.state();
        let has_started = state != JobState::Waiting && self.started_s.is_some() && !self.was_never_started();
        let is_final = state.is_final();
        let waits = state == JobState::Waiting;
        let ms = |seconds: Option<u64>| seconds.map(|seconds| seconds.saturating_mul(1000));
        JobSummary {
            id: self.job_id(),
            label: self.label(),
            name: self.name.clone(),
            user: self.user.clone(),
            account: self.account.clone(),
            partition: self.partition.clone(),
            qos: self.qos.clone(),
            submitted_ms: ms(self.submitted_s).unwrap_or(0),
            life: Life {
                state,
                is_held: self.is_held(),
                runs: self.restarts + u32::from(has_started),
                restarts: self.restarts,
                started_ms: ms(self.started_s).filter(|_| has_started),
                ended_ms: ms(self.ended_s).filter(|_| is_final),
                exit_status: self.exit_status(),
                reason: self.why(),
                ..Life::default()
            },
            nodes_asked: self.nodes_asked,
            gpus_asked: self.gpus_asked,
            nodes: match is_final || waits {
                true => Vec::new(),
                false => self.nodes.iter().map(|name| NodeId(name.clone())).collect(),
            },
            ends_ms: ms(self.ended_s).filter(|_| matches!(state, JobState::Running | JobState::Stopping)),
            expected_start_ms: ms(self.expected_start_s()),
            waits_because: waits.then(|| reason::wait(self)),
            pace: None,
            problem: None,
        }
    }

    /// It was cancelled while it waited.
    fn was_never_started(&self) -> bool {
        self.nodes.is_empty() && self.state().is_final()
    }

    fn exit_status(&self) -> Option<i32> {
        let exit = self.exit?;
        match self.state() {
            JobState::Succeeded => Some(exit.status()),
            JobState::Failed | JobState::TimedOut if exit.status() != 0 => Some(exit.status()),
            // A failure with 0 is a version that does not tell; a job that was stopped did not choose its code.
            _ => None,
        }
    }

    /// Why it is in its state, where that says something.
    fn why(&self) -> Option<Reason> {
        let known = self.states.iter().any(|word| state_of(std::slice::from_ref(word)).is_some());
        match known {
            true => reason::ending(self),
            false => {
                let words = self.states.join("+");
                Some(Reason::new("unknown_state", format!("Slurm calls its state {words}")))
            }
        }
    }
}

impl Array {
    fn from_json(job: &Value) -> Option<Self> {
        let array = number(&job["array_job_id"]).filter(|array| *array > 0)?;
        let task = number(&job["array_task_id"]).map(|task| task as u32);
        let waiting = if task.is_some() { String::new() } else { text(&job["array_task_string"]) };
        // In newer versions a job outside arrays has the number 0 of one, or one with neither task nor list.
        (task.is_some() || !waiting.is_empty()).then_some(Self { job: array, task, waiting })
    }
}

/// `n1`, `n2` from `n[1-2]`; a list that cannot be read counts as none.
pub(super) fn node_names(list: &str) -> Vec<String> {
    if list.is_empty() || list == "None assigned" || list == "(null)" {
        return Vec::new();
    }
    expand_hostlist(list).map(|names| names.into_iter().take(MOST_NODES).collect()).unwrap_or_default()
}

/// 0.0.38 has the number of `wait`, later ones an object with both.
fn exit(value: &Value) -> Option<Exit> {
    if value.get("return_code").is_none() {
        return number(value).map(Exit::from_wait);
    }
    let signal = field(&value["signal"], &["id", "signal_id"]);
    Some(Exit {
        code: number(&value["return_code"]).unwrap_or(0) as i32,
        signal: number(signal).unwrap_or(0) as i32,
    })
}

/// The sum over all nodes. While a job waits the sum may be that of one node, and the share of each is right.
fn gpus_asked(job: &Value, asked: &str, nodes: u64) -> u64 {
    let per_node = || {
        let text = text(&job["tres_per_node"]).replace("gres:", "").replace("gres/", "");
        super::value::devices(&text.replace('=', ":")).1 * nodes
    };
    resource(asked, "gres/gpu").unwrap_or(0).max(per_node())
}

/// Our word for Slurm's; nothing for words that we do not know.
fn state_of(words: &[String]) -> Option<JobState> {
    let has = |word: &str| words.iter().any(|known| known == word);
    if has("COMPLETING") || has("STAGE_OUT") || has("SIGNALING") {
        return Some(JobState::Stopping);
    }
    if has("CONFIGURING") || has("POWER_UP_NODE") {
        return Some(JobState::Starting);
    }
    if ["REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"].into_iter().any(has) {
        return Some(JobState::Waiting);
    }
    words.iter().find_map(|word| {
        // `CANCELLED by 1000`
        Some(match word.split(' ').next().unwrap_or_default() {
            "PENDING" => JobState::Waiting,
            "RUNNING" | "RESIZING" => JobState::Running,
            "SUSPENDED" | "STOPPED" => JobState::Suspended,
            "COMPLETED" => JobState::Succeeded,
            "CANCELLED" | "PREEMPTED" | "REVOKED" => JobState::Cancelled,
            "FAILED" | "BOOT_FAIL" | "LAUNCH_FAILED" | "RECONFIG_FAIL" | "OUT_OF_MEMORY" => JobState::Failed,
            "TIMEOUT" | "DEADLINE" => JobState::TimedOut,
            "NODE_FAIL" => JobState::NodeLost,
            _ => return None,
        })
    })
}

#[cfg(test)]
mod tests;
