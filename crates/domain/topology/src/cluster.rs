//! The cluster: compact arrays behind small views of nodes and switches.
//!
//! Nodes are in the depth-first order of the switch tree, nodes of one multi-node domain next to each
//! other, and GPUs in node order. So the GPUs of a domain, a node, a switch or the cluster are always one
//! range, and every query is arithmetic on ranges. `draft` arranges that for every importer.

use bedplate_units::Bytes;

use crate::features::FeatureTable;
use crate::names::Names;
use crate::{GpuId, GpuRange, Health, Level, NodeId, NodeKind, NodeRange, SwitchId};

/// Marks the absence of a switch.
pub(crate) const NONE: u32 = u32::MAX;

/// A concrete cluster. Immutable except for the health of its parts.
///
/// Its methods take only its own ids; an id from another cluster may panic, as an index would.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    pub(crate) name: String,
    pub(crate) kinds: Vec<NodeKind>,
    pub(crate) nodes: NodeTable,
    pub(crate) switches: SwitchTable,
    pub(crate) domains: DomainTable,
    pub(crate) features: FeatureTable,
    pub(crate) storage: Vec<AttachedStorage>,
    /// Sorted by node.
    pub(crate) reasons: Vec<(u32, String)>,
    /// Sorted.
    pub(crate) failed: Vec<GpuId>,
}

/// One entry per node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NodeTable {
    pub(crate) names: Names,
    /// Node indices sorted by name.
    pub(crate) by_name: Vec<u32>,
    pub(crate) kind: Vec<u16>,
    pub(crate) switch: Vec<u32>,
    pub(crate) health: Vec<Health>,
    pub(crate) gpus: GpuNumbers,
}

/// How GPU numbers are derived from node numbers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum GpuNumbers {
    /// Every node has the same number of GPUs.
    Even { per_node: u32 },
    /// The first GPU of each node, and after the last node the total number of GPUs.
    Sums(Vec<u32>),
}

impl Default for GpuNumbers {
    fn default() -> Self {
        GpuNumbers::Even { per_node: 0 }
    }
}

/// One entry per switch, in depth-first order from the roots.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SwitchTable {
    pub(crate) names: Names,
    pub(crate) parent: Vec<u32>,
    pub(crate) height: Vec<u8>,
    pub(crate) first_node: Vec<u32>,
    pub(crate) end_node: Vec<u32>,
    pub(crate) oversubscription: Vec<f32>,
}

/// The scale-up domains that span several nodes; empty tables where there are none.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DomainTable {
    pub(crate) names: Names,
    /// Per node its domain, or [`NONE`].
    pub(crate) of_node: Vec<u32>,
    pub(crate) first_node: Vec<u32>,
    pub(crate) end_node: Vec<u32>,
}

/// Storage that all nodes can reach.
#[derive(Debug, Clone, PartialEq)]
pub struct AttachedStorage {
    /// Name of the catalog's storage class.
    pub class: String,
    pub capacity: Bytes,
}

impl Cluster {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn node_count(&self) -> u32 {
        self.nodes.kind.len() as u32
    }

    pub fn gpu_count(&self) -> u32 {
        self.first_gpu(self.node_count())
    }

    pub fn switch_count(&self) -> u32 {
        self.switches.parent.len() as u32
    }

    /// All nodes, in the order of the switch tree.
    pub fn nodes(&self) -> NodeRange {
        NodeRange::new(0, self.node_count())
    }

    pub fn gpus(&self) -> GpuRange {
        GpuRange::new(0, self.gpu_count())
    }

    /// The kinds of nodes, in order of their first node.
    pub fn kinds(&self) -> &[NodeKind] {
        &self.kinds
    }

    pub fn storage(&self) -> &[AttachedStorage] {
        &self.storage
    }

    pub fn node(&self, id: NodeId) -> Node<'_> {
        assert!(id.0 < self.node_count(), "node {} is not one of {}", id.0, self.node_count());
        Node { cluster: self, id }
    }

    /// Looks up a node by name, in logarithmic time.
    pub fn find_node(&self, name: &str) -> Option<NodeId> {
        let names = &self.nodes.names;
        let found = self.nodes.by_name.binary_search_by(|node| names.get(*node).cmp(name)).ok()?;
        Some(NodeId(self.nodes.by_name[found]))
    }

    /// The node that holds a GPU: a division where all nodes are alike, else a binary search.
    pub fn node_of(&self, gpu: GpuId) -> NodeId {
        match &self.nodes.gpus {
            GpuNumbers::Even { per_node } => NodeId(gpu.0 / per_node),
            GpuNumbers::Sums(first) => NodeId(first.partition_point(|start| *start <= gpu.0) as u32 - 1),
        }
    }

    /// The GPU's number within its node, as `CUDA_VISIBLE_DEVICES` counts.
    pub fn local_index(&self, gpu: GpuId) -> u32 {
        gpu.0 - self.first_gpu(self.node_of(gpu).0)
    }

    /// GPU number `local` of a node, if the node has that many.
    pub fn gpu(&self, node: NodeId, local: u32) -> Option<GpuId> {
        let gpus = self.node(node).gpus();
        (local < gpus.len()).then(|| GpuId(gpus.start() + local))
    }

    /// The scale-up domain of a GPU: the GPUs it reaches over NVLink, itself included.
    pub fn domain_of(&self, gpu: GpuId) -> GpuRange {
        let node = self.node_of(gpu);
        if let Some(nodes) = self.multi_node_domain(node) {
            return self.gpus_of(nodes);
        }
        let first = self.first_gpu(node.0);
        let within = self.kind_of(node).domain_within(gpu.0 - first);
        GpuRange::new(first + within.start, first + within.end)
    }

    /// The nodes of the scale-up domain that spans this node and others, where there is one.
    pub fn multi_node_domain(&self, node: NodeId) -> Option<NodeRange> {
        let domain = *self.domains.of_node.get(node.0 as usize)?;
        (domain != NONE).then(|| self.domain_nodes(domain))
    }

    pub(crate) fn domain_nodes(&self, domain: u32) -> NodeRange {
        let domain = domain as usize;
        NodeRange::new(self.domains.first_node[domain], self.domains.end_node[domain])
    }

    /// The GPUs of a range of nodes.
    pub fn gpus_of(&self, nodes: NodeRange) -> GpuRange {
        GpuRange::new(self.first_gpu(nodes.start()), self.first_gpu(nodes.end()))
    }

    pub(crate) fn kind_of(&self, node: NodeId) -> &NodeKind {
        &self.kinds[usize::from(self.nodes.kind[node.0 as usize])]
    }

    pub(crate) fn first_gpu(&self, node: u32) -> u32 {
        match &self.nodes.gpus {
            GpuNumbers::Even { per_node } => node * per_node,
            GpuNumbers::Sums(first) => first[node as usize],
        }
    }

    /// All switches, parents before children.
    pub fn switches(&self) -> impl ExactSizeIterator<Item = Switch<'_>> + Clone {
        (0..self.switch_count()).map(|index| Switch { cluster: self, id: SwitchId(index) })
    }

    pub fn switch(&self, id: SwitchId) -> Switch<'_> {
        assert!(id.0 < self.switch_count(), "switch {} is not one of {}", id.0, self.switch_count());
        Switch { cluster: self, id }
    }

    /// The switch that a node is attached to; none in a flat cluster.
    pub(crate) fn switch_of(&self, node: NodeId) -> Option<SwitchId> {
        self.present(self.nodes.switch[node.0 as usize])
    }

    pub(crate) fn parent_of(&self, switch: SwitchId) -> Option<SwitchId> {
        self.present(self.switches.parent[switch.0 as usize])
    }

    fn present(&self, switch: u32) -> Option<SwitchId> {
        (switch != NONE).then_some(SwitchId(switch))
    }

    pub fn health(&self, node: NodeId) -> Health {
        self.nodes.health[node.0 as usize]
    }

    /// Why a node is not healthy, where a reason was given.
    pub fn reason(&self, node: NodeId) -> Option<&str> {
        let at = self.reasons.binary_search_by_key(&node.0, |(node, _)| *node).ok()?;
        Some(&self.reasons[at].1)
    }

    /// Changes the health of a node and replaces the reason.
    pub fn set_health(&mut self, node: NodeId, health: Health, reason: Option<String>) {
        self.nodes.health[node.0 as usize] = health;
        let at = self.reasons.binary_search_by_key(&node.0, |(node, _)| *node);
        match (at, reason) {
            (Ok(at), Some(reason)) => self.reasons[at].1 = reason,
            (Ok(at), None) => drop(self.reasons.remove(at)),
            (Err(at), Some(reason)) => self.reasons.insert(at, (node.0, reason)),
            (Err(_), None) => {}
        }
    }

    /// GPUs known to have failed, ascending, independent of the health of their nodes.
    pub fn failed_gpus(&self) -> &[GpuId] {
        &self.failed
    }

    pub fn has_failed(&self, gpu: GpuId) -> bool {
        self.failed.binary_search(&gpu).is_ok()
    }

    pub fn set_failed(&mut self, gpu: GpuId, has_failed: bool) {
        match (self.failed.binary_search(&gpu), has_failed) {
            (Err(at), true) => self.failed.insert(at, gpu),
            (Ok(at), false) => drop(self.failed.remove(at)),
            _ => {}
        }
    }

    /// Whether work may be placed on a GPU: its node takes work and it has not failed itself.
    pub fn is_usable(&self, gpu: GpuId) -> bool {
        self.health(self.node_of(gpu)).takes_work() && !self.has_failed(gpu)
    }

    /// What the cluster occupies on the heap, names included.
    pub fn heap_bytes(&self) -> usize {
        let words = |list: &Vec<u32>| list.capacity() * size_of::<u32>();
        let nodes = self.nodes.names.heap_bytes()
            + words(&self.nodes.by_name)
            + self.nodes.kind.capacity() * size_of::<u16>()
            + words(&self.nodes.switch)
            + self.nodes.health.capacity() * size_of::<Health>()
            + if let GpuNumbers::Sums(first) = &self.nodes.gpus { words(first) } else { 0 };
        let switches = self.switches.names.heap_bytes()
            + words(&self.switches.parent)
            + self.switches.height.capacity()
            + words(&self.switches.first_node)
            + words(&self.switches.end_node)
            + self.switches.oversubscription.capacity() * size_of::<f32>();
        let domains = self.domains.names.heap_bytes()
            + words(&self.domains.of_node)
            + words(&self.domains.first_node)
            + words(&self.domains.end_node);
        let reasons = self.reasons.iter().map(|(_, reason)| reason.capacity()).sum::<usize>()
            + self.reasons.capacity() * size_of::<(u32, String)>();
        let failed = self.failed.capacity() * size_of::<GpuId>();
        let kinds = self.kinds.capacity() * size_of::<NodeKind>();
        let features = self.features.heap_bytes();
        self.name.capacity() + nodes + switches + domains + features + reasons + failed + kinds
    }
}

/// One node, borrowed from its cluster.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    cluster: &'a Cluster,
    id: NodeId,
}

impl<'a> Node<'a> {
    pub fn id(self) -> NodeId {
        self.id
    }

    pub fn name(self) -> &'a str {
        self.cluster.nodes.names.get(self.id.0)
    }

    pub fn kind(self) -> &'a NodeKind {
        self.cluster.kind_of(self.id)
    }

    pub fn gpus(self) -> GpuRange {
        self.cluster.gpus_of(NodeRange::new(self.id.0, self.id.0 + 1))
    }

    pub fn health(self) -> Health {
        self.cluster.health(self.id)
    }

    pub fn reason(self) -> Option<&'a str> {
        self.cluster.reason(self.id)
    }

    /// Labels that the orchestrator gives it, such as Slurm's features, in its order. The name of the
    /// instance is not among them: see [`kind`](Node::kind).
    pub fn features(self) -> &'a [String] {
        self.cluster.features.get(self.id.0)
    }

    /// The switch it is attached to; none in a flat cluster.
    pub fn switch(self) -> Option<Switch<'a>> {
        self.cluster.switch_of(self.id).map(|id| self.cluster.switch(id))
    }

    /// The name of the scale-up domain that it shares with other nodes, where there is one.
    pub fn domain_name(self) -> Option<&'a str> {
        let domain = *self.cluster.domains.of_node.get(self.id.0 as usize)?;
        (domain != NONE).then(|| self.cluster.domains.names.get(domain))
    }
}

/// One network switch, borrowed from its cluster.
#[derive(Debug, Clone, Copy)]
pub struct Switch<'a> {
    cluster: &'a Cluster,
    id: SwitchId,
}

impl<'a> Switch<'a> {
    pub fn id(self) -> SwitchId {
        self.id
    }

    pub fn name(self) -> &'a str {
        self.cluster.switches.names.get(self.id.0)
    }

    /// Its height over the nodes: one more than the highest switch below it.
    pub fn level(self) -> Level {
        Level::Switch(self.cluster.switches.height[self.id.0 as usize])
    }

    pub fn parent(self) -> Option<Switch<'a>> {
        self.cluster.parent_of(self.id).map(|id| self.cluster.switch(id))
    }

    /// The switches directly below it.
    pub fn children(self) -> impl Iterator<Item = Switch<'a>> {
        let end = self.nodes().end();
        self.cluster
            .switches()
            .skip(self.id.0 as usize + 1)
            .take_while(move |below| below.nodes().start() < end)
            .filter(move |below| self.cluster.parent_of(below.id) == Some(self.id))
    }

    /// All nodes below it, directly or via other switches.
    pub fn nodes(self) -> NodeRange {
        let index = self.id.0 as usize;
        NodeRange::new(self.cluster.switches.first_node[index], self.cluster.switches.end_node[index])
    }

    /// The nodes attached directly to it; they come before those of its child switches.
    pub fn own_nodes(self) -> NodeRange {
        let all = self.nodes();
        let own = |node: &u32| self.cluster.nodes.switch[*node as usize] == self.id.0;
        NodeRange::new(all.start(), all.start() + (all.start()..all.end()).take_while(own).count() as u32)
    }

    pub fn gpus(self) -> GpuRange {
        self.cluster.gpus_of(self.nodes())
    }

    /// Downlink over uplink bandwidth, at least 1: traffic leaving this switch upwards has that much less bandwidth.
    pub fn oversubscription(self) -> f64 {
        f64::from(self.cluster.switches.oversubscription[self.id.0 as usize])
    }
}
