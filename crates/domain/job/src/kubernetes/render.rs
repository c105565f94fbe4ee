//! A job as manifests of Kubernetes.
//!
//! What Kubernetes has a field for becomes that field. What it has none for is a [`Remark`] under the key of the job file,
//! or, where the job would be another one without it, a refusal. Nothing is dropped in silence. A node of a role is a pod;
//! `start` says what runs in it, `pod` what surrounds it, `objects` what keeps the pods of a gang together.

mod objects;
pub(super) mod pod;
pub(super) mod start;

use std::collections::BTreeMap;

use bedplate_document::kubernetes::object_name;
use serde_json::Value;

use super::names;
use crate::{Begin, Job, JobError, Policy, Preemption, Remark, Role, Workload};

/// What a job becomes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ManifestKind {
    #[default]
    JobSet,
    /// A Job of Kubernetes itself, for gangs of one role.
    Job,
    /// Of Kubeflow's training operator, for gangs of one role.
    PyTorchJob,
    /// Of Kubeflow's trainer, for gangs of one role.
    TrainJob,
}

/// Other schedulers that start gangs whole, and want them described in an object of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodGroup {
    Volcano,
    Kai,
}

/// How a job is written, beyond what it says itself. What the job says wins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RenderOptions {
    pub kind: ManifestKind,
    /// The name of the object; the job's when absent.
    pub name: Option<String>,
    pub namespace: Option<String>,
    pub image: Option<String>,
    pub queue: Option<String>,
    pub scheduler: Option<String>,
    pub pod_group: Option<PodGroup>,
    /// The labels of nodes that name their switches, from the top of the network to the leaf.
    pub switch_labels: Vec<String>,
    /// More annotations of the object.
    pub annotations: BTreeMap<String, String>,
}

/// The objects of a job, the job itself last, and what they do not say.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifests {
    pub objects: Vec<Value>,
    /// What Kubernetes does not do or does otherwise, by the key of the job file.
    pub remarks: Vec<Remark>,
}

/// The labels of NVIDIA Topograph, where nothing else is known of a cluster.
const SWITCH_LABELS: [&str; 3] = [
    "network.topology.nvidia.com/core",
    "network.topology.nvidia.com/spine",
    "network.topology.nvidia.com/leaf",
];
/// Longer names leave no room for what is added for roles and pods, within the 63 letters of a host name.
const LONGEST_NAME: usize = 35;
const LONGEST_ROLE: usize = 16;

/// The manifests of a job. Whether the job can ever run is a question for [`Job::flaws`].
///
/// Inherited variables are the caller's to look up; of those that a job wants none are looked up here.
pub fn render(job: &Job, options: &RenderOptions) -> Result<Manifests, JobError> {
    let mut rendering = Rendering::of(job, options)?;
    rendering.refuse_what_would_be_another_job()?;
    rendering.remark_on_the_rest();
    let objects = rendering.objects()?;
    Ok(Manifests { objects, remarks: rendering.remarks })
}

/// A job on its way to manifests.
struct Rendering<'a> {
    job: &'a Job,
    options: &'a RenderOptions,
    name: String,
    image: String,
    roles: Vec<PlacedRole<'a>>,
    remarks: Vec<Remark>,
}

/// A role among the others.
#[derive(Clone)]
struct PlacedRole<'a> {
    role: &'a Role,
    /// As part of the names of objects.
    name: String,
    first_node: u64,
    first_rank: u64,
}

impl<'a> Rendering<'a> {
    fn of(job: &'a Job, options: &'a RenderOptions) -> Result<Self, JobError> {
        let image = job.kubernetes.image.clone().or_else(|| options.image.clone());
        let image = image.filter(|image| !image.is_empty()).ok_or_else(|| {
            refusal(
                "kubernetes.image",
                "no image is named for its containers; name one there, or for all jobs in the context",
            )
        })?;
        let name = options.name.clone().unwrap_or_else(|| object_name(&job.name, LONGEST_NAME));
        Ok(Self { job, options, name, image, roles: placed_roles(job), remarks: Vec::new() })
    }

    fn remark(&mut self, key: &str, text: impl Into<String>) {
        self.remarks.push(Remark { option: key.to_owned(), line: None, text: text.into() });
    }

    fn remark_if(&mut self, condition: bool, key: &str, text: &str) {
        if condition {
            self.remark(key, text);
        }
    }

    fn scheduler(&self) -> Option<&str> {
        let group = self.options.pod_group.map(|group| match group {
            PodGroup::Volcano => "volcano",
            PodGroup::Kai => "kai-scheduler",
        });
        self.job.kubernetes.scheduler.as_deref().or(self.options.scheduler.as_deref()).or(group)
    }

    /// Kueue's queue. Our own scheduler has partitions of its own, and a pod group names its queue itself.
    fn queue(&self) -> Option<&str> {
        let own = self.job.kubernetes.queue.as_deref().or(self.options.queue.as_deref());
        let is_free = self.scheduler() != Some(names::SCHEDULER) && self.options.pod_group.is_none();
        own.or(self.job.policy.partition.as_deref().filter(|_| is_free))
    }

    /// Ranks of the whole gang. A script is one.
    fn world(&self) -> u64 {
        if matches!(self.job.workload, Workload::Script { .. }) { 1 } else { self.job.gang.tasks() }
    }

    fn switch_label(&self, up: u8) -> Option<String> {
        let given: Vec<&str> = match self.options.switch_labels.is_empty() {
            true => SWITCH_LABELS.to_vec(),
            false => self.options.switch_labels.iter().map(String::as_str).collect(),
        };
        given.iter().rev().nth(usize::from(up.checked_sub(1)?)).map(|label| (*label).to_owned())
    }

    fn refuse_what_would_be_another_job(&self) -> Result<(), JobError> {
        let Policy { begin, dependencies, array, .. } = &self.job.policy;
        if matches!(begin, Some(Begin::At { .. } | Begin::After(_))) {
            return Err(refusal(
                "begin",
                "Kubernetes starts what it is given; submit the job at that time, or hold it",
            ));
        }
        if !dependencies.is_empty() {
            return Err(refusal(
                "dependencies",
                "jobs of Kubernetes do not wait for each other; submit this one when the others have ended",
            ));
        }
        if array.is_some() {
            return Err(refusal("array", "submit a job for each index"));
        }
        if self.job.streams.stdin.is_some() {
            return Err(refusal(
                "stdin",
                "the containers of a job have no standard input; let the command read the file",
            ));
        }
        let roles = &self.job.gang.roles;
        if let Some(role) = roles.iter().find(|role| role.gpu_share.is_some()) {
            return Err(refusal(
                "gpu_share",
                format!(
                    "a pod of role `{}` gets whole GPUs; name the resource of a slice as `kubernetes.gpu_resource` and ask for 1",
                    role.name
                ),
            ));
        }
        if roles.is_empty() {
            return Err(refusal("role", "the gang has no roles"));
        }
        if roles.len() > 1 && self.options.kind != ManifestKind::JobSet {
            return Err(refusal("role", "only a JobSet keeps several roles together"));
        }
        Ok(())
    }

    fn remark_on_the_rest(&mut self) {
        let job = self.job;
        let (policy, usual) = (&job.policy, Policy::default());
        self.remark_if(
            policy.priority != 0,
            "priority",
            "pods have priority classes; name one as `kubernetes.priority_class`",
        );
        self.remark_if(
            policy.nice != 0,
            "nice",
            "pods have priority classes; name one as `kubernetes.priority_class`",
        );
        self.remark_if(
            policy.checkpoint_signal.is_some(),
            "checkpoint_signal",
            "the only signal that pods get is SIGTERM, `grace` before they are killed",
        );
        self.remark_if(
            matches!(policy.preemption, Preemption::Suspend | Preemption::Shrink),
            "preemption",
            "a pod is stopped whole or not at all; the job is not preempted",
        );
        self.remark_if(
            policy.minimum_run_time != usual.minimum_run_time,
            "minimum_run_time",
            "no scheduler of pods has such a rule",
        );
        self.remark_if(
            job.streams.stdout.is_some(),
            "stdout",
            "what the containers write is kept by the cluster; `bedplate job logs` shows it",
        );
        self.remark_if(
            job.streams.stderr.is_some(),
            "stderr",
            "what the containers write is kept by the cluster, errors and output together",
        );
        self.remark_if(job.gang.is_elastic(), "elastic", "the gang has the number of nodes that it asks for");
        self.remark_if(
            job.health.spare_nodes > 0,
            "health.spare_nodes",
            "lost pods start again on what is free; no node is kept for them",
        );
        self.remark_if(
            job.health.stuck_after.is_some(),
            "health.stuck_after",
            "Kubernetes does not watch the progress of ranks",
        );
        self.remark_if(
            job.health.probe.is_some(),
            "health.probe",
            "the site checks its nodes by its own means",
        );
        self.remark_if(
            job.placement.segment.is_some(),
            "placement.segment",
            "pods of a gang have one level to lie in, and no segments",
        );
        let several = job.gang.nodes() > 1;
        self.remark_if(
            self.options.kind == ManifestKind::Job && several && policy.retries > 0,
            "retries",
            "a Job starts single pods again and not the gang; a JobSet does",
        );
    }
}

fn placed_roles(job: &Job) -> Vec<PlacedRole<'_>> {
    let mut placed: Vec<PlacedRole<'_>> = Vec::new();
    let (mut first_node, mut first_rank) = (0, 0);
    for (at, role) in job.gang.roles.iter().enumerate() {
        let mut name = object_name(&role.name, LONGEST_ROLE);
        if placed.iter().any(|other| other.name == name) {
            name = format!("{}-{at}", object_name(&role.name, LONGEST_ROLE - 4));
        }
        placed.push(PlacedRole { role, name, first_node, first_rank });
        first_node += u64::from(role.nodes);
        first_rank += role.tasks();
    }
    placed
}

fn refusal(key: &str, reason: impl Into<String>) -> JobError {
    JobError::NotForKubernetes { key: key.to_owned(), reason: reason.into() }
}
