//! Nodes: what the server says of them, and what the pods on them take.

use std::collections::BTreeMap;

use bedplate_diag::Reason;
use bedplate_document::kubernetes::{is_object_name, quantity as amount};
use bedplate_kubernetes::kube::api::ListParams;
use bedplate_kubernetes::names;
use serde_json::{Value, json};

use super::record::{annotation, gpus_of, label, milliseconds, quantity, text};
use super::server::Kind;
use super::{Kubernetes, refused};
use crate::{DriverError, HostView, JobId, NodeId, NodeState, NodeSummary};

/// GPUs that a node could give.
pub(super) fn gpus(node: &Value) -> u64 {
    names::GPU_RESOURCES.iter().map(|name| quantity(&node["status"]["allocatable"][*name])).sum()
}

/// What the pods on a node take.
#[derive(Default)]
struct Taken {
    gpus: u64,
    jobs: Vec<JobId>,
}

impl Kubernetes {
    pub(super) fn node_summaries(&self) -> Result<Vec<NodeSummary>, DriverError> {
        let nodes = self.server.list(Kind::Nodes, "", "")?;
        let mut taken = self.taken(None)?;
        let summary =
            |node: &Value| summary(node, taken.remove(text(&node["metadata"]["name"])).unwrap_or_default());
        Ok(nodes.iter().map(summary).collect())
    }

    pub(super) fn node_summary(&self, id: &NodeId) -> Result<NodeSummary, DriverError> {
        if !is_object_name(id.as_str()) {
            return Err(no_such_node(id));
        }
        let node = self.server.get(Kind::Nodes, "", id.as_str())?.ok_or_else(|| no_such_node(id))?;
        let mut taken = self.taken(Some(id))?;
        Ok(summary(&node, taken.remove(id.as_str()).unwrap_or_default()))
    }

    /// Takes back the cordon, and the taint where a finding has left one. Taints are one list to the server, so the node must not
    /// have changed since it was read.
    pub(super) fn put_back_node(&self, id: &NodeId) -> Result<(), DriverError> {
        if !is_object_name(id.as_str()) {
            return Err(no_such_node(id));
        }
        let node = self.server.get(Kind::Nodes, "", id.as_str())?.ok_or_else(|| no_such_node(id))?;
        let mut spec = json!({ "unschedulable": null });
        let mut marked = json!({ "annotations": { names::DRAIN_REASON: null } });
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let others: Vec<&Value> =
            taints.iter().filter(|taint| taint["key"] != names::FINDING_TAINT).collect();
        if others.len() < taints.len() {
            spec["taints"] = json!(others);
            marked["resourceVersion"] = node["metadata"]["resourceVersion"].clone();
        }
        self.change_node(id, &json!({ "metadata": marked, "spec": spec }))
    }

    pub(super) fn change_node(&self, id: &NodeId, patch: &Value) -> Result<(), DriverError> {
        if !is_object_name(id.as_str()) {
            return Err(no_such_node(id));
        }
        match self.server.patch(Kind::Nodes, "", id.as_str(), patch) {
            Err(DriverError::Kubernetes(error)) if error.is_not_found() => Err(no_such_node(id)),
            other => other.map(drop),
        }
    }

    /// What pods take, by node: those of all namespaces, or, where we may not look at those, of our own.
    fn taken(&self, node: Option<&NodeId>) -> Result<BTreeMap<String, Taken>, DriverError> {
        let fields = node.map(|node| format!("spec.nodeName={node}"));
        let query = ListParams { field_selector: fields, ..ListParams::default() };
        let pods = match self.server.list_at("/api/v1/pods", &query) {
            Err(DriverError::Kubernetes(error)) if error.is_forbidden() => {
                self.remark(format!(
                    "pods of other namespaces than {} may not be listed; what they take is not counted",
                    self.namespace()
                ));
                self.server.list_at(&format!("/api/v1/namespaces/{}/pods", self.namespace()), &query)?
            }
            other => other?,
        };
        let mut by_node: BTreeMap<String, Taken> = BTreeMap::new();
        let runs = |pod: &&Value| !matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed");
        for pod in pods.iter().filter(runs) {
            let Some(node) = pod["spec"]["nodeName"].as_str() else { continue };
            let taken = by_node.entry(node.to_owned()).or_default();
            taken.gpus += gpus_of(&pod["spec"]);
            let name = label(pod, names::JOBSET_NAME).or_else(|| label(pod, names::GANG));
            let id = name.map(|name| JobId(format!("{}/{name}", text(&pod["metadata"]["namespace"]))));
            taken.jobs.extend(id.filter(|id| !taken.jobs.contains(id)));
        }
        Ok(by_node)
    }

    /// Kueue's queues of our namespace, which jobs name as their partition.
    pub(super) fn queues(&self) -> Result<Vec<Value>, DriverError> {
        let Some(group) = self.server.find("/apis/kueue.x-k8s.io")? else { return Ok(Vec::new()) };
        let version = text(&group["preferredVersion"]["groupVersion"]);
        let path = format!("/apis/{version}/namespaces/{}/localqueues", self.namespace());
        let queues = self.server.list_at(&path, &ListParams::default())?;
        let told = queues.iter().map(|queue| {
            serde_json::json!({
                "name": queue["metadata"]["name"],
                "cluster_queue": queue["spec"]["clusterQueue"],
                "waiting": queue["status"]["pendingWorkloads"],
                "admitted": queue["status"]["admittedWorkloads"],
            })
        });
        Ok(told.collect())
    }
}

fn summary(node: &Value, taken: Taken) -> NodeSummary {
    let name = text(&node["metadata"]["name"]);
    let address = node["status"]["addresses"]
        .as_array()
        .and_then(|all| all.iter().find(|each| each["type"] == "InternalIP"));
    let gpus = gpus(node);
    let memory_mib = memory_mib(text(&node["status"]["allocatable"]["memory"]));
    let cpus = cpus(text(&node["status"]["allocatable"]["cpu"]));
    let ready = condition(node, "Ready");
    NodeSummary {
        name: NodeId::from(name),
        state: state(node, !taken.jobs.is_empty() || taken.gpus > 0),
        reason: reason(node),
        address: address.map(|address| text(&address["address"]).to_owned()).unwrap_or_default(),
        host: HostView {
            name: name.to_owned(),
            cores: cpus,
            memory_mib,
            gpus: gpus as u32,
            enforced: Vec::new(),
        },
        kind: label(node, "node.kubernetes.io/instance-type").unwrap_or_default().to_owned(),
        gpus: gpus as u32,
        gpus_free: gpus.saturating_sub(taken.gpus) as u32,
        cpus,
        memory_mib,
        jobs: taken.jobs,
        is_linked: ready.is_some_and(|ready| ready["status"] == "True"),
        heard_ms: ready.and_then(|ready| milliseconds(&ready["lastHeartbeatTime"])),
        losses: 0,
        findings: Vec::new(),
    }
}

fn condition<'a>(node: &'a Value, kind: &str) -> Option<&'a Value> {
    node["status"]["conditions"].as_array()?.iter().find(|each| each["type"] == kind)
}

fn state(node: &Value, is_busy: bool) -> NodeState {
    let is_ready = condition(node, "Ready").is_some_and(|ready| ready["status"] == "True");
    match (is_ready, node["spec"]["unschedulable"] == true, is_busy) {
        (false, ..) => NodeState::Down,
        (true, true, true) => NodeState::Draining,
        (true, true, false) => NodeState::Drained,
        (true, false, true) => NodeState::Allocated,
        (true, false, false) => NodeState::Idle,
    }
}

fn reason(node: &Value) -> Option<Reason> {
    let ready = condition(node, "Ready");
    if let Some(ready) = ready.filter(|ready| ready["status"] != "True") {
        return Some(Reason::new("not_ready", format!("it is not ready: {}", text(&ready["message"]))));
    }
    let why = annotation(node, names::DRAIN_REASON);
    (node["spec"]["unschedulable"] == true).then(|| match why {
        Some(why) => Reason::new("drained", format!("it is cordoned: {why}")),
        None => Reason::new("drained", "it is cordoned"),
    })
}

/// `128` or `127500m`.
fn cpus(text: &str) -> u32 {
    amount(text).unwrap_or(0.0) as u32
}

/// `2Ti`, `1056219596Ki` or a number of bytes.
fn memory_mib(text: &str) -> u64 {
    amount(text).unwrap_or(0.0) as u64 >> 20
}

fn no_such_node(id: &NodeId) -> DriverError {
    refused("no_such_node", format!("there is no node {id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_the_server_writes_them() {
        assert_eq!((cpus("128"), cpus("127500m"), cpus("?")), (128, 127, 0));
        assert_eq!((memory_mib("2Ti"), memory_mib("2048Ki"), memory_mib("1048576")), (2 << 20, 2, 1));
    }
}
