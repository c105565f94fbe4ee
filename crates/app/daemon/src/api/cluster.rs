//! `GET /v1/cluster`

use std::collections::BTreeMap;

use bedplate_control::NodeView;
use bedplate_topology::Cluster;
use serde_json::{Value, json};

use super::answer::{self, Answer};
use super::call::ApiCall;
use super::error::ApiError;

pub(crate) async fn cluster(call: ApiCall) -> Result<Answer, ApiError> {
    let asked = call.app.control.ask(|control, now| (control.counts(now), control.nodes(now)));
    let (counts, nodes) = asked.await?;
    let settings = &call.app.options.settings;
    let rules = &call.app.options.rules;
    Ok(answer::ok(&json!({
        "name": call.app.cluster.name(),
        "topology": topology(&call.app.cluster),
        "counts": counts,
        "settings": {
            "partitions": settings.partitions.iter().map(|partition| &partition.name).collect::<Vec<_>>(),
            "qos": settings.qos.iter().map(|qos| &qos.name).collect::<Vec<_>>(),
            "heartbeat_ms": rules.heartbeat.0,
            "silence_ms": rules.silence.0,
            "closed_grace_ms": rules.closed_grace.0,
            "rejoin_ms": rules.rejoin.0,
            "most_losses": rules.blame.most_losses,
            "flapping_window_ms": rules.blame.flapping_window.0,
        },
        "hosts": hosts(&nodes),
    })))
}

/// The counts that `bedplate cluster show` has.
fn topology(cluster: &Cluster) -> Value {
    let summary = cluster.summary();
    let kinds = summary.kinds.iter().map(|kind| {
        json!({ "kind": kind.kind, "accelerator": kind.accelerator, "nodes": kind.nodes, "gpus": kind.gpus })
    });
    let levels = summary.levels.iter().map(|level| {
        json!({
            "level": level.level.to_string(),
            "sets": level.sets,
            "smallest": level.smallest,
            "largest": level.largest,
        })
    });
    json!({
        "nodes": summary.nodes,
        "gpus": summary.gpus,
        "kinds": kinds.collect::<Vec<Value>>(),
        "levels": levels.collect::<Vec<Value>>(),
    })
}

/// What each host really has, and what its nodes promise together.
fn hosts(nodes: &[NodeView]) -> Vec<Value> {
    let mut by_host: BTreeMap<&str, Vec<&NodeView>> = BTreeMap::new();
    for node in nodes.iter().filter(|node| !node.host.name.is_empty()) {
        by_host.entry(&node.host.name).or_default().push(node);
    }
    by_host.values().map(|nodes| host_json(nodes)).collect()
}

fn host_json(nodes: &[&NodeView]) -> Value {
    let host = &nodes[0].host;
    let cpus: u32 = nodes.iter().map(|node| node.cpus).sum();
    let memory_mib: u64 = nodes.iter().map(|node| node.memory_mib).sum();
    let gpus: u32 = nodes.iter().map(|node| node.gpus).sum();
    json!({
        "name": host.name,
        "nodes": nodes.iter().map(|node| &node.name).collect::<Vec<_>>(),
        "cores": host.cores,
        "cores_promised": cpus,
        "memory_mib": host.memory_mib,
        "memory_mib_promised": memory_mib,
        "gpus": host.gpus,
        "gpus_promised": gpus,
        "is_overcommitted": cpus > host.cores || memory_mib > host.memory_mib || gpus > host.gpus,
    })
}
