//! How fast gangs of pods are bound on a real API server: by this scheduler, by kube-scheduler without and with its alpha of gang
//! scheduling, and by Kueue with kube-scheduler, one after the other; and how long a large gang waits behind small ones that never
//! stop coming (Kueue's issue 8309).
//!
//! ```text
//! cargo run --release -p bedplate-binder --example bench -- [NODES] [PODS] [PODS OF A GANG]
//! ```
//!
//! With 0 pods only the second question is asked.
//!
//! The time runs from the first object that is made to the last pod that is bound; objects are made by many requests at once, and the
//! API server and everything else shares the machine. kube-scheduler binds single pods: without its alpha it has no gangs to
//! keep whole. Kueue's gangs are Jobs, so ours are measured as Jobs a second time.

use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bedplate_binder::{BinderOptions, StopHandle};
use bedplate_kubernetes::k8s_openapi::api::batch::v1::Job;
use bedplate_kubernetes::k8s_openapi::api::core::v1::Pod;
use bedplate_kubernetes::kube::Api;
use bedplate_kubernetes::kube::api::{DeleteParams, ListParams, PostParams};
use bedplate_kubernetes::{ApiConnection, KubernetesPlace};
use bedplate_peers::{Kubernetes, KubernetesShape};
use futures_util::StreamExt;
use futures_util::stream::iter;
use serde_json::{Value, json};

/// Requests under way at once.
const AT_ONCE: usize = 32;
/// How long anybody may take for everything.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long the large gang may wait, and for how long small ones run.
const LARGE_WAITS: Duration = Duration::from_secs(90);
const SMALL_RUN: [&str; 4] = ["3s", "4s", "5s", "6s"];

fn main() -> Result<(), String> {
    let mut numbers = std::env::args()
        .skip(1)
        .map(|text| text.parse::<u32>().map_err(|_| format!("`{text}` is no number")));
    let mut next = |default: u32| numbers.next().unwrap_or(Ok(default));
    let load = Load { nodes: next(1000)?, pods: next(5000)?, gang: next(8)? };
    let shape = KubernetesShape { nodes: load.nodes, kueue: true, ..KubernetesShape::default() };
    if let Some(why) = shape.missing() {
        say(&format!("SKIPPED: {why}"));
        return Ok(());
    }
    if load.pods > 0 {
        compare_speed(&load, &shape)?;
    }
    compare_patience()
}

/// How many pods are bound in a second.
fn compare_speed(load: &Load, shape: &KubernetesShape) -> Result<(), String> {
    say(&format!(
        "{} nodes of 8 GPUs, {} pods of 1 GPU in gangs of {}, {} processors",
        load.nodes,
        load.pods,
        load.gang,
        std::thread::available_parallelism().map_or(0, usize::from)
    ));
    let plain = Bench::start(shape)?;
    let ours = plain.with_ours(|| plain.pods(load, "bedplate"))?;
    let rows = [("kube-scheduler, no gangs", plain.pods(load, "default-scheduler")?)];
    report(&ours, "bedplate", &rows);
    let ours = plain.with_ours(|| plain.jobs(load, "bedplate", None))?;
    plain.kubernetes.apply(&queues(load.nodes * 8));
    let rows = [("Kueue", plain.jobs(load, "default-scheduler", Some("all"))?)];
    report(&ours, "bedplate, gangs as Jobs", &rows);
    drop(plain);
    let alpha = Bench::start(&KubernetesShape { kueue: false, gangs: true, ..shape.clone() })?;
    let ours = alpha.with_ours(|| alpha.pods(load, "bedplate"))?;
    alpha.kubernetes.apply(&groups(load));
    let rows = [("kube-scheduler, gangs (alpha)", alpha.grouped_pods(load)?)];
    report(&ours, "bedplate", &rows);
    Ok(())
}

/// How long a large gang waits.
fn compare_patience() -> Result<(), String> {
    let small = Bench::start(&KubernetesShape { nodes: 8, kueue: true, ..KubernetesShape::default() })?;
    say("a gang of 8 nodes behind gangs of one node that run 3 to 6 s and never stop coming, on 8 nodes");
    let ours = small.with_ours(|| small.large_behind_small("bedplate", None))?;
    small.kubernetes.apply(&queues(64));
    let theirs = small.large_behind_small("default-scheduler", Some("all"))?;
    for (name, waited) in [("bedplate", ours), ("Kueue", theirs)] {
        match waited {
            Some(waited) => say(&format!("{name:30} it started after {:.1} s", waited.as_secs_f64())),
            None => say(&format!("{name:30} it had not started after {} s", LARGE_WAITS.as_secs())),
        }
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "figures are what it is for")]
fn say(line: &str) {
    println!("{line}");
}

struct Load {
    nodes: u32,
    pods: u32,
    gang: u32,
}

#[derive(Clone, Copy)]
struct Figures {
    pods_per_s: f64,
    gangs_per_s: f64,
}

fn report(ours: &Figures, name: &str, peers: &[(&str, Figures)]) {
    for (name, figures) in [(name, *ours)].iter().chain(peers) {
        let ratio = ours.pods_per_s / figures.pods_per_s;
        say(&format!(
            "{name:30} {:7.1} pods/s {:6.1} gangs/s; bedplate binds {ratio:.2} times as many",
            figures.pods_per_s, figures.gangs_per_s
        ));
    }
}

struct Bench {
    kubernetes: Kubernetes,
    connection: ApiConnection,
    pods: Api<Pod>,
    jobs: Api<Job>,
}

impl Bench {
    fn start(shape: &KubernetesShape) -> Result<Self, String> {
        let kubernetes = Kubernetes::start(shape)?;
        let connection = connect(&kubernetes.kubeconfig())?;
        let (pods, jobs) = (
            Api::namespaced(connection.client(), "default"),
            Api::namespaced(connection.client(), "default"),
        );
        Ok(Self { kubernetes, connection, pods, jobs })
    }

    /// Does something while our scheduler runs.
    fn with_ours<T>(&self, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let (stop, kubeconfig) = (StopHandle::default(), self.kubernetes.kubeconfig());
        let told = stop.clone();
        let scheduler: JoinHandle<Result<(), String>> = std::thread::spawn(move || {
            let connection = connect(&kubeconfig)?;
            let options = BinderOptions {
                name: "bedplate".to_owned(),
                site: None,
                lease: None,
                provisioning_class: None,
                listen: None,
                tells_load: false,
                remark: Box::new(|remark| say(&format!("scheduler: {}", remark.text))),
            };
            bedplate_binder::run(&connection, options, &told).map_err(|error| error.to_string())
        });
        let outcome = work();
        stop.gently();
        scheduler.join().map_err(|_| "the scheduler panicked")??;
        outcome
    }

    fn pods(&self, load: &Load, scheduler: &str) -> Result<Figures, String> {
        let of_gang = |index: u32| {
            // kwok ends pods by name, some time later: names are used once.
            let gang = format!("{scheduler}{:05}", index / load.gang);
            let mut pod = pod(scheduler, &json!({}), None);
            pod["metadata"] = json!({
                "name": format!("{gang}-{}", index % load.gang),
                "labels": {"bedplate.dev/gang": gang},
                "annotations": {"bedplate.dev/gang-size": load.gang.to_string()},
            });
            pod
        };
        self.measure(load, || self.make(&self.pods, (0..load.pods).map(of_gang)))
    }

    /// Pods that name groups of kube-scheduler's alpha, which exist already.
    fn grouped_pods(&self, load: &Load) -> Result<Figures, String> {
        let of_group = |index: u32| {
            let gang = format!("g{:05}", index / load.gang);
            let mut pod = pod("default-scheduler", &json!({}), None);
            pod["metadata"] = json!({"name": format!("{gang}-{}", index % load.gang)});
            pod["spec"]["schedulingGroup"] = json!({"podGroupName": gang});
            pod
        };
        self.measure(load, || self.make(&self.pods, (0..load.pods).map(of_group)))
    }

    fn jobs(&self, load: &Load, scheduler: &str, queue: Option<&str>) -> Result<Figures, String> {
        let job = |index: u32| job(&format!("{scheduler}{index:05}"), load.gang, 1, scheduler, queue, None);
        self.measure(load, || self.make(&self.jobs, (0..load.pods / load.gang).map(job)))
    }

    fn make<K>(&self, api: &Api<K>, objects: impl Iterator<Item = Value>) -> Result<(), String>
    where
        K: Clone + serde::Serialize + serde::de::DeserializeOwned + std::fmt::Debug,
    {
        self.connection.wait(async {
            let made = iter(objects).map(|object| async move {
                let object: K = serde_json::from_value(object).map_err(|error| error.to_string())?;
                api.create(&PostParams::default(), &object).await.map(drop).map_err(|error| error.to_string())
            });
            made.buffer_unordered(AT_ONCE)
                .fold(Ok(()), |all: Result<(), String>, one| async { all.and(one) })
                .await
        })
    }

    fn measure(&self, load: &Load, make: impl FnOnce() -> Result<(), String>) -> Result<Figures, String> {
        let began = Instant::now();
        make()?;
        loop {
            let bound = self.bound();
            if bound >= (load.pods / load.gang * load.gang) as usize {
                break;
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("{bound} of {} pods are bound after {PATIENCE:?}", load.pods));
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        let took = began.elapsed().as_secs_f64();
        self.clear()?;
        Ok(Figures {
            pods_per_s: f64::from(load.pods) / took,
            gangs_per_s: f64::from(load.pods / load.gang) / took,
        })
    }

    /// How long the large gang waits, if it starts in time.
    fn large_behind_small(&self, scheduler: &str, queue: Option<&str>) -> Result<Option<Duration>, String> {
        let mut made = 0;
        let mut small = |count: u32| {
            let small = |index: u32| {
                let runs = SMALL_RUN[index as usize % SMALL_RUN.len()];
                job(&format!("small-{scheduler}-{index}"), 1, 8, scheduler, queue, Some(runs))
            };
            let new = made..made + count;
            made += count;
            self.make(&self.jobs, new.map(small))
        };
        let of = |large: bool| {
            let is_it = move |pod: &&Pod| {
                pod.metadata.name.as_ref().is_some_and(|name| name.starts_with("large") == large)
            };
            Ok::<Vec<Pod>, String>(self.list()?.iter().filter(is_it).cloned().collect())
        };
        small(20)?;
        while of(false)?.iter().filter(|pod| is_bound(pod)).count() < 8 {
            std::thread::sleep(Duration::from_millis(200));
        }
        self.make(
            &self.jobs,
            [job(&format!("large-{scheduler}"), 8, 8, scheduler, queue, None)].into_iter(),
        )?;
        let began = Instant::now();
        let waited = loop {
            let ended = |pod: &&Pod| {
                pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Succeeded")
            };
            let done = of(false)?.iter().filter(ended).count();
            // Those that wait, whether they have pods or not.
            if (made_so_far(&self.list_jobs()?) - done) < 20 {
                small(4)?;
            }
            if of(true)?.iter().filter(|pod| is_bound(pod)).count() == 8 {
                break Some(began.elapsed());
            }
            if began.elapsed() > LARGE_WAITS {
                break None;
            }
            std::thread::sleep(Duration::from_millis(200));
        };
        self.clear()?;
        Ok(waited)
    }

    /// How many pods are bound; none where a server under load does not say.
    fn bound(&self) -> usize {
        let query = ListParams::default().match_any().fields("spec.nodeName!=");
        self.connection.ask(self.pods.list_metadata(&query)).map_or(0, |list| list.items.len())
    }

    fn list(&self) -> Result<Vec<Pod>, String> {
        let list = self.connection.ask(self.pods.list(&ListParams::default().match_any()));
        list.map(|list| list.items).map_err(|error| error.to_string())
    }

    fn list_jobs(&self) -> Result<Vec<Job>, String> {
        let list = self.connection.ask(self.jobs.list(&ListParams::default().match_any()));
        list.map(|list| list.items).map_err(|error| error.to_string())
    }

    fn clear(&self) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let query = ListParams::default().match_any();
            let jobs = self.connection.ask(self.jobs.list_metadata(&query));
            let pods = self.connection.ask(self.pods.list_metadata(&query));
            let (jobs, pods) = match (jobs, pods) {
                (Ok(jobs), Ok(pods)) => (jobs.items, pods.items),
                (Err(error), _) | (_, Err(error)) if began.elapsed() > PATIENCE => {
                    return Err(error.to_string());
                }
                _ => continue,
            };
            if jobs.is_empty() && pods.is_empty() {
                return Ok(());
            }
            self.connection.wait(async {
                let how = DeleteParams::background().grace_period(0);
                let gone = iter(jobs.iter().filter_map(|job| job.metadata.name.as_deref()))
                    .map(|name| async { self.jobs.delete(name, &how).await.map(drop) });
                gone.buffer_unordered(AT_ONCE).for_each(|_| async {}).await;
                let gone = iter(pods.iter().filter_map(|pod| pod.metadata.name.as_deref()))
                    .map(|name| async { self.pods.delete(name, &how).await.map(drop) });
                gone.buffer_unordered(AT_ONCE).for_each(|_| async {}).await;
            });
        }
    }
}

fn connect(kubeconfig: &Path) -> Result<ApiConnection, String> {
    let place = KubernetesPlace { kubeconfig: Some(kubeconfig.to_owned()), ..KubernetesPlace::default() };
    ApiConnection::open(&place).map_err(|error| error.to_string())
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

fn made_so_far(jobs: &[Job]) -> usize {
    jobs.iter().filter(|job| job.metadata.name.as_ref().is_some_and(|name| name.starts_with("small"))).count()
}

fn pod(scheduler: &str, annotations: &Value, gpus: Option<u32>) -> Value {
    let amount = json!({"nvidia.com/gpu": gpus.unwrap_or(1).to_string(), "cpu": "1"});
    json!({
        "metadata": {"annotations": annotations},
        "spec": {
            "schedulerName": scheduler,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": {"requests": amount, "limits": amount}}],
        },
    })
}

fn job(name: &str, pods: u32, gpus: u32, scheduler: &str, queue: Option<&str>, runs: Option<&str>) -> Value {
    let mut annotations = json!({"bedplate.dev/time-limit": if runs.is_some() { "20 s" } else { "10 min" }});
    if let Some(runs) = runs {
        annotations["kubeci/run-for"] = runs.into();
    }
    let labels = queue.map_or_else(|| json!({}), |queue| json!({"kueue.x-k8s.io/queue-name": queue}));
    json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "parallelism": pods, "completions": pods, "backoffLimit": 0, "suspend": queue.is_some(),
            "template": pod(scheduler, &annotations, Some(gpus)),
        },
    })
}

fn queues(gpus: u32) -> String {
    let quota = json!([
        {"name": "cpu", "nominalQuota": 1_000_000}, {"name": "nvidia.com/gpu", "nominalQuota": gpus},
    ]);
    let group = json!({"coveredResources": ["cpu", "nvidia.com/gpu"], "flavors": [{"name": "any", "resources": quota}]});
    let api = "kueue.x-k8s.io/v1beta2";
    let objects = [
        json!({"apiVersion": api, "kind": "ResourceFlavor", "metadata": {"name": "any"}}),
        json!({"apiVersion": api, "kind": "ClusterQueue", "metadata": {"name": "all"}, "spec": {"namespaceSelector": {}, "resourceGroups": [group]}}),
        json!({"apiVersion": api, "kind": "LocalQueue", "metadata": {"name": "all", "namespace": "default"}, "spec": {"clusterQueue": "all"}}),
    ];
    objects.map(|object| object.to_string()).join("\n---\n")
}

/// A group of kube-scheduler's alpha for every gang.
fn groups(load: &Load) -> String {
    let group = |index: u32| {
        let spec = json!({"schedulingPolicy": {"gang": {"minCount": load.gang}}});
        let name = json!({"name": format!("g{index:05}"), "namespace": "default"});
        json!({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": name, "spec": spec}).to_string()
    };
    (0..load.pods / load.gang).map(group).collect::<Vec<String>>().join("\n---\n")
}
