//! Why a job waits, from what the server, its schedulers and Kueue say about it.

use super::server::Kind;
use bedplate_diag::Reason;
use serde_json::{Value, json};

use super::Kubernetes;
use super::record::{Record, gpus_of, milliseconds, text};
use crate::{DriverError, Explained, JobId, JobState, NodeState, Note};

/// What the record alone tells.
pub(super) fn in_short(record: &Record) -> Reason {
    if record.is_held() {
        return Reason::new("held", "it is held until it is released");
    }
    if let Some(said) = unschedulable(record) {
        return Reason::new("resources", format!("the scheduler finds no place for its pods: {said}"));
    }
    match () {
        () if record.is_suspended() && !record.queue().is_empty() => {
            Reason::new("queue", format!("it waits in the queue {} of Kueue", record.queue()))
                .with("queue", record.queue())
        }
        () if record.is_suspended() => Reason::new("suspended", "somebody has suspended it"),
        () if record.going > 0 => {
            Reason::new("going", format!("{} pods of its last run have not ended yet", record.going))
        }
        () if record.pods.is_empty() => Reason::new("no_pods", "its pods have not been made yet"),
        () => Reason::new("not_considered", "the scheduler has not looked at its pods yet"),
    }
}

/// What a scheduler says about the first pod that it found no place for.
fn unschedulable(record: &Record) -> Option<&str> {
    let conditions = record.pods.iter().filter_map(|pod| pod["status"]["conditions"].as_array()).flatten();
    let mut refusals = conditions.filter(|each| each["type"] == "PodScheduled" && each["status"] == "False");
    refusals.find_map(|each| each["message"].as_str())
}

impl Kubernetes {
    pub(super) fn explained(&self, id: &JobId) -> Result<Option<Explained>, DriverError> {
        let record = self.record(id)?;
        if record.state() != JobState::Waiting {
            return Ok(None);
        }
        let mut wait = in_short(&record);
        let mut remedies = Vec::new();
        match wait.code.as_str() {
            "held" => {
                remedies.push(Reason::new("release", format!("`bedplate job release {id}` lets it start")))
            }
            "suspended" => {
                remedies.push(Reason::new("resume", "set `spec.suspend` to false, or ask who suspended it"))
            }
            "queue" => {
                if let Some((_, workload)) = self.workload(&record)? {
                    wait = by_kueue(&workload, record.queue()).unwrap_or(wait);
                }
                remedies.extend(self.fewer_nodes(&record)?);
            }
            "no_pods" => {
                let said = self.events(&record).into_iter().rfind(|note| note.text.starts_with("Warning"));
                if let Some(note) = said {
                    wait = Reason::new("refused_pods", format!("its pods cannot be made: {}", note.text));
                }
            }
            "resources" => remedies.extend(self.fewer_nodes(&record)?),
            _ => {}
        }
        Ok(Some(Explained {
            wait,
            priority: Value::Null,
            ahead: None,
            expected_start_ms: None,
            remedies,
            nodes: None,
        }))
    }

    /// With how many nodes it would fit on what is free now.
    fn fewer_nodes(&self, record: &Record) -> Result<Option<Reason>, DriverError> {
        let gpus = gpus_of(&record.template()["spec"]);
        let nodes = self.node_summaries()?;
        let is_free = |node: &&crate::NodeSummary| {
            matches!(node.state, NodeState::Idle | NodeState::Allocated) && u64::from(node.gpus_free) >= gpus
        };
        let free = nodes.iter().filter(is_free).count() as u64;
        let asked = record.nodes_asked();
        let text = match free {
            0 => format!("no node has {gpus} GPUs free; it starts when others end"),
            free if free < asked => {
                format!("with {free} nodes instead of {asked} it would fit on what is free now")
            }
            _ => return Ok(None),
        };
        Ok(Some(Reason::new(if free == 0 { "wait" } else { "fewer_nodes" }, text).with("nodes", free)))
    }

    /// What was reported about the job and its pods, oldest first. Who may not read events sees none.
    pub(super) fn notes(&self, record: &Record) -> Vec<Note> {
        self.events(record)
    }

    fn events(&self, record: &Record) -> Vec<Note> {
        let jobs = record.jobs.iter().map(|job| &job["metadata"]["uid"]);
        let pods = record.pods.iter().map(|pod| &pod["metadata"]["uid"]);
        let own: Vec<&str> = jobs.chain(pods).chain([&record.object["metadata"]["uid"]]).map(text).collect();
        let events = self.server.list(Kind::Events, record.namespace(), "").unwrap_or_default();
        let about = |event: &&Value| own.contains(&text(&event["involvedObject"]["uid"]));
        let mut notes: Vec<Note> =
            events.iter().filter(about).map(|event| note(event, &record.id())).collect();
        notes.sort_by_key(|note| note.at_ms);
        notes
    }
}

fn note(event: &Value, job: &JobId) -> Note {
    let at =
        ["lastTimestamp", "eventTime", "firstTimestamp"].iter().find_map(|key| milliseconds(&event[*key]));
    let said = format!("{}: {}: {}", text(&event["type"]), text(&event["reason"]), text(&event["message"]));
    Note { at_ms: at.unwrap_or(0), job: Some(job.clone()), node: None, text: said }
}

/// Kueue's state of admission in our words, with Kueue's behind them.
fn by_kueue(workload: &Value, queue: &str) -> Option<Reason> {
    let conditions = workload["status"]["conditions"].as_array()?;
    let find = |kind: &str, status: &str| {
        conditions.iter().find(|each| each["type"] == kind && each["status"] == status)
    };
    let is_inactive = workload["spec"]["active"] == json!(false);
    let (code, begin, condition) = match () {
        () if is_inactive => {
            return Some(Reason::new(
                "inactive",
                format!("its Workload in the queue {queue} of Kueue is not active"),
            ));
        }
        () if find("QuotaReserved", "True").is_some() => {
            ("admission", "Kueue has reserved its quota and waits for checks", find("Admitted", "False")?)
        }
        () => ("quota", "Kueue has no quota for it", find("QuotaReserved", "False")?),
    };
    let said = text(&condition["message"]);
    Some(Reason::new(code, format!("{begin} in the queue {queue}: {said}")).with("queue", queue))
}
