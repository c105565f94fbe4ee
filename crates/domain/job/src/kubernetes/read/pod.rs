//! What surrounds the command of a pod: variables, volumes, resources, and which nodes it may stand on.

use bedplate_topology::Level;
use bedplate_units::{Bytes, Seconds};
use serde_json::Value;

use super::values::{quantity, text, texts, unescaped};
use super::{Pods, Reader, variables};
use crate::kubernetes::render::pod::CONTAINER;
use crate::kubernetes::render::start::OWN;
use crate::kubernetes::{SecretKey, Toleration, Volume, VolumeSource, names};
use crate::notation::TimeLimit;
use crate::{Closeness, Inherited, Job, Preemption};

impl Reader {
    pub(super) fn add_container(
        &mut self,
        job: &mut Job,
        pods: &Pods<'_>,
        container: &Value,
        is_started: bool,
    ) -> Result<(), String> {
        let path =
            format!("{}.spec.containers.{}", pods.path, container["name"].as_str().unwrap_or(CONTAINER));
        self.rest(
            &path,
            container,
            &["name", "image", "command", "args", "workingDir", "env", "resources", "volumeMounts"],
        );
        job.kubernetes.image = text(&container["image"]);
        job.working_directory = text(&container["workingDir"]);
        job.environment.inherited = Inherited::Nothing;
        for variable in variables(container) {
            let name = variable["name"].as_str().unwrap_or_default();
            let from = &variable["valueFrom"]["secretKeyRef"];
            match (variable["value"].as_str(), from["name"].as_str().zip(from["key"].as_str())) {
                (Some(value), _) if is_started && name == "BEDPLATE_PROLOG" && !value.is_empty() => {
                    job.hooks.prolog = vec![unescaped(value)]
                }
                (Some(value), _) if is_started && name == "BEDPLATE_EPILOG" && !value.is_empty() => {
                    job.hooks.epilog = vec![unescaped(value)]
                }
                (Some("1"), _) if name == "BEDPLATE_SURVIVE" => job.policy.survives = true,
                _ if OWN.contains(&name) => {}
                (Some(value), _) => drop(job.environment.set.insert(name.to_owned(), unescaped(value))),
                (None, Some((secret, key))) => match format!("{secret}/{key}").parse::<SecretKey>() {
                    Ok(secret) => drop(job.kubernetes.secret_environment.insert(name.to_owned(), secret)),
                    Err(_) => self.remark(format!("{path}.env.{name}"), "no secret can be called that"),
                },
                (None, None) => {
                    self.remark(format!("{path}.env.{name}"), "only values and secrets are taken over")
                }
            }
        }
        self.add_resources(job, &path, &container["resources"]);
        self.add_volumes(job, pods, container);
        Ok(())
    }

    fn add_resources(&mut self, job: &mut Job, path: &str, resources: &Value) {
        for (name, value) in resources["limits"].as_object().into_iter().flatten() {
            let is_gpu = names::GPU_RESOURCES.contains(&name.as_str());
            if is_gpu && name != names::GPU_RESOURCES[0] {
                job.kubernetes.gpu_resource = Some(name.clone());
            }
            if is_gpu || name == "cpu" || name == "memory" {
                continue;
            }
            match quantity(value).filter(|count| count.fract() == 0.0 && *count <= f64::from(u32::MAX)) {
                Some(whole) => drop(job.kubernetes.resources.insert(name.clone(), whole as u32)),
                None => self.remark(format!("{path}.resources.limits.{name}"), "it is not a whole number"),
            }
        }
    }

    fn add_volumes(&mut self, job: &mut Job, pods: &Pods<'_>, container: &Value) {
        let all = pods.template["spec"]["volumes"].as_array().cloned().unwrap_or_default();
        for mount in container["volumeMounts"].as_array().into_iter().flatten() {
            let name = &mount["name"];
            let found = all.iter().find(|volume| volume["name"] == *name).and_then(volume_source);
            let (Some(source), Some(place)) = (found, text(&mount["mountPath"])) else {
                self.remark(
                    format!("{}.spec.volumes.{}", pods.path, name.as_str().unwrap_or_default()),
                    "a volume of this kind is not taken over",
                );
                continue;
            };
            job.kubernetes.volumes.push(Volume {
                mount: place,
                source,
                sub_path: text(&mount["subPath"]),
                is_read_only: mount["readOnly"] == true,
            });
        }
    }

    pub(super) fn add_pod(&mut self, job: &mut Job, pods: &Pods<'_>) -> Result<(), String> {
        let path = format!("{}.spec", pods.path);
        let pod = &pods.template["spec"];
        self.rest(
            &path,
            pod,
            &[
                "restartPolicy",
                "terminationGracePeriodSeconds",
                "schedulerName",
                "priorityClassName",
                "serviceAccountName",
                "imagePullSecrets",
                "nodeSelector",
                "affinity",
                "topologySpreadConstraints",
                "tolerations",
                "containers",
                "volumes",
                "subdomain",
            ],
        );
        let settings = &mut job.kubernetes;
        settings.scheduler = text(&pod["schedulerName"]);
        settings.priority_class = text(&pod["priorityClassName"]);
        settings.service_account = text(&pod["serviceAccountName"]);
        settings.pull_secrets = pod["imagePullSecrets"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|each| text(&each["name"]))
            .collect();
        settings.node_labels = texts(&pod["nodeSelector"]);
        for toleration in pod["tolerations"].as_array().into_iter().flatten() {
            match text(&toleration["key"]) {
                Some(key) => settings.tolerations.push(Toleration {
                    key,
                    value: text(&toleration["value"]),
                    effect: text(&toleration["effect"]),
                }),
                None => self.remark(format!("{path}.tolerations"), "one without a key is not taken over"),
            }
        }
        if let Some(grace) = pod["terminationGracePeriodSeconds"].as_u64() {
            job.policy.grace = Seconds::new(grace as f64);
        }
        self.add_affinity(job, &path, &pod["affinity"]);
        self.add_annotations(job, pods);
        Ok(())
    }

    fn add_affinity(&mut self, job: &mut Job, path: &str, affinity: &Value) {
        let required = &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        let terms = required["nodeSelectorTerms"].as_array().cloned().unwrap_or_default();
        if terms.len() > 1
            || affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"].is_array()
            || affinity["podAffinity"].is_object()
        {
            self.remark(format!("{path}.affinity"), "only what every node must have is taken over");
        }
        for expression in
            terms.first().and_then(|term| term["matchExpressions"].as_array()).into_iter().flatten()
        {
            let key = expression["key"].as_str().unwrap_or_default();
            let values: Vec<String> =
                expression["values"].as_array().into_iter().flatten().filter_map(text).collect();
            match (expression["operator"].as_str(), key, values.as_slice()) {
                (Some("In"), "kubernetes.io/hostname", _) => job.placement.only_nodes = values,
                (Some("NotIn"), "kubernetes.io/hostname", _) => job.placement.avoid_nodes = values,
                (Some("In"), _, [value]) => job.placement.features.push(format!("{key}={value}")),
                (Some("Exists"), ..) => job.placement.features.push(key.to_owned()),
                _ => self.remark(
                    format!("{path}.affinity.nodeAffinity.{key}"),
                    "such a condition is not taken over",
                ),
            }
        }
        let apart = &affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]["labelSelector"]
            ["matchLabels"];
        if apart[names::MANAGED_BY] == names::SCHEDULER {
            job.gang.roles.iter_mut().for_each(|role| role.is_exclusive = true);
        }
    }

    fn add_annotations(&mut self, job: &mut Job, pods: &Pods<'_>) {
        let annotations = &pods.template["metadata"]["annotations"];
        job.policy.partition = text(&annotations[names::PARTITION]);
        job.policy.qos = text(&annotations[names::QOS]);
        job.policy.account = text(&annotations[names::ACCOUNT]);
        if annotations[names::PREEMPTIBLE] == "false" {
            job.policy.preemption = Preemption::Never;
        }
        job.policy.time_limit = text(&annotations[names::TIME_LIMIT])
            .and_then(|text| text.parse().ok())
            .map(|TimeLimit(limit)| limit);
        let level = |name: &str| annotations[name].as_str().and_then(level_of);
        let ours = annotations[names::CLOSENESS].as_str().and_then(|text| text.parse::<Level>().ok());
        job.placement.closeness = match (
            ours.or_else(|| level(names::KUEUE_REQUIRED_TOPOLOGY)),
            level(names::KUEUE_PREFERRED_TOPOLOGY),
        ) {
            (Some(level), _) => Closeness::Required(level),
            (None, Some(level)) => Closeness::Preferred(level),
            (None, None) => Closeness::Any,
        };
        for name in [names::KUEUE_REQUIRED_TOPOLOGY, names::KUEUE_PREFERRED_TOPOLOGY] {
            if annotations[name].is_string()
                && level(name).is_none()
                && job.placement.closeness == Closeness::Any
            {
                self.remark(
                    format!("{}.metadata.annotations.{name}", pods.path),
                    "the label names no level that is known here",
                );
            }
        }
    }
}

fn volume_source(volume: &Value) -> Option<VolumeSource> {
    let named = |kind: &str, key: &str| text(&volume[kind][key]);
    let memory = || quantity(&volume["emptyDir"]["sizeLimit"]).map(Bytes::new).map(VolumeSource::Memory);
    None.or_else(|| named("persistentVolumeClaim", "claimName").map(VolumeSource::Claim))
        .or_else(|| named("hostPath", "path").map(VolumeSource::HostPath))
        .or_else(|| named("secret", "secretName").map(VolumeSource::Secret))
        .or_else(|| named("configMap", "name").map(VolumeSource::ConfigMap))
        .or_else(|| (volume["emptyDir"]["medium"] == "Memory").then(memory).flatten())
        .or_else(|| volume["emptyDir"].is_object().then_some(VolumeSource::Empty))
}

/// The level that a label of nodes names.
fn level_of(label: &str) -> Option<Level> {
    match label.rsplit('/').next()? {
        "hostname" => Some(Level::Node),
        "gpu.clique" | "accelerator" => Some(Level::Domain),
        "leaf" | "rack" | "topology-rack" | "network-node-layer-3" => Some(Level::LEAF),
        "spine" | "block" | "topology-block" | "network-node-layer-2" => Some(Level::Switch(2)),
        "core" | "network-node-layer-1" => Some(Level::Switch(3)),
        _ => None,
    }
}
