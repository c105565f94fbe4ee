//! What other objects say of pods: how many pods a Job or JobSet has, where a volume can be reached from.

use std::collections::BTreeMap;
use std::time::Duration;

use bedplate_kubernetes::k8s_openapi::api::batch::v1::Job;
use bedplate_kubernetes::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use bedplate_kubernetes::kube::api::{ApiResource, DynamicObject};
use bedplate_kubernetes::kube::core::GroupVersionKind;
use bedplate_kubernetes::kube::{self, Api, Client};
use bedplate_pods::{Pod, Term};

use crate::read::{Lookup, PodReading, terms};

const PATIENCE: Duration = Duration::from_secs(30);

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LookupAnswer {
    /// So many pods; nothing where the pods of a Job come one after the other and each is alone.
    Size(Option<u32>),
    /// The choices of terms that nodes must meet.
    Reach(Vec<Vec<Term>>),
    /// Not yet, or not at all, in words.
    NotYet(String),
}

pub(crate) async fn look_up(client: Client, lookup: Lookup) -> LookupAnswer {
    let found = async {
        match &lookup {
            Lookup::Job { namespace, name } => job(client, namespace, name).await,
            Lookup::JobSet { namespace, name } => job_set(client, namespace, name).await,
            Lookup::Claim { namespace, name } => claim(client, namespace, name).await,
        }
    };
    let Ok(answer) = tokio::time::timeout(PATIENCE, found).await else {
        return LookupAnswer::NotYet(format!("{lookup}, of which the API server says nothing"));
    };
    answer.unwrap_or_else(|error| {
        LookupAnswer::NotYet(format!("{lookup}, which cannot be read: {}", words_of(&error)))
    })
}

/// What the server says, without the rest of its answer.
fn words_of(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

async fn job(client: Client, namespace: &str, name: &str) -> kube::Result<LookupAnswer> {
    let job = Api::<Job>::namespaced(client, namespace).get(name).await?;
    let spec = job.spec.unwrap_or_default();
    Ok(LookupAnswer::Size(at_once(spec.parallelism, spec.completions)))
}

/// The pods that run together; nothing for a Job that works through more completions than it has pods.
fn at_once(parallelism: Option<i32>, completions: Option<i32>) -> Option<u32> {
    let parallelism = u32::try_from(parallelism.unwrap_or(1)).unwrap_or(0);
    let completions = completions.and_then(|count| u32::try_from(count).ok());
    match completions {
        Some(completions) if completions > parallelism => None,
        Some(completions) => Some(completions),
        None => Some(parallelism),
    }
}

async fn job_set(client: Client, namespace: &str, name: &str) -> kube::Result<LookupAnswer> {
    let kind = GroupVersionKind::gvk("jobset.x-k8s.io", "v1alpha2", "JobSet");
    let resource = ApiResource::from_gvk_with_plural(&kind, "jobsets");
    let job_set = Api::<DynamicObject>::namespaced_with(client, namespace, &resource).get(name).await?;
    let jobs = job_set.data["spec"]["replicatedJobs"].as_array().cloned().unwrap_or_default();
    let number = |value: &serde_json::Value| value.as_i64().and_then(|count| i32::try_from(count).ok());
    let pods = |job: &serde_json::Value| {
        let spec = &job["template"]["spec"];
        let replicas = u32::try_from(number(&job["replicas"]).unwrap_or(1)).unwrap_or(0);
        let parallelism = number(&spec["parallelism"]);
        replicas
            * at_once(parallelism, number(&spec["completions"]))
                .unwrap_or(parallelism.unwrap_or(1).max(0) as u32)
    };
    Ok(LookupAnswer::Size(Some(jobs.iter().map(pods).sum())))
}

async fn claim(client: Client, namespace: &str, name: &str) -> kube::Result<LookupAnswer> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let volume =
        claims.get(name).await?.spec.and_then(|spec| spec.volume_name).filter(|name| !name.is_empty());
    let Some(volume) = volume else {
        return Ok(LookupAnswer::NotYet(format!("the volume claim {name}, which is not bound to a volume")));
    };
    let volume = Api::<PersistentVolume>::all(client).get(&volume).await?;
    let required = volume.spec.and_then(|spec| spec.node_affinity).and_then(|affinity| affinity.required);
    Ok(match required.as_ref().map(terms).transpose() {
        Ok(terms) => LookupAnswer::Reach(terms.into_iter().collect()),
        Err(what) => LookupAnswer::NotYet(what),
    })
}

impl PodReading {
    /// Everything that must be looked up.
    pub(crate) fn lookups(&self) -> impl Iterator<Item = &Lookup> {
        self.size.iter().chain(&self.claims)
    }

    /// The pod with what was found. What is not there yet keeps it from starting.
    pub(crate) fn complete(self, answers: &BTreeMap<Lookup, LookupAnswer>) -> Pod {
        let mut pod = self.pod;
        match self.size.as_ref().and_then(|size| answers.get(size)) {
            Some(LookupAnswer::Size(Some(size))) => pod.gang_size = Some(*size),
            Some(LookupAnswer::Size(None)) => {
                (pod.gang, pod.gang_size) = (format!("{}/pod/{}", pod.namespace, pod.name), Some(1));
            }
            _ => {}
        }
        for claim in &self.claims {
            match answers.get(claim) {
                Some(LookupAnswer::Reach(terms)) => pod.constraints.affinity.extend(terms.iter().cloned()),
                Some(LookupAnswer::NotYet(what)) => pod.unsupported = Some(what.clone()),
                _ => pod.unsupported = Some(format!("{claim}, which has not been read yet")),
            }
        }
        pod
    }
}

impl std::fmt::Display for Lookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Lookup::Job { namespace, name } => write!(f, "the Job {namespace}/{name}"),
            Lookup::JobSet { namespace, name } => write!(f, "the JobSet {namespace}/{name}"),
            Lookup::Claim { namespace, name } => write!(f, "the volume claim {namespace}/{name}"),
        }
    }
}
