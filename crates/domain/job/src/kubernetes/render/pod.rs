//! The pods of a role: resources, volumes, and which nodes they may stand on.

use bedplate_document::kubernetes::{label_value, memory_quantity};
use bedplate_topology::Level;
use serde_json::{Map, Value, json};

use super::{PlacedRole, PodGroup, Rendering};
use crate::kubernetes::{VolumeSource, names};
use crate::notation::written_duration;
use crate::{Closeness, JobError, Preemption, Role};

type Object = Map<String, Value>;

/// The container of every pod; Kubeflow's operator wants this name, the others take any.
pub(in crate::kubernetes) const CONTAINER: &str = "pytorch";

impl Rendering<'_> {
    pub(super) fn template(&mut self, placed: &PlacedRole<'_>) -> Result<Value, JobError> {
        let metadata = json!({ "labels": self.pod_labels(), "annotations": self.pod_annotations() });
        Ok(json!({ "metadata": metadata, "spec": self.pod(placed)? }))
    }

    fn pod(&mut self, placed: &PlacedRole<'_>) -> Result<Value, JobError> {
        let settings = &self.job.kubernetes;
        let mut pod = Object::new();
        let mut put = |key: &str, value: Value| drop(pod.insert(key.to_owned(), value));
        put("restartPolicy", json!("Never"));
        put("terminationGracePeriodSeconds", json!(whole_seconds(self.job.policy.grace.get())));
        if let Some(scheduler) = self.scheduler() {
            put("schedulerName", json!(scheduler));
        }
        if let Some(class) = &settings.priority_class {
            put("priorityClassName", json!(class));
        }
        if let Some(account) = &settings.service_account {
            put("serviceAccountName", json!(account));
        }
        if !settings.pull_secrets.is_empty() {
            let secrets: Vec<Value> =
                settings.pull_secrets.iter().map(|name| json!({ "name": name })).collect();
            put("imagePullSecrets", json!(secrets));
        }
        if !settings.node_labels.is_empty() {
            put("nodeSelector", json!(settings.node_labels));
        }
        let affinity = self.affinity();
        if !affinity.is_empty() {
            put("affinity", Value::Object(affinity));
        }
        if let Some(constraint) = self.spread() {
            put("topologySpreadConstraints", json!([constraint]));
        }
        if !settings.tolerations.is_empty() {
            put("tolerations", self.tolerations());
        }
        put("containers", json!([self.container(placed)?]));
        if !settings.volumes.is_empty() {
            put("volumes", self.volumes());
        }
        Ok(Value::Object(pod))
    }

    fn container(&mut self, placed: &PlacedRole<'_>) -> Result<Value, JobError> {
        let mut container = Object::new();
        let mut put = |key: &str, value: Value| drop(container.insert(key.to_owned(), value));
        put("name", json!(CONTAINER));
        put("image", json!(self.image));
        put("command", json!(self.command(placed)?));
        if let Some(directory) = &self.job.working_directory {
            put("workingDir", json!(directory));
        }
        put("env", json!(self.variables(placed)));
        put("resources", self.resources(placed.role));
        let volumes = &self.job.kubernetes.volumes;
        if !volumes.is_empty() {
            let mounts = volumes.iter().enumerate().map(|(at, volume)| {
                let mut mount = json!({ "name": volume_name(at), "mountPath": volume.mount });
                if let Some(path) = &volume.sub_path {
                    mount["subPath"] = json!(path);
                }
                if volume.is_read_only {
                    mount["readOnly"] = json!(true);
                }
                mount
            });
            put("volumeMounts", json!(mounts.collect::<Vec<Value>>()));
        }
        Ok(Value::Object(container))
    }

    fn volumes(&self) -> Value {
        let volumes = self.job.kubernetes.volumes.iter().enumerate();
        let written = volumes.map(|(at, volume)| {
            let (kind, source) = match &volume.source {
                VolumeSource::Claim(name) => ("persistentVolumeClaim", json!({ "claimName": name })),
                VolumeSource::HostPath(path) => ("hostPath", json!({ "path": path })),
                VolumeSource::Secret(name) => ("secret", json!({ "secretName": name })),
                VolumeSource::ConfigMap(name) => ("configMap", json!({ "name": name })),
                VolumeSource::Empty => ("emptyDir", json!({})),
                VolumeSource::Memory(size) => {
                    ("emptyDir", json!({ "medium": "Memory", "sizeLimit": memory_quantity(*size) }))
                }
            };
            json!({ "name": volume_name(at), kind: source })
        });
        json!(written.collect::<Vec<Value>>())
    }

    /// GPUs and other devices are limits, CPUs a request; memory is both, so that a pod cannot take its neighbours'.
    fn resources(&self, role: &Role) -> Value {
        let cpus = u64::from(role.cpus_per_task) * u64::from(role.tasks_per_node);
        let mut requests = json!({ "cpu": cpus.to_string() });
        let mut limits = json!({});
        if let Some(memory) = role.memory_per_node {
            requests["memory"] = json!(memory_quantity(memory));
            limits["memory"] = json!(memory_quantity(memory));
        }
        if role.gpus_per_node > 0 {
            limits[self.gpu_resource(role)] = json!(role.gpus_per_node.to_string());
        }
        for (name, count) in &self.job.kubernetes.resources {
            limits[name] = json!(count.to_string());
        }
        match limits.as_object().is_some_and(Object::is_empty) {
            true => json!({ "requests": requests }),
            false => json!({ "requests": requests, "limits": limits }),
        }
    }

    fn gpu_resource(&self, role: &Role) -> String {
        let accelerator = role.accelerator.as_deref().unwrap_or_default().to_ascii_lowercase();
        let by_accelerator = || match accelerator.as_str() {
            name if name.starts_with("mi") || name.starts_with("amd") => "amd.com/gpu",
            name if ["trainium", "trn", "inferentia", "inf"]
                .iter()
                .any(|family| name.starts_with(family)) =>
            {
                "aws.amazon.com/neuron"
            }
            _ => names::GPU_RESOURCES[0],
        };
        self.job.kubernetes.gpu_resource.clone().unwrap_or_else(|| by_accelerator().to_owned())
    }

    fn tolerations(&self) -> Value {
        let written = self.job.kubernetes.tolerations.iter().map(|toleration| {
            let mut written = json!({ "key": toleration.key });
            match &toleration.value {
                Some(value) => {
                    written["operator"] = json!("Equal");
                    written["value"] = json!(value);
                }
                None => written["operator"] = json!("Exists"),
            }
            if let Some(effect) = &toleration.effect {
                written["effect"] = json!(effect);
            }
            written
        });
        json!(written.collect::<Vec<Value>>())
    }

    fn affinity(&self) -> Object {
        let mut affinity = Object::new();
        let nodes = self.node_expressions();
        if !nodes.is_empty() {
            let terms = json!({ "nodeSelectorTerms": [{ "matchExpressions": nodes }] });
            affinity.insert(
                "nodeAffinity".into(),
                json!({ "requiredDuringSchedulingIgnoredDuringExecution": terms }),
            );
        }
        if let Some(apart) = self.apart_from() {
            let term = json!({ "labelSelector": apart, "topologyKey": "kubernetes.io/hostname" });
            affinity.insert(
                "podAntiAffinity".into(),
                json!({ "requiredDuringSchedulingIgnoredDuringExecution": [term] }),
            );
        }
        affinity
    }

    fn node_expressions(&self) -> Vec<Value> {
        let placement = &self.job.placement;
        let mut expressions = Vec::new();
        for (operator, nodes) in [("In", &placement.only_nodes), ("NotIn", &placement.avoid_nodes)] {
            if !nodes.is_empty() {
                expressions
                    .push(json!({ "key": "kubernetes.io/hostname", "operator": operator, "values": nodes }));
            }
        }
        expressions.extend(placement.features.iter().map(|feature| match feature.split_once('=') {
            Some((key, value)) => json!({ "key": key, "operator": "In", "values": [value] }),
            None => json!({ "key": feature, "operator": "Exists" }),
        }));
        expressions
    }

    /// A node of a role is a node: pods of a gang do not share one. A role that is exclusive keeps all our pods away.
    /// Kueue places by topology without looking at such rules, so there they would only be in the way; our scheduler is told by
    /// an annotation.
    fn apart_from(&self) -> Option<Value> {
        let is_exclusive = self.job.gang.roles.iter().any(|role| role.is_exclusive);
        let by_kueue = self.queue().is_some() && self.job.placement.closeness != Closeness::Any;
        match (is_exclusive, self.job.gang.nodes() > 1 && !by_kueue && !self.is_for_us()) {
            (true, _) => Some(json!({ "matchLabels": { names::MANAGED_BY: names::SCHEDULER } })),
            (false, true) => Some(json!({ "matchLabels": { names::GANG: self.name } })),
            (false, false) => None,
        }
    }

    fn is_for_us(&self) -> bool {
        self.scheduler() == Some(names::SCHEDULER)
    }

    fn spread(&mut self) -> Option<Value> {
        let level = self.job.placement.spread?;
        let Some(label) = self.level_label(level) else {
            self.remark("placement.spread", format!("no label of nodes is known that names their {level}"));
            return None;
        };
        let ours = json!({ "matchLabels": { names::GANG: self.name } });
        Some(
            json!({ "maxSkew": 1, "topologyKey": label, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": ours }),
        )
    }

    fn level_label(&self, level: Level) -> Option<String> {
        match level {
            Level::Domain => Some("nvidia.com/gpu.clique".to_owned()),
            Level::Node => Some("kubernetes.io/hostname".to_owned()),
            Level::Switch(up) => self.switch_label(up),
            Level::Gpu | Level::Cluster => None,
        }
    }

    fn pod_labels(&self) -> Value {
        let job = label_value(&self.job.name);
        let mut labels =
            json!({ names::MANAGED_BY: names::SCHEDULER, names::JOB: job, names::GANG: self.name });
        if self.options.pod_group == Some(PodGroup::Kai)
            && let Some(queue) = self.group_queue()
        {
            labels["kai.scheduler/queue"] = json!(queue);
        }
        labels
    }

    /// The queue of a pod group.
    pub(super) fn group_queue(&self) -> Option<&str> {
        let own = self.job.kubernetes.queue.as_deref().or(self.options.queue.as_deref());
        own.or(self.job.policy.partition.as_deref())
    }

    fn pod_annotations(&mut self) -> Value {
        let policy = &self.job.policy;
        let preemptible = (policy.preemption == Preemption::Requeue).to_string();
        let mut annotations = json!({
            names::GANG_SIZE: self.job.gang.nodes().to_string(),
            names::PREEMPTIBLE: preemptible,
        });
        let known = [
            (names::TIME_LIMIT, policy.time_limit.map(written_duration)),
            (names::PARTITION, policy.partition.clone()),
            (names::QOS, policy.qos.clone()),
            (names::ACCOUNT, policy.account.clone()),
            (names::USER, self.options.annotations.get(names::USER).cloned()),
            (names::APART, (self.is_for_us() && self.job.gang.nodes() > 1).then(|| "true".to_owned())),
        ];
        for (name, value) in known {
            if let Some(value) = value {
                annotations[name] = json!(value);
            }
        }
        match self.options.pod_group {
            Some(PodGroup::Volcano) => annotations["scheduling.k8s.io/group-name"] = json!(self.name),
            Some(PodGroup::Kai) => annotations["pod-group-name"] = json!(self.name),
            None => {}
        }
        self.add_closeness(&mut annotations);
        annotations
    }

    fn add_closeness(&mut self, annotations: &mut Value) {
        let (kueue, key, level) = match self.job.placement.closeness {
            Closeness::Any => return,
            Closeness::Required(level) => {
                annotations[names::CLOSENESS] = json!(level.to_string());
                (names::KUEUE_REQUIRED_TOPOLOGY, "placement.required", level)
            }
            Closeness::Preferred(level) => (names::KUEUE_PREFERRED_TOPOLOGY, "placement.preferred", level),
        };
        if self.queue().is_none() {
            if self.scheduler() != Some(names::SCHEDULER) {
                self.remark_once(
                    key,
                    "it is for Kueue and for our own scheduler to honour; name a `queue` or the `scheduler`",
                );
            }
            return;
        }
        match self.level_label(level) {
            Some(label) => annotations[kueue] = json!(label),
            None => self.remark_once(key, "Kueue knows no such level"),
        }
    }

    fn remark_once(&mut self, key: &str, text: &str) {
        if !self.remarks.iter().any(|remark| remark.option == key) {
            self.remark(key, text);
        }
    }
}

fn volume_name(at: usize) -> String {
    format!("volume-{at}")
}

/// Whole seconds, at least one.
pub(super) fn whole_seconds(seconds: f64) -> u64 {
    seconds.ceil().max(1.0) as u64
}
