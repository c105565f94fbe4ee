//! Manifests read as jobs: JobSet, Job and PyTorchJob.
//!
//! What a job can hold is taken over. What it cannot is a [`Remark`] under the path of the field, so that nothing is lost in
//! silence. What `render` writes reads back as the same job; the job file that it keeps in an annotation is not looked at.

mod object;
mod pod;
mod values;

use bedplate_diag::Source;
use bedplate_units::Bytes;
use serde_json::{Map, Value};

use super::names;
use super::render::start::START;
use crate::{Gang, Imported, Job, JobError, Remark, Role, Workload};
use values::{count, quantity, text, unescaped};

/// No manifest of a job is longer.
const LONGEST: usize = 4 << 20;

impl Job {
    /// Whether a text may be a manifest of Kubernetes, as opposed to a job file or a script.
    pub fn is_manifest(text: &str) -> bool {
        // The first line that says something has a colon behind its key; that of a job file has an equals sign or a bracket.
        let says_something = |line: &&str| !line.is_empty() && !line.starts_with(['#', '-', '%']);
        let is_key = |line: &str| {
            line.split_once(':').is_some_and(|(key, _)| key.bytes().all(|byte| byte.is_ascii_alphabetic()))
        };
        let is_json = || text.trim_start().starts_with('{') && text.contains("\"apiVersion\"");
        text.lines().map(str::trim_end).find(says_something).is_some_and(is_key) || is_json()
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
