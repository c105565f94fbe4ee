//! A cluster under Kubernetes.
//!
//! A job becomes a JobSet, or a Job where JobSet is not installed, as `bedplate_job::kubernetes` writes it; its state is read
//! from that object, the Jobs below it and its pods. Held and cancelled jobs are suspended and marked as such: a cancelled one
//! stays for a week as its own record, like one that has ended. Nothing is kept anywhere else, so that `kubectl` shows
//! everything, and what it changes is seen here. Nothing needs more rights than docs/kubernetes.md lists.

mod explain;
mod logs;
mod node;
mod order;
mod record;
mod server;
mod submit;
mod watch;

use bedplate_diag::Reason;
use bedplate_document::kubernetes::is_object_name;
use bedplate_job::Job;
use bedplate_job::kubernetes::ManifestKind;
use bedplate_kubernetes::{KubernetesPlace, names};
use bedplate_report::Expectation;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::sync::{Mutex, OnceLock};

use crate::{
    Capability, ClusterView, Driver, DriverError, Explained, JobDetail, JobId, JobOrder, JobQuery,
    JobSummary, LogQuery, NodeDetail, NodeId, NodeSummary, RankPlace, See, Submitted, Watched,
};
use record::{Record, label, text};
use server::{Kind, Server};

const CAPABILITIES: [Capability; 7] = Capability::ALL;

/// Where a cluster is, and what its jobs have in common.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubernetesSite {
    pub place: KubernetesPlace,
    /// The image of jobs that name none.
    pub image: Option<String>,
    /// The scheduler of jobs that name none.
    pub scheduler: Option<String>,
    /// Jobs of Kubernetes itself even where JobSet is installed.
    pub has_plain_jobs: bool,
}

/// A Kubernetes cluster. All calls block, none for longer than an answer may take.
pub struct Kubernetes {
    server: Server,
    site: KubernetesSite,
    kind: OnceLock<ManifestKind>,
    user: OnceLock<String>,
    remarks: Mutex<Vec<String>>,
}

impl Kubernetes {
    /// Reads the kubeconfig and asks nothing yet.
    pub fn new(site: &KubernetesSite) -> Result<Self, DriverError> {
        Ok(Self {
            server: Server::open(&site.place)?,
            site: site.clone(),
            kind: OnceLock::new(),
            user: OnceLock::new(),
            remarks: Mutex::default(),
        })
    }

    /// The version of the server: it answers and knows who we are.
    pub fn version(&self) -> Result<String, DriverError> {
        let version = self.server.find("/version")?.unwrap_or_default();
        Ok(text(&version["gitVersion"]).to_owned())
    }

    /// What jobs become here.
    pub fn manifest_kind(&self) -> Result<ManifestKind, DriverError> {
        if let Some(kind) = self.kind.get() {
            return Ok(*kind);
        }
        let kind = match self.site.has_plain_jobs || !self.has_group("jobset.x-k8s.io")? {
            true => ManifestKind::Job,
            false => ManifestKind::JobSet,
        };
        Ok(*self.kind.get_or_init(|| kind))
    }

    fn has_group(&self, group: &str) -> Result<bool, DriverError> {
        Ok(self.server.find(&format!("/apis/{group}"))?.is_some())
    }

    fn user(&self) -> Result<&str, DriverError> {
        if let Some(user) = self.user.get() {
            return Ok(user);
        }
        let user = self.server.user()?;
        Ok(self.user.get_or_init(|| user))
    }

    fn namespace(&self) -> &str {
        self.server.connection.namespace()
    }

    fn remark(&self, text: String) {
        let mut remarks = self.remarks.lock().expect("no panic while it is held");
        if !remarks.contains(&text) {
            remarks.push(text);
        }
    }

    /// Namespace and name of an id; a name alone is one of our own namespace.
    fn split<'a>(&'a self, id: &'a JobId) -> Result<(&'a str, &'a str), DriverError> {
        let (namespace, name) = id.as_str().split_once('/').unwrap_or((self.namespace(), id.as_str()));
        match is_object_name(namespace) && is_object_name(name) {
            true => Ok((namespace, name)),
            false => Err(no_such_job(id)),
        }
    }

    fn record(&self, id: &JobId) -> Result<Record, DriverError> {
        let (namespace, name) = self.split(id)?;
        let job_set = match self.manifest_kind()? {
            ManifestKind::JobSet => self.server.get(Kind::JobSets, namespace, name)?,
            _ => None,
        };
        if let Some(mut object) = job_set {
            object["kind"] = json!("JobSet");
            let below = format!("{}={name}", names::JOBSET_NAME);
            let jobs = self.server.list(Kind::Jobs, namespace, &below)?;
            let pods = self.server.list(Kind::Pods, namespace, &below)?;
            return Ok(Record::new(object, jobs, pods));
        }
        let mut object = self.server.get(Kind::Jobs, namespace, name)?.ok_or_else(|| no_such_job(id))?;
        object["kind"] = json!("Job");
        let pods = self.server.list(Kind::Pods, namespace, &format!("{}={name}", names::JOB_NAME))?;
        Ok(Record::new(object, Vec::new(), pods))
    }

    /// All jobs of our namespace: every JobSet, and those Jobs that we made.
    fn records(&self) -> Result<Vec<Record>, DriverError> {
        let namespace = self.namespace();
        let ours = format!("{}={}", names::MANAGED_BY, names::SCHEDULER);
        let (mut job_sets, mut children) = (Vec::new(), Vec::new());
        if self.manifest_kind()? == ManifestKind::JobSet {
            job_sets = self.server.list(Kind::JobSets, namespace, "")?;
            children = self.server.list(Kind::Jobs, namespace, names::JOBSET_NAME)?;
        }
        let jobs = self.server.list(Kind::Jobs, namespace, &ours)?;
        let pods = self.server.list(Kind::Pods, namespace, "")?;
        let named = |objects: &[Value], key: &str, name: &str| -> Vec<Value> {
            objects.iter().filter(|each| label(each, key) == Some(name)).cloned().collect()
        };
        let job_sets = job_sets.into_iter().map(|mut object| {
            object["kind"] = json!("JobSet");
            let name = text(&object["metadata"]["name"]).to_owned();
            let children = named(&children, names::JOBSET_NAME, &name);
            Record::new(object, children, named(&pods, names::JOBSET_NAME, &name))
        });
        let jobs =
            jobs.into_iter().filter(|job| label(job, names::JOBSET_NAME).is_none()).map(|mut object| {
                object["kind"] = json!("Job");
                let name = text(&object["metadata"]["name"]).to_owned();
                Record::new(object, Vec::new(), named(&pods, names::JOB_NAME, &name))
            });
        Ok(job_sets.chain(jobs).collect())
    }
}

impl Driver for Kubernetes {
    fn name(&self) -> String {
        format!("Kubernetes at {}", self.server.connection.server())
    }

    fn capabilities(&self) -> &[Capability] {
        &CAPABILITIES
    }

    fn remarks(&self) -> Vec<String> {
        std::mem::take(&mut *self.remarks.lock().expect("no panic while it is held"))
    }

    fn runs_containers(&self) -> bool {
        true
    }

    fn submit(&self, job: &Job, key: &str) -> Result<Submitted, DriverError> {
        self.submit_with_key(job, key)
    }

    fn jobs(&self, query: &JobQuery) -> Result<Vec<JobSummary>, DriverError> {
        let records = self.records()?;
        let mut jobs: Vec<JobSummary> =
            records.iter().map(Record::summary).filter(|job| query.takes(job)).collect();
        jobs.sort_by(|left, right| (left.submitted_ms, &left.id).cmp(&(right.submitted_ms, &right.id)));
        if query.with_ended {
            jobs.reverse();
        }
        jobs.truncate(query.limit.unwrap_or(usize::MAX));
        Ok(jobs)
    }

    fn job(&self, id: &JobId) -> Result<JobDetail, DriverError> {
        let record = self.record(id)?;
        let steps = self.steps(&record);
        Ok(JobDetail {
            summary: record.summary(),
            runs: Vec::new(),
            notes: self.notes(&record),
            text: record.file().map(str::to_owned),
            expected: Expectation::of(record.job().and_then(|job| job.expected).as_ref(), steps.as_ref()),
            steps,
            tasks: Vec::new(),
            diagnosis: Vec::new(),
        })
    }

    fn order(&self, id: &JobId, order: JobOrder) -> Result<(), DriverError> {
        self.carry_out(id, order)
    }

    fn nodes(&self) -> Result<Vec<NodeSummary>, DriverError> {
        self.node_summaries()
    }

    fn node(&self, id: &NodeId) -> Result<NodeDetail, DriverError> {
        Ok(NodeDetail { summary: self.node_summary(id)?, notes: Vec::new() })
    }

    fn cluster(&self) -> Result<ClusterView, DriverError> {
        let nodes = self.server.list(Kind::Nodes, "", "")?;
        let mut rest = Map::new();
        rest.insert("kind".into(), json!("kubernetes"));
        rest.insert("version".into(), json!(self.version()?));
        rest.insert("namespace".into(), json!(self.namespace()));
        rest.insert("nodes".into(), json!(nodes.len()));
        rest.insert("gpus".into(), json!(nodes.iter().map(node::gpus).sum::<u64>()));
        let kind = if self.manifest_kind()? == ManifestKind::JobSet { "jobset" } else { "job" };
        rest.insert("jobs_become".into(), json!(kind));
        rest.insert("partitions".into(), json!(self.queues()?));
        Ok(ClusterView { name: self.server.connection.server().to_owned(), rest })
    }

    fn explain(&self, id: &JobId) -> Result<Option<Explained>, DriverError> {
        self.explained(id)
    }

    fn watch(&self, watched: &Watched, see: See<'_>) -> Result<(), DriverError> {
        self.watch_objects(watched, see)
    }

    fn logs(&self, id: &JobId, query: &LogQuery, to: &mut dyn Write) -> Result<u64, DriverError> {
        self.copy_log(&self.record(id)?, query, to)
    }

    fn ranks(&self, id: &JobId) -> Result<Vec<RankPlace>, DriverError> {
        Ok(self.record(id)?.ranks().into_iter().map(|(place, _)| place).collect())
    }

    fn drain(&self, node: &NodeId, reason: &str) -> Result<(), DriverError> {
        let marked = json!({ "annotations": { names::DRAIN_REASON: reason } });
        self.change_node(node, &json!({ "metadata": marked, "spec": { "unschedulable": true } }))
    }

    fn resume(&self, node: &NodeId) -> Result<(), DriverError> {
        self.put_back_node(node)
    }
}

fn refused(code: &str, message: String) -> DriverError {
    let reason = Some(Reason::new(code, message.clone()));
    DriverError::Refused { code: format!("kubernetes/{code}"), message, help: None, reason }
}

fn no_such_job(id: &JobId) -> DriverError {
    refused("no_such_job", format!("there is no job {id}"))
}
