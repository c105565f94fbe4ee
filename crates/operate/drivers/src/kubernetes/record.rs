//! A job as the server has it: the JobSet or Job, the Jobs below it, and its pods.

use bedplate_diag::Reason;
use bedplate_job::Job;
use bedplate_kubernetes::names;
use bedplate_units::WrittenTime;
use serde_json::Value;

use crate::{JobId, JobState, JobSummary, Life, NodeId, RankPlace};

/// Everything that is known of one job.
pub(super) struct Record {
    /// The JobSet, or the Job where there is none.
    pub(super) object: Value,
    /// The Jobs of a JobSet.
    pub(super) jobs: Vec<Value>,
    /// In the order of their ranks; those that are going are left out.
    pub(super) pods: Vec<Value>,
    /// Pods that have been told to end and are still there.
    pub(super) going: usize,
}

impl Record {
    pub(super) fn new(object: Value, jobs: Vec<Value>, pods: Vec<Value>) -> Self {
        let all = pods.len();
        let mut pods: Vec<Value> =
            pods.into_iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect();
        let going = all - pods.len();
        let roles = role_names(&object);
        pods.sort_by_key(|pod| {
            let role = label(pod, names::JOBSET_REPLICATED_JOB);
            let place = roles.iter().position(|name| Some(name.as_str()) == role).unwrap_or(0);
            (
                place,
                number(label(pod, names::JOBSET_JOB_INDEX)),
                number(annotation(pod, names::JOB_COMPLETION_INDEX)),
            )
        });
        Self { object, jobs, pods, going }
    }

    pub(super) fn namespace(&self) -> &str {
        text(&self.object["metadata"]["namespace"])
    }

    pub(super) fn name(&self) -> &str {
        text(&self.object["metadata"]["name"])
    }

    pub(super) fn id(&self) -> JobId {
        JobId(format!("{}/{}", self.namespace(), self.name()))
    }

    pub(super) fn is_job_set(&self) -> bool {
        self.object["kind"] == "JobSet"
    }

    pub(super) fn is_held(&self) -> bool {
        annotation(&self.object, names::HELD) == Some("true")
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.object["spec"]["suspend"] == true
    }

    fn cancelled_ms(&self) -> Option<u64> {
        annotation(&self.object, names::CANCELLED)?.parse().ok()
    }

    /// The condition that ended it.
    fn end(&self) -> Option<(&Value, bool)> {
        let conditions = self.object["status"]["conditions"].as_array()?;
        let holds =
            |kind: &str| conditions.iter().find(|each| each["type"] == kind && each["status"] == "True");
        let good = holds("Completed").or_else(|| holds("Complete"));
        good.map(|end| (end, true)).or_else(|| holds("Failed").map(|end| (end, false)))
    }

    /// The reasons for which the Jobs failed.
    fn failures(&self) -> impl Iterator<Item = &str> {
        let own = (!self.is_job_set()).then_some(&self.object);
        let conditions = self.jobs.iter().chain(own).filter_map(|job| job["status"]["conditions"].as_array());
        conditions
            .flatten()
            .filter(|each| each["type"] == "Failed" && each["status"] == "True")
            .map(|each| text(&each["reason"]))
    }

    pub(super) fn state(&self) -> JobState {
        if self.cancelled_ms().is_some() {
            return if self.pods.is_empty() && self.going == 0 {
                JobState::Cancelled
            } else {
                JobState::Stopping
            };
        }
        match self.end() {
            Some((_, true)) => return JobState::Succeeded,
            Some((_, false)) => return self.failed_state(),
            None => {}
        }
        let stands =
            |pod: &&Value| matches!(text(&pod["status"]["phase"]), "Running" | "Succeeded" | "Failed");
        let standing = self.pods.iter().filter(stands).count() as u64;
        let is_bound = |pod: &Value| pod["spec"]["nodeName"].is_string();
        match () {
            () if self.pods.is_empty() => JobState::Waiting,
            () if standing >= self.nodes_asked() => JobState::Running,
            () if standing > 0 || self.pods.iter().any(is_bound) => JobState::Starting,
            () => JobState::Waiting,
        }
    }

    fn failed_state(&self) -> JobState {
        let has = |reason: &str| self.failures().any(|failure| failure == reason);
        match () {
            () if has("DeadlineExceeded") => JobState::TimedOut,
            () if has("PodFailurePolicy") => JobState::NodeLost,
            () => JobState::Failed,
        }
    }

    fn reason(&self) -> Option<Reason> {
        match self.state() {
            JobState::Cancelled | JobState::Stopping => Some(Reason::new("cancelled", "it was cancelled")),
            JobState::Succeeded => None,
            state if state.is_final() => {
                let (condition, _) = self.end()?;
                let code = match state {
                    JobState::TimedOut => "time_limit",
                    JobState::NodeLost => "node_lost",
                    _ => "failed",
                };
                let said = text(&condition["message"]);
                Some(Reason::new(code, if said.is_empty() { "it failed" } else { said }))
            }
            _ => None,
        }
    }

    fn ended_ms(&self) -> Option<u64> {
        let by_condition = || milliseconds(&self.end()?.0["lastTransitionTime"]);
        self.cancelled_ms().or_else(by_condition)
    }

    /// When the last of its pods started.
    fn started_ms(&self) -> Option<u64> {
        let of_pods = self.pods.iter().filter_map(|pod| milliseconds(&pod["status"]["startTime"])).max();
        let own = (!self.is_job_set()).then_some(&self.object);
        let of_jobs =
            || self.jobs.iter().chain(own).filter_map(|job| milliseconds(&job["status"]["startTime"])).max();
        of_pods.or_else(of_jobs)
    }

    fn restarts(&self) -> u32 {
        let by_hand = number(annotation(&self.object, names::REQUEUES));
        let by_itself = self.object["status"]["restarts"].as_u64().unwrap_or(0);
        u32::try_from(by_hand + by_itself).unwrap_or(u32::MAX)
    }

    /// Of the first container that failed.
    fn exit_status(&self) -> Option<i32> {
        if self.state() == JobState::Succeeded {
            return Some(0);
        }
        let ends = self.pods.iter().flat_map(ended_containers);
        let failed = ends.filter(|end| end["exitCode"] != 0);
        let first = failed.min_by_key(|end| milliseconds(&end["finishedAt"]))?;
        first["exitCode"].as_i64().and_then(|code| i32::try_from(code).ok())
    }

    /// The pods of a role and how many of them there should be.
    fn shapes(&self) -> Vec<(&Value, u64)> {
        match self.object["spec"]["replicatedJobs"].as_array() {
            None => vec![(&self.object["spec"]["template"], pods_of(&self.object["spec"]))],
            Some(roles) => {
                let shape = |role: &'_ Value| {
                    role["replicas"].as_u64().unwrap_or(1) * pods_of(&role["template"]["spec"])
                };
                roles.iter().map(|role| (&role["template"]["spec"]["template"], shape(role))).collect()
            }
        }
    }

    pub(super) fn nodes_asked(&self) -> u64 {
        self.shapes().iter().map(|(_, pods)| pods).sum()
    }

    fn gpus_asked(&self) -> u64 {
        self.shapes().iter().map(|(template, pods)| gpus_of(&template["spec"]) * pods).sum()
    }

    pub(super) fn template(&self) -> &Value {
        self.shapes().first().map_or(&Value::Null, |(template, _)| template)
    }

    /// The job file that was kept with it.
    pub(super) fn file(&self) -> Option<&str> {
        annotation(&self.object, names::JOB_FILE)
    }

    pub(super) fn job(&self) -> Option<Job> {
        Job::from_toml(self.file()?, "job").ok()
    }

    pub(super) fn queue(&self) -> &str {
        label(&self.object, names::KUEUE_QUEUE).unwrap_or_default()
    }

    pub(super) fn summary(&self) -> JobSummary {
        let state = self.state();
        let of_pods = |name: &str| annotation(self.template(), name).unwrap_or_default().to_owned();
        let of_job = |name: &str| annotation(&self.object, name).unwrap_or_default().to_owned();
        let own = of_pods(names::PARTITION);
        let is_running = matches!(state, JobState::Running | JobState::Starting | JobState::Stopping);
        let started_ms = self.started_ms().filter(|_| is_running || state.is_final());
        let limit = self.time_limit_s();
        JobSummary {
            id: self.id(),
            label: self.id().0,
            name: annotation(&self.object, names::NAME).unwrap_or(self.name()).to_owned(),
            user: of_job(names::USER),
            account: of_job(names::ACCOUNT),
            partition: if own.is_empty() { self.queue().to_owned() } else { own },
            qos: of_pods(names::QOS),
            submitted_ms: self.submitted_ms(),
            life: Life {
                state,
                is_held: self.is_held() && !state.is_final(),
                runs: self.restarts() + u32::from(started_ms.is_some()),
                restarts: self.restarts(),
                started_ms,
                ended_ms: self.ended_ms().filter(|_| state.is_final()),
                exit_status: self.exit_status(),
                reason: self.reason(),
                ..Life::default()
            },
            nodes_asked: self.nodes_asked(),
            gpus_asked: self.gpus_asked(),
            nodes: if is_running { self.nodes() } else { Vec::new() },
            ends_ms: started_ms
                .filter(|_| state == JobState::Running)
                .and_then(|at| Some(at + limit? * 1000)),
            expected_start_ms: None,
            waits_because: (state == JobState::Waiting).then(|| super::explain::in_short(self)),
            pace: None,
            problem: None,
        }
    }

    fn submitted_ms(&self) -> u64 {
        let ours = annotation(&self.object, names::SUBMITTED).and_then(|text| text.parse().ok());
        ours.or_else(|| milliseconds(&self.object["metadata"]["creationTimestamp"])).unwrap_or(0)
    }

    fn time_limit_s(&self) -> Option<u64> {
        let spec = &self.object["spec"];
        let of_roles =
            spec["replicatedJobs"].as_array().into_iter().flatten().map(|role| &role["template"]["spec"]);
        of_roles.chain([spec]).filter_map(|spec| spec["activeDeadlineSeconds"].as_u64()).min()
    }

    fn nodes(&self) -> Vec<NodeId> {
        let named = self.pods.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str());
        named.map(NodeId::from).collect()
    }

    /// Where its ranks stand, and in which pods.
    pub(super) fn ranks(&self) -> Vec<(RankPlace, &Value)> {
        let mut places = Vec::new();
        for pod in self.pods.iter().filter(|pod| pod["spec"]["nodeName"].is_string()) {
            for _ in 0..tasks_of(pod) {
                let place = RankPlace {
                    rank: places.len() as u32,
                    run: None,
                    node: NodeId::from(text(&pod["spec"]["nodeName"])),
                    address: text(&pod["status"]["podIP"]).to_owned(),
                    devices: Vec::new(),
                };
                places.push((place, pod));
            }
        }
        places
    }
}

/// Ranks of a pod, as its container is told.
fn tasks_of(pod: &Value) -> u32 {
    let variables = pod["spec"]["containers"][0]["env"].as_array();
    let told = variables.into_iter().flatten().find(|each| each["name"] == "LOCAL_WORLD_SIZE");
    told.and_then(|each| each["value"].as_str()?.parse().ok()).unwrap_or(1)
}

fn role_names(object: &Value) -> Vec<String> {
    let roles = object["spec"]["replicatedJobs"].as_array();
    roles.into_iter().flatten().map(|role| text(&role["name"]).to_owned()).collect()
}

fn pods_of(job: &Value) -> u64 {
    job["parallelism"].as_u64().unwrap_or(1)
}

/// The GPUs of a pod.
pub(super) fn gpus_of(pod: &Value) -> u64 {
    let limits = pod["containers"].as_array().into_iter().flatten().map(|each| &each["resources"]["limits"]);
    limits.map(|limits| names::GPU_RESOURCES.iter().map(|name| quantity(&limits[*name])).sum::<u64>()).sum()
}

/// A whole number, which the server writes as a text.
pub(super) fn quantity(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse().ok()).or_else(|| value.as_u64()).unwrap_or(0)
}

fn ended_containers(pod: &Value) -> impl Iterator<Item = &Value> {
    let containers = pod["status"]["containerStatuses"].as_array();
    containers.into_iter().flatten().map(|each| &each["state"]["terminated"]).filter(|end| end.is_object())
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn label<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object["metadata"]["labels"][name].as_str()
}

pub(super) fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][name].as_str()
}

fn number(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Milliseconds since 1970 of a time as the server writes it.
pub(super) fn milliseconds(value: &Value) -> Option<u64> {
    WrittenTime::read(value.as_str()?)?.unix_ms()
}
