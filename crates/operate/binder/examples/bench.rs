//! How fast gangs of pods are bound on a real API server, by this scheduler and by kube-scheduler, one after the other.
//!
//! ```text
//! cargo run --release -p bedplate-binder --example bench -- [NODES] [PODS] [PODS OF A GANG]
//! ```
//!
//! The time runs from the first pod that is made to the last that is bound; pods are made by many requests at once, and the API server
//! and everything else shares the machine. kube-scheduler binds single pods: it has no gangs to keep whole.

use std::path::Path;
use std::time::{Duration, Instant};

use bedplate_binder::{BinderOptions, Stop};
use bedplate_kubernetes::k8s_openapi::api::core::v1::Pod;
use bedplate_kubernetes::kube::Api;
use bedplate_kubernetes::kube::api::{DeleteParams, ListParams, PostParams};
use bedplate_kubernetes::{Connection, KubernetesPlace};
use bedplate_peers::{Kubernetes, KubernetesShape};
use futures_util::StreamExt;
use futures_util::stream::iter;
use serde_json::json;

/// Requests under way at once.
const AT_ONCE: usize = 32;

struct Figures {
    pods_per_s: f64,
    gangs_per_s: f64,
    /// From the first binding to the last.
    binding_s: f64,
}

#[expect(clippy::print_stdout, reason = "figures are what it is for")]
fn main() -> Result<(), String> {
    let mut numbers = std::env::args()
        .skip(1)
        .map(|text| text.parse::<u32>().map_err(|_| format!("`{text}` is no number")));
    let mut next = |default: u32| numbers.next().unwrap_or(Ok(default));
    let (nodes, pods, gang) = (next(1000)?, next(5000)?, next(8)?);
    let shape = KubernetesShape { nodes, scheduler: true, ..KubernetesShape::default() };
    if let Some(why) = shape.missing() {
        println!("SKIPPED: {why}");
        return Ok(());
    }
    let kubernetes = Kubernetes::start(&shape)?;
    let connection = connect(&kubernetes.kubeconfig())?;
    println!(
        "{nodes} nodes of 8 GPUs, {pods} pods of 1 GPU in gangs of {gang}, {} processors",
        std::thread::available_parallelism().map_or(0, usize::from)
    );

    let (stop, kubeconfig) = (Stop::default(), kubernetes.kubeconfig());
    let told = stop.clone();
    let scheduler = std::thread::spawn(move || {
        let connection = connect(&kubeconfig)?;
        let options = BinderOptions {
            name: "bedplate".to_owned(),
            site: None,
            lease: None,
            remark: Box::new(|remark| println!("scheduler: {remark}")),
        };
        bedplate_binder::run(&connection, options, &told).map_err(|error| error.to_string())
    });
    let ours = measure(&connection, "bedplate", pods, gang)?;
    stop.gently();
    scheduler.join().map_err(|_| "the scheduler panicked")??;
    let theirs = measure(&connection, "default-scheduler", pods, gang)?;
    for (name, figures) in [("bedplate", &ours), ("kube-scheduler", &theirs)] {
        println!(
            "{name:15} {:8.1} pods/s {:8.1} gangs/s, {:.1} s from the first binding to the last",
            figures.pods_per_s, figures.gangs_per_s, figures.binding_s
        );
    }
    println!(
        "bedplate binds {:.2} times the pods per second of kube-scheduler",
        ours.pods_per_s / theirs.pods_per_s
    );
    Ok(())
}

fn connect(kubeconfig: &Path) -> Result<Connection, String> {
    let place = KubernetesPlace { kubeconfig: Some(kubeconfig.to_owned()), ..KubernetesPlace::default() };
    Connection::open(&place).map_err(|error| error.to_string())
}

fn measure(connection: &Connection, scheduler: &str, count: u32, gang: u32) -> Result<Figures, String> {
    let pods: Api<Pod> = Api::namespaced(connection.client(), "default");
    let began = Instant::now();
    connection.wait(async {
        let made = iter(0..count).map(|index| {
            let (pods, pod) = (pods.clone(), pod(scheduler, index, gang));
            async move { pods.create(&PostParams::default(), &pod?).await.map_err(|error| error.to_string()) }
        });
        made.buffer_unordered(AT_ONCE)
            .fold(Ok(()), |all: Result<(), String>, one| async { all.and(one.map(drop)) })
            .await
    })?;
    let mut first = None;
    loop {
        let list = connection.ask(pods.list(&ListParams::default())).map_err(|error| error.to_string())?;
        let bound = list
            .items
            .iter()
            .filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()))
            .count();
        if bound > 0 {
            first.get_or_insert_with(Instant::now);
        }
        if bound == count as usize {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let took = began.elapsed().as_secs_f64();
    let binding_s = first.map_or(0.0, |first| first.elapsed().as_secs_f64());
    clear(connection, &pods)?;
    Ok(Figures {
        pods_per_s: f64::from(count) / took,
        gangs_per_s: f64::from(count / gang) / took,
        binding_s,
    })
}

fn pod(scheduler: &str, index: u32, gang: u32) -> Result<Pod, String> {
    let name = format!("g{:05}", index / gang);
    let amount = json!({"nvidia.com/gpu": "1", "cpu": "1"});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("{name}-{}", index % gang), "labels": {"bedplate.dev/gang": name}, "annotations": {"bedplate.dev/gang-size": gang.to_string()}},
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": {"requests": amount, "limits": amount}}],
        },
    });
    serde_json::from_value(pod).map_err(|error| error.to_string())
}

fn clear(connection: &Connection, pods: &Api<Pod>) -> Result<(), String> {
    loop {
        let list = connection.ask(pods.list(&ListParams::default())).map_err(|error| error.to_string())?;
        if list.items.is_empty() {
            return Ok(());
        }
        connection.wait(async {
            let names = list.items.into_iter().filter_map(|pod| pod.metadata.name);
            let gone = iter(names).map(|name| async move {
                pods.delete(&name, &DeleteParams::default().grace_period(0)).await.map(drop)
            });
            gone.buffer_unordered(AT_ONCE).for_each(|_| async {}).await;
        });
    }
}
