//! Manifests read as jobs: JobSet, Job and PyTorchJob.
//!
//! What a job can hold is taken over. What it cannot is a [`Remark`] under the path of the field, so that nothing is lost in
//! silence. What `render` writes reads back as the same job; the job file that it keeps in an annotation is not looked at.

use std::collections::BTreeMap;

use bedplate_diag::Source;
use bedplate_topology::Level;
use bedplate_units::{Bytes, Seconds};
use serde_json::{Map, Value};

use super::render::pod::CONTAINER;
use super::render::start::{OWN, START};
use super::{SecretKey, Toleration, Volume, VolumeSource, names};
use crate::notation::TimeLimit;
use crate::{Closeness, Gang, Imported, Inherited, Job, JobError, Preemption, Remark, Role, Workload};

/// No manifest of a job is longer.
const LONGEST: usize = 4 << 20;

impl Job {
    /// Whether a text may be a manifest of Kubernetes, as opposed to a job file or a script.
    pub fn is_manifest(text: &str) -> bool {
        let is_yaml = |line: &str| line.starts_with("apiVersion:") || line.starts_with("kind:");
        let is_json = || text.trim_start().starts_with('{') && text.contains("\"apiVersion\"");
        text.lines().any(is_yaml) || is_json()
    }

    /// Reads a JobSet, a Job or a PyTorchJob, in YAML or JSON; errors speak of it as `name`. Of several documents the first
    /// that is a job counts.
    pub fn from_manifest(text: &str, name: &str) -> Result<Imported, JobError> {
        let source = Source::new(name, text);
        let bad = |reason: String| JobError::Manifest { reason, place: None }.at(source.whole());
        if text.len() > LONGEST {
            return Err(bad(format!("it has {} bytes; it may have {LONGEST}", text.len())));
        }
        let documents = documents(text).map_err(bad)?;
        let is_job = |value: &&Value| matches!(value["kind"].as_str(), Some("JobSet" | "Job" | "PyTorchJob"));
        let Some(object) = documents.iter().find(is_job) else {
            return Err(bad("it has no JobSet, Job or PyTorchJob".to_owned()));
        };
        Reader::default().read(object).map_err(bad)
    }
}

fn documents(text: &str) -> Result<Vec<Value>, String> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map(|value| vec![value]).map_err(|error| error.to_string());
    }
    serde_saphyr::from_multiple::<Value>(text).map_err(|error| error.to_string())
}

#[derive(Default)]
struct Reader {
    remarks: Vec<Remark>,
}

/// The pods of a role.
struct Pods<'a> {
    name: String,
    count: u32,
    /// Where the template lies, for remarks.
    path: String,
    template: &'a Value,
}

impl Reader {
    fn read(mut self, object: &Value) -> Result<Imported, String> {
        let spec = &object["spec"];
        let kind = object["kind"].as_str().unwrap_or_default();
        let pods = match kind {
            "JobSet" => self.pods_of_job_set(spec)?,
            "PyTorchJob" => self.pods_of_pytorch_job(spec)?,
            _ => vec![Pods {
                name: Role::ONLY.to_owned(),
                count: count(&spec["parallelism"], 1)?,
                path: "spec.template".into(),
                template: &spec["template"],
            }],
        };
        let first = pods.first().ok_or("it has no pods")?;
        let container = container(first.template)?;
        let (workload, is_started) = workload(container)?;
        let mut job = Job::new(job_name(object), workload, Gang { roles: Vec::new() });
        for each in &pods {
            self.check_same(first, each);
            job.gang.roles.push(self.role(each)?);
        }
        self.add_container(&mut job, first, container, is_started)?;
        self.add_pod(&mut job, first)?;
        self.add_object(&mut job, object)?;
        match kind {
            "JobSet" => self.add_job_set(&mut job, spec),
            "PyTorchJob" => self.add_pytorch_job(&mut job, spec),
            _ => self.add_job(&mut job, spec),
        }
        Ok(Imported { job, remarks: self.remarks })
    }

    fn remark(&mut self, path: impl Into<String>, text: &str) {
        let path = path.into();
        if !self.remarks.iter().any(|remark| remark.option == path) {
            self.remarks.push(Remark { option: path, line: None, text: text.to_owned() });
        }
    }

    /// Names every field that is not among those that are read.
    fn rest(&mut self, path: &str, value: &Value, read: &[&str]) {
        let keys: Vec<String> = value.as_object().into_iter().flat_map(Map::keys).cloned().collect();
        for key in keys.iter().filter(|key| !read.contains(&key.as_str()) && !value[key.as_str()].is_null()) {
            self.remark(format!("{path}.{key}"), "it is not taken over");
        }
    }

    fn pods_of_job_set<'a>(&mut self, spec: &'a Value) -> Result<Vec<Pods<'a>>, String> {
        let roles = spec["replicatedJobs"].as_array().ok_or("spec.replicatedJobs is missing")?;
        let one = |role: &'a Value| -> Result<Pods<'a>, String> {
            let job = &role["template"]["spec"];
            let name = role["name"].as_str().unwrap_or(Role::ONLY);
            let nodes = count(&role["replicas"], 1)?.checked_mul(count(&job["parallelism"], 1)?);
            Ok(Pods {
                name: name.to_owned(),
                count: nodes.ok_or("it has too many pods")?,
                path: format!("spec.replicatedJobs.{name}.template.spec.template"),
                template: &job["template"],
            })
        };
        self.rest(
            "spec",
            spec,
            &["replicatedJobs", "suspend", "failurePolicy", "network", "ttlSecondsAfterFinished"],
        );
        roles.iter().map(one).collect()
    }

    fn pods_of_pytorch_job<'a>(&mut self, spec: &'a Value) -> Result<Vec<Pods<'a>>, String> {
        let replicas =
            spec["pytorchReplicaSpecs"].as_object().ok_or("spec.pytorchReplicaSpecs is missing")?;
        self.rest("spec", spec, &["pytorchReplicaSpecs", "runPolicy", "nprocPerNode"]);
        let mut total = 0_u32;
        for replica in replicas.values() {
            total = total.checked_add(count(&replica["replicas"], 1)?).ok_or("it has too many pods")?;
        }
        let first =
            replicas.get("Master").or_else(|| replicas.values().next()).ok_or("it has no replicas")?;
        for (name, replica) in replicas {
            if replica["template"] != first["template"] {
                self.remark(
                    format!("spec.pytorchReplicaSpecs.{name}.template"),
                    "all nodes of a role are equal; those of the master count",
                );
            }
        }
        Ok(vec![Pods {
            name: Role::ONLY.to_owned(),
            count: total,
            path: "spec.pytorchReplicaSpecs.Master.template".into(),
            template: &first["template"],
        }])
    }

    /// Roles differ in their resources alone; the command is one.
    fn check_same(&mut self, first: &Pods<'_>, other: &Pods<'_>) {
        let of = |pods: &Pods<'_>| {
            container(pods.template)
                .ok()
                .map(|each| (each["image"].clone(), workload(each).map(|(workload, _)| workload)))
        };
        if of(first) != of(other) {
            self.remark(
                other.path.clone(),
                "all roles of a job run one command in one image; those of the first count",
            );
        }
    }

    fn role(&self, pods: &Pods<'_>) -> Result<Role, String> {
        let container = container(pods.template)?;
        let variable = |name: &str| {
            variables(container).find(|each| each["name"] == name).and_then(|each| each["value"].as_str())
        };
        let tasks: u32 = variable("LOCAL_WORLD_SIZE")
            .and_then(|text| text.parse().ok())
            .filter(|tasks| *tasks > 0)
            .unwrap_or(1);
        let mut role = Role::named(variable("BEDPLATE_ROLE").map_or_else(|| pods.name.clone(), unescaped));
        role.nodes = pods.count;
        role.tasks_per_node = tasks;
        let resources = &container["resources"];
        let either = |name: &str| match &resources["limits"][name] {
            Value::Null => resources["requests"][name].clone(),
            given => given.clone(),
        };
        let cpus = quantity(&resources["requests"]["cpu"])
            .or_else(|| quantity(&resources["limits"]["cpu"]))
            .unwrap_or(1.0);
        role.cpus_per_task = ((cpus / f64::from(tasks)).ceil() as u32).max(1);
        role.memory_per_node = quantity(&either("memory")).map(Bytes::new);
        let gpus = names::GPU_RESOURCES.iter().find_map(|name| quantity(&either(name)));
        role.gpus_per_node = gpus.unwrap_or(0.0) as u32;
        Ok(role)
    }

    fn add_container(
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

    fn add_pod(&mut self, job: &mut Job, pods: &Pods<'_>) -> Result<(), String> {
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

    fn add_object(&mut self, job: &mut Job, object: &Value) -> Result<(), String> {
        let metadata = &object["metadata"];
        job.kubernetes.namespace = text(&metadata["namespace"]);
        if job.policy.account.is_none() {
            job.policy.account = text(&metadata["annotations"][names::ACCOUNT]);
        }
        let queue = text(&metadata["labels"][names::KUEUE_QUEUE]);
        // Where the partition says it already the queue follows from it.
        job.kubernetes.queue = queue.filter(|queue| job.policy.partition.as_ref() != Some(queue));
        let own = [names::MANAGED_BY, names::JOB, names::KUEUE_QUEUE];
        job.labels =
            texts(&metadata["labels"]).into_iter().filter(|(key, _)| !own.contains(&key.as_str())).collect();
        Ok(())
    }

    fn add_job_set(&mut self, job: &mut Job, spec: &Value) {
        job.policy.is_held = spec["suspend"] == true;
        job.policy.retries = spec["failurePolicy"]["maxRestarts"]
            .as_u64()
            .and_then(|number| u32::try_from(number).ok())
            .unwrap_or(0);
        for rule in spec["failurePolicy"]["rules"].as_array().into_iter().flatten() {
            let about = |reason: &str| {
                rule["onJobFailureReasons"]
                    .as_array()
                    .is_some_and(|all| all.iter().any(|each| each == reason))
            };
            match rule["action"].as_str() {
                Some("FailJobSet") if about("PodFailurePolicy") => job.policy.is_requeued = false,
                Some("FailJobSet") if about("DeadlineExceeded") => {}
                Some("RestartJobSetAndIgnoreMaxRestarts") if about("PodFailurePolicy") => {}
                _ => self.remark(
                    "spec.failurePolicy.rules",
                    "a gang starts again after the loss of a node, and as often as `retries` after failures",
                ),
            }
        }
        let jobs = spec["replicatedJobs"].as_array();
        let limits = jobs
            .into_iter()
            .flatten()
            .filter_map(|role| role["template"]["spec"]["activeDeadlineSeconds"].as_u64());
        add_limit(job, limits.min());
    }

    fn add_job(&mut self, job: &mut Job, spec: &Value) {
        self.rest(
            "spec",
            spec,
            &[
                "parallelism",
                "completions",
                "completionMode",
                "backoffLimit",
                "activeDeadlineSeconds",
                "podFailurePolicy",
                "template",
                "suspend",
                "ttlSecondsAfterFinished",
            ],
        );
        if spec["completions"]
            .as_u64()
            .is_some_and(|completions| Some(completions) != spec["parallelism"].as_u64())
        {
            self.remark(
                "spec.completions",
                "all pods of a gang start at once; `parallelism` is their number",
            );
        }
        job.policy.is_held = spec["suspend"] == true;
        job.policy.retries =
            spec["backoffLimit"].as_u64().and_then(|number| u32::try_from(number).ok()).unwrap_or(6);
        let lost = spec["podFailurePolicy"]["rules"][0]["action"].as_str();
        let is_alone = spec["parallelism"].as_u64().unwrap_or(1) == 1;
        job.policy.is_requeued = !(lost == Some("FailJob") && is_alone);
        add_limit(job, spec["activeDeadlineSeconds"].as_u64());
    }

    fn add_pytorch_job(&mut self, job: &mut Job, spec: &Value) {
        let policy = &spec["runPolicy"];
        self.rest(
            "spec.runPolicy",
            policy,
            &[
                "suspend",
                "cleanPodPolicy",
                "ttlSecondsAfterFinished",
                "backoffLimit",
                "activeDeadlineSeconds",
            ],
        );
        job.policy.is_held = policy["suspend"] == true;
        job.policy.retries =
            policy["backoffLimit"].as_u64().and_then(|number| u32::try_from(number).ok()).unwrap_or(0);
        if spec["nprocPerNode"].is_string() {
            self.remark(
                "spec.nprocPerNode",
                "the command is started once on each node, and `torchrun` in it starts the rest",
            );
        }
        add_limit(job, policy["activeDeadlineSeconds"].as_u64());
    }
}

/// The annotation has the limit in full; a field of Kubernetes whole seconds of it.
fn add_limit(job: &mut Job, seconds: Option<u64>) {
    let seconds = seconds.map(|seconds| seconds as f64);
    if job.policy.time_limit.is_none_or(|limit| Some(limit.get().ceil().max(1.0)) != seconds) {
        job.policy.time_limit = seconds.map(Seconds::new);
    }
}

fn job_name(object: &Value) -> String {
    let metadata = &object["metadata"];
    let named = text(&metadata["annotations"][names::NAME]).or_else(|| text(&metadata["name"]));
    named.or_else(|| text(&metadata["generateName"])).unwrap_or_else(|| "job".to_owned())
}

fn container(template: &Value) -> Result<&Value, String> {
    match template["spec"]["containers"].as_array().map(Vec::as_slice) {
        Some([only]) => Ok(only),
        Some([]) | None => Err("a pod has no containers".to_owned()),
        Some(_) => Err("a pod has several containers, and a node of a job runs one command".to_owned()),
    }
}

fn arguments(container: &Value) -> Vec<String> {
    let words = |key: &str| container[key].as_array().cloned().unwrap_or_default();
    let all = words("command").into_iter().chain(words("args"));
    all.filter_map(|word| word.as_str().map(unescaped)).collect()
}

/// What the container runs, and whether our script starts it.
fn workload(container: &Value) -> Result<(Workload, bool), String> {
    let words = arguments(container);
    let is_started = matches!(words.as_slice(), [_, _, script, ..] if script == START);
    let rest: Vec<String> = if is_started { words.into_iter().skip(4).collect() } else { words };
    match rest.is_empty() {
        true => {
            Err("a container names no command; what its image runs by itself is not known here".to_owned())
        }
        false => Ok((Workload::Command { arguments: rest }, is_started)),
    }
}

fn variables(container: &Value) -> impl Iterator<Item = &Value> {
    container["env"].as_array().into_iter().flatten()
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

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn texts(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.as_object().into_iter().flatten();
    pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

fn count(value: &Value, usual: u32) -> Result<u32, String> {
    match value {
        Value::Null => Ok(usual),
        given => given
            .as_u64()
            .and_then(|number| u32::try_from(number).ok())
            .ok_or_else(|| format!("{given} is not a number of pods")),
    }
}

/// No pod has more bytes of anything.
const MOST: f64 = 1e18;

/// `8`, `"8"`, `"500m"`, `"64Gi"`, `"2G"`.
fn quantity(value: &Value) -> Option<f64> {
    const UNITS: [(&str, f64); 13] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
    ];
    if let Some(number) = value.as_f64() {
        return Some(number).filter(|number| (0.0..=MOST).contains(number));
    }
    let text = value.as_str()?;
    let unit = UNITS.iter().find_map(|(letters, unit)| Some((text.strip_suffix(letters)?, *unit)));
    let (digits, unit) = unit.unwrap_or((text, 1.0));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number = digits.parse::<f64>().ok().filter(|_| is_number(digits))?;
    Some(number * unit).filter(|number| *number <= MOST)
}

/// The text that Kubernetes makes of one, apart from variables, which stay.
fn unescaped(text: &str) -> String {
    text.replace("$$", "$")
}
