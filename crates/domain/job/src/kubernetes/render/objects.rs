//! What keeps the pods of a gang together: a JobSet, a Job with its service, or an object of Kubeflow.

use bedplate_document::kubernetes::{is_label_key, is_label_value, label_value};
use serde_json::{Map, Value, json};

use super::pod::whole_seconds;
use super::{ManifestKind, PlacedRole, PodGroup, Rendering, refusal};
use crate::JobError;
use crate::kubernetes::names;

type Object = Map<String, Value>;

/// Ended jobs are remembered for a week.
const REMEMBERED_S: u64 = 7 * 86_400;
/// Annotations may have 256 KiB in all.
const LONGEST_JOB_FILE: usize = 200 << 10;

impl<'a> Rendering<'a> {
    pub(super) fn objects(&mut self) -> Result<Vec<Value>, JobError> {
        let mut objects: Vec<Value> = self.pod_group().into_iter().collect();
        match self.options.kind {
            ManifestKind::JobSet => objects.push(self.job_set()?),
            ManifestKind::Job => {
                objects.push(self.service());
                objects.push(self.plain_job()?);
            }
            ManifestKind::PyTorchJob => objects.push(self.pytorch_job()?),
            ManifestKind::TrainJob => objects.push(self.train_job()?),
        }
        Ok(objects)
    }

    fn metadata(&mut self) -> Value {
        let mut metadata = json!({ "name": self.name });
        if let Some(namespace) = self.namespace() {
            metadata["namespace"] = json!(namespace);
        }
        metadata["labels"] = self.labels();
        metadata["annotations"] = self.annotations();
        metadata
    }

    fn namespace(&self) -> Option<&str> {
        self.job.kubernetes.namespace.as_deref().or(self.options.namespace.as_deref())
    }

    fn labels(&mut self) -> Value {
        let (fit, unfit): (Vec<_>, Vec<_>) =
            self.job.labels.iter().partition(|(key, value)| is_label_key(key) && is_label_value(value));
        let mut labels: Object = fit.into_iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        if let Some((key, _)) = unfit.first() {
            self.remark(
                "labels",
                format!("`{key}` cannot be written as a label of Kubernetes; it stays in the job file"),
            );
        }
        labels.insert(names::MANAGED_BY.into(), json!(names::SCHEDULER));
        labels.insert(names::JOB.into(), json!(label_value(&self.job.name)));
        if let Some(queue) = self.queue() {
            labels.insert(names::KUEUE_QUEUE.into(), json!(queue));
        }
        Value::Object(labels)
    }

    fn annotations(&mut self) -> Value {
        let mut annotations: Object =
            self.options.annotations.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        annotations.insert(names::NAME.into(), json!(self.job.name));
        if let Some(account) = &self.job.policy.account {
            annotations.insert(names::ACCOUNT.into(), json!(account));
        }
        if self.job.policy.is_held {
            annotations.insert(names::HELD.into(), json!("true"));
        }
        let file = self.job.to_toml();
        match file.len() <= LONGEST_JOB_FILE {
            true => drop(annotations.insert(names::JOB_FILE.into(), json!(file))),
            false => self.remark("script", "the job file is too long to be kept with the job"),
        }
        Value::Object(annotations)
    }

    fn job_set(&mut self) -> Result<Value, JobError> {
        let mut roles = Vec::new();
        for placed in self.roles.clone() {
            let template = json!({ "spec": self.job_spec(&placed)? });
            roles.push(json!({ "name": placed.name, "replicas": 1, "template": template }));
        }
        Ok(json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": self.metadata(),
            "spec": {
                "suspend": self.job.policy.is_held,
                "ttlSecondsAfterFinished": REMEMBERED_S,
                "network": { "enableDNSHostnames": true, "publishNotReadyAddresses": true },
                "failurePolicy": self.failure_policy(),
                "replicatedJobs": roles,
            }
        }))
    }

    /// The gang starts again as a whole: as often as it may after failures of its own, always after the loss of a pod
    /// that was not its fault, never after its time was up.
    fn failure_policy(&self) -> Value {
        let lost = match self.job.policy.is_requeued {
            true => "RestartJobSetAndIgnoreMaxRestarts",
            false => "FailJobSet",
        };
        json!({
            "maxRestarts": self.job.policy.retries,
            "rules": [
                { "name": "time", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"] },
                { "name": "lost", "action": lost, "onJobFailureReasons": ["PodFailurePolicy"] },
            ]
        })
    }

    fn plain_job(&mut self) -> Result<Value, JobError> {
        let placed = self.first_role()?;
        let mut spec = self.job_spec(&placed)?;
        spec["suspend"] = json!(self.job.policy.is_held);
        spec["ttlSecondsAfterFinished"] = json!(REMEMBERED_S);
        if placed.role.nodes == 1 {
            spec["backoffLimit"] = json!(self.job.policy.retries);
        }
        spec["template"]["spec"]["subdomain"] = json!(self.name);
        Ok(json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": self.metadata(), "spec": spec }))
    }

    /// By its name the pods of a Job find each other.
    fn service(&self) -> Value {
        let mut metadata = json!({ "name": self.name });
        if let Some(namespace) = self.namespace() {
            metadata["namespace"] = json!(namespace);
        }
        metadata["labels"] =
            json!({ names::MANAGED_BY: names::SCHEDULER, names::JOB: label_value(&self.job.name) });
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": true,
                "selector": { names::GANG: self.name },
            }
        })
    }

    /// A Job as Kubernetes has it: a pod for each node of the role, with an index.
    fn job_spec(&mut self, placed: &PlacedRole<'_>) -> Result<Value, JobError> {
        let nodes = placed.role.nodes;
        let mut spec = json!({
            "parallelism": nodes,
            "completions": nodes,
            "completionMode": "Indexed",
            // One pod that fails is the gang's failure.
            "backoffLimit": 0,
        });
        if let Some(limit) = self.job.policy.time_limit {
            spec["activeDeadlineSeconds"] = json!(whole_seconds(limit.get()));
        }
        // Ranks that go on by themselves take in the pod that comes instead, and a gang of one pod has no others.
        let is_alone = self.job.gang.nodes() == 1 && self.options.kind == ManifestKind::Job;
        let goes_on = self.job.policy.is_requeued && (self.job.policy.survives || is_alone);
        let lost = if goes_on { "Ignore" } else { "FailJob" };
        let disrupted = json!([{ "type": "DisruptionTarget", "status": "True" }]);
        spec["podFailurePolicy"] = json!({ "rules": [{ "action": lost, "onPodConditions": disrupted }] });
        spec["template"] = self.template(placed)?;
        Ok(spec)
    }

    /// Of a gang of one role; other gangs were refused.
    fn first_role(&self) -> Result<PlacedRole<'a>, JobError> {
        self.roles.first().cloned().ok_or_else(|| refusal("role", "the gang has no roles"))
    }

    fn pytorch_job(&mut self) -> Result<Value, JobError> {
        let placed = self.first_role()?;
        let template = self.template(&placed)?;
        let mut replicas =
            json!({ "Master": { "replicas": 1, "restartPolicy": "Never", "template": template } });
        if placed.role.nodes > 1 {
            let workers = placed.role.nodes - 1;
            replicas["Worker"] =
                json!({ "replicas": workers, "restartPolicy": "Never", "template": template });
        }
        let mut policy = json!({
            "suspend": self.job.policy.is_held,
            "cleanPodPolicy": "None",
            "ttlSecondsAfterFinished": REMEMBERED_S,
            "backoffLimit": self.job.policy.retries,
        });
        if let Some(limit) = self.job.policy.time_limit {
            policy["activeDeadlineSeconds"] = json!(whole_seconds(limit.get()));
        }
        Ok(json!({
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": self.metadata(),
            "spec": { "runPolicy": policy, "pytorchReplicaSpecs": replicas },
        }))
    }

    /// The trainer has fields for the container and leaves the rest of the pod to its runtime.
    fn train_job(&mut self) -> Result<Value, JobError> {
        let placed = self.first_role()?;
        let pod = self.template(&placed)?;
        let container = &pod["spec"]["containers"][0];
        let trainer = json!({
            "image": container["image"],
            "command": container["command"],
            "env": container["env"],
            "numNodes": placed.role.nodes,
            "resourcesPerNode": container["resources"],
        });
        let kept_by_the_runtime = [
            ("working_directory", self.job.working_directory.is_some()),
            ("kubernetes.volume", !self.job.kubernetes.volumes.is_empty()),
            ("kubernetes.node_labels", !self.job.kubernetes.node_labels.is_empty()),
            ("kubernetes.toleration", !self.job.kubernetes.tolerations.is_empty()),
            ("kubernetes.pull_secrets", !self.job.kubernetes.pull_secrets.is_empty()),
            ("kubernetes.service_account", self.job.kubernetes.service_account.is_some()),
            ("kubernetes.priority_class", self.job.kubernetes.priority_class.is_some()),
            ("kubernetes.scheduler", self.scheduler().is_some()),
            ("time_limit", self.job.policy.time_limit.is_some()),
            ("retries", self.job.policy.retries > 0),
        ];
        for (key, is_given) in kept_by_the_runtime {
            self.remark_if(
                is_given,
                key,
                "a TrainJob leaves it to its runtime; set it in the ClusterTrainingRuntime",
            );
        }
        Ok(json!({
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": self.metadata(),
            "spec": {
                "suspend": self.job.policy.is_held,
                "runtimeRef": { "kind": "ClusterTrainingRuntime", "name": "torch-distributed" },
                "trainer": trainer,
            },
        }))
    }

    fn pod_group(&mut self) -> Option<Value> {
        let group = self.options.pod_group?;
        let (version, kind) = match group {
            PodGroup::Volcano => ("scheduling.volcano.sh/v1beta1", "PodGroup"),
            PodGroup::Kai => ("scheduling.run.ai/v2alpha2", "PodGroup"),
        };
        let mut metadata = json!({ "name": self.name });
        if let Some(namespace) = self.namespace() {
            metadata["namespace"] = json!(namespace);
        }
        let mut spec = json!({ "minMember": self.job.gang.nodes() });
        if let Some(queue) = self.group_queue() {
            spec["queue"] = json!(queue);
        }
        if let Some(class) = &self.job.kubernetes.priority_class {
            spec["priorityClassName"] = json!(class);
        }
        Some(json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec }))
    }
}
