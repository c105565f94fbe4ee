//! Every revision of every pod, looked at as it comes: no pod is bound twice, no node has more pods than room for long,
//! no gang is half alive for long.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bedplate_kubernetes::k8s_openapi::api::core::v1::Pod;
use bedplate_kubernetes::kube::Api;
use bedplate_kubernetes::kube::runtime::watcher::{self, Event};
use bedplate_kubernetes::kube::runtime::{WatchStreamExt, watcher as watch};
use futures_util::StreamExt;

use super::world::{GPUS, connect, label, node_of, phase, stands};

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) revisions: usize,
    pub(crate) bound_twice: Vec<String>,
    /// Since when nodes have more GPUs taken than they have.
    overdrawn: BTreeMap<String, Instant>,
    pub(crate) longest_overdrawn: Duration,
    pub(crate) times_overdrawn: usize,
    /// Since when gangs are half alive.
    in_parts: BTreeMap<String, Instant>,
    pub(crate) longest_in_parts: Duration,
    pods: BTreeMap<String, Pod>,
}

/// How often, and for how long at most, a node had more pods than room.
pub(crate) struct Overdrawn {
    pub(crate) times: usize,
    pub(crate) longest: Duration,
}

#[derive(Clone)]
pub(crate) struct Audit {
    findings: Arc<Mutex<Findings>>,
}

impl Audit {
    /// Watches until the process ends.
    pub(crate) fn start(kubeconfig: PathBuf) -> Self {
        let findings: Arc<Mutex<Findings>> = Arc::default();
        let shared = Arc::clone(&findings);
        std::thread::spawn(move || {
            let connection = connect(&kubeconfig);
            let pods: Api<Pod> = Api::namespaced(connection.client(), "default");
            connection.wait(async move {
                let mut stream = pin!(watch(pods, watcher::Config::default()).default_backoff());
                while let Some(event) = stream.next().await {
                    if let Ok(event) = event {
                        shared.lock().expect("nothing panics under it").take_in(event);
                    }
                }
            });
        });
        Self { findings }
    }

    /// What was found so far, of the overdrawing.
    pub(crate) fn look(&self) -> Overdrawn {
        let findings = self.findings.lock().expect("nothing panics under it");
        Overdrawn { times: findings.times_overdrawn, longest: findings.longest_overdrawn }
    }

    /// What was found since the last time.
    pub(crate) fn found(&self) -> Findings {
        let mut findings = self.findings.lock().expect("nothing panics under it");
        findings.judge();
        let pods = findings.pods.clone();
        let (overdrawn, in_parts) = (findings.overdrawn.clone(), findings.in_parts.clone());
        std::mem::replace(&mut findings, Findings { pods, overdrawn, in_parts, ..Findings::default() })
    }
}

impl Findings {
    fn take_in(&mut self, event: Event<Pod>) {
        match event {
            Event::Apply(pod) | Event::InitApply(pod) => {
                let uid = pod.metadata.uid.clone().unwrap_or_default();
                let before = self.pods.get(&uid).and_then(node_of);
                if std::env::var_os("BEDPLATE_TRACE").is_some() {
                    println!("{}", traced(&pod));
                }
                if before.is_some() && before != node_of(&pod) {
                    self.bound_twice.push(uid.clone());
                }
                self.pods.insert(uid, pod);
            }
            Event::Delete(pod) => drop(self.pods.remove(&pod.metadata.uid.unwrap_or_default())),
            Event::Init => self.pods.clear(),
            Event::InitDone => {}
        }
        self.revisions += 1;
        self.judge();
    }

    fn judge(&mut self) {
        let now = Instant::now();
        let mut taken: BTreeMap<String, i64> = BTreeMap::new();
        let mut gangs: BTreeMap<String, (usize, usize, usize)> = BTreeMap::new();
        for pod in self.pods.values() {
            let has_ended = matches!(phase(pod).as_str(), "Succeeded" | "Failed");
            if let Some(node) = node_of(pod).filter(|_| !has_ended) {
                *taken.entry(node).or_default() += gpus(pod);
            }
            let size = pod.metadata.annotations.as_ref().and_then(|all| all.get("story/size")?.parse().ok());
            let is_ours =
                pod.spec.as_ref().is_some_and(|spec| spec.scheduler_name.as_deref() == Some("bedplate"));
            if let (Some(gang), Some(size), true) = (label(pod, "story/gang"), size, is_ours) {
                let entry = gangs.entry(gang).or_insert((size, 0, 0));
                entry.1 += usize::from(stands(pod));
                entry.2 += usize::from(phase(pod) == "Succeeded");
            }
        }
        let overdrawn = taken.into_iter().filter(|(_, gpus)| *gpus > GPUS).map(|(node, _)| node);
        let (began, longest) = follow(&mut self.overdrawn, overdrawn.collect(), now);
        self.times_overdrawn += began;
        self.longest_overdrawn = self.longest_overdrawn.max(longest);
        let in_parts = gangs
            .into_iter()
            .filter(|(_, (size, standing, ended))| *standing > 0 && standing + ended < *size);
        let (_, longest) = follow(&mut self.in_parts, in_parts.map(|(gang, _)| gang).collect(), now);
        self.longest_in_parts = self.longest_in_parts.max(longest);
    }
}

/// Keeps since when things are so; how many began, and the longest that any has been.
fn follow(since: &mut BTreeMap<String, Instant>, are: Vec<String>, now: Instant) -> (usize, Duration) {
    since.retain(|name, _| are.contains(name));
    let mut began = 0;
    for name in are {
        since.entry(name).or_insert_with(|| {
            began += 1;
            now
        });
    }
    let longest = since.values().map(|at| now.duration_since(*at)).max().unwrap_or_default();
    (began, longest)
}

/// A revision of a pod on a line.
fn traced(pod: &Pod) -> String {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let conditions: Vec<String> =
        conditions.iter().map(|each| format!("{}={}", each.type_, each.status)).collect();
    let leaves = if pod.metadata.deletion_timestamp.is_some() { " leaves" } else { "" };
    let (name, version) = (pod.metadata.name.as_deref(), pod.metadata.resource_version.as_deref());
    format!(
        "{} {}: {}{leaves} on {} {}",
        version.unwrap_or_default(),
        name.unwrap_or_default(),
        phase(pod),
        node_of(pod).unwrap_or_default(),
        conditions.join(" ")
    )
}

fn gpus(pod: &Pod) -> i64 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let amounts = containers
        .filter_map(|each| each.resources.as_ref()?.requests.as_ref()?.get("nvidia.com/gpu").cloned());
    amounts.filter_map(|amount| amount.0.parse::<i64>().ok()).sum()
}
