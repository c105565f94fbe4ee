//! The cluster's shape from its nodes, by the importer of node lists.

use std::collections::BTreeMap;

use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use bedplate_topology::{Cluster, Format, ImportOptions, NodeId, TopologyError, import};
use serde_json::{Value, json};

use crate::{Effect, Node};

/// More GPUs on one node than the scheduler's bits can name.
const MOST_GPUS: i64 = 64;

/// A cluster, and which of the nodes is which.
#[derive(Debug, Clone)]
pub(crate) struct ClusterShape {
    pub(crate) cluster: Cluster,
    pub(crate) ids: BTreeMap<String, NodeId>,
}

impl ClusterShape {
    pub(crate) fn of(nodes: &BTreeMap<String, Node>, catalog: &Catalog) -> Result<Self, TopologyError> {
        let items: Vec<Value> = nodes.values().map(described).collect();
        let text = json!({"kind": "NodeList", "items": items}).to_string();
        let options = ImportOptions { allows_unknown: true, ..ImportOptions::default() };
        let cluster =
            import(Format::Kubernetes, &[Source::new("the API server's nodes", &text)], &options, catalog)?;
        let ids = cluster.nodes().iter().map(|id| (cluster.node(id).name().to_owned(), id)).collect();
        Ok(Self { cluster, ids })
    }

    pub(crate) fn name(&self, id: NodeId) -> &str {
        self.cluster.node(id).name()
    }
}

/// Cores and memory are left out: they differ a little from node to node, and every difference would be a kind of machine. What is
/// free of them is counted by `free_resources`.
fn described(node: &Node) -> Value {
    let gpus = |count: i64| count.clamp(0, MOST_GPUS).to_string();
    let taints: Vec<Value> = node
        .taints
        .iter()
        .filter(|taint| taint.effect != Effect::PreferNoSchedule)
        .map(|taint| json!({"key": taint.key}))
        .collect();
    let mut labels = node.labels.clone();
    labels.remove("nvidia.com/gpu.count");
    json!({
        "kind": "Node",
        "metadata": {"name": node.name, "labels": labels},
        "spec": {"unschedulable": node.is_cordoned, "taints": taints},
        "status": {
            "capacity": {"nvidia.com/gpu": gpus(node.gpus.into())},
            "allocatable": {"nvidia.com/gpu": gpus(node.allocatable.gpus.min(node.gpus.into()))},
            "conditions": [{"type": "Ready", "status": if node.is_ready { "True" } else { "False" }}],
        },
    })
}
