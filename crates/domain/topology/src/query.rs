//! Where GPUs meet, how far apart they are, and the sets into which each level divides the cluster.
//!
//! The sets of every level are ranges of GPUs, and a set of a better level is inside one of a worse level
//! (only multi-node domains and nodes are the other way round). So a set of GPUs meets where its first and
//! its last GPU meet, and no query allocates.

use crate::{Cluster, GpuId, GpuRange, Level, NodeId, NodeRange, Switch, SwitchId};

/// One of the sets into which a level divides the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Set {
    pub gpus: GpuRange,
    /// The nodes of these GPUs; whole nodes, except in sets smaller than a node.
    pub nodes: NodeRange,
}

impl Cluster {
    /// The level at which all these GPUs meet; none for an empty set. Order and repetition do not matter.
    ///
    /// Takes a range (`cluster.node(n).gpus()`) or any iterator of ids. Time is linear in the set; memory is constant.
    pub fn level_of(&self, gpus: impl IntoIterator<Item = GpuId>) -> Option<Level> {
        let (first, last) = bounds(gpus)?;
        Some(self.meet(first, last))
    }

    /// The level at which all these nodes meet: [`Level::Node`] for one alone, [`Level::Domain`] where one
    /// scale-up domain spans them.
    pub fn level_of_nodes(&self, nodes: impl IntoIterator<Item = NodeId>) -> Option<Level> {
        let (first, last) = bounds(nodes)?;
        Some(if first == last { Level::Node } else { self.meet_nodes(first, last) })
    }

    /// The level at which two GPUs meet.
    pub fn meet(&self, a: GpuId, b: GpuId) -> Level {
        if a == b {
            return Level::Gpu;
        }
        let (node_a, node_b) = (self.node_of(a), self.node_of(b));
        if node_a != node_b {
            return self.meet_nodes(node_a, node_b);
        }
        if self.domain_of(a).contains(b) { Level::Domain } else { Level::Node }
    }

    fn meet_nodes(&self, a: NodeId, b: NodeId) -> Level {
        if self.multi_node_domain(a).is_some_and(|nodes| nodes.contains(b)) {
            return Level::Domain;
        }
        self.common_switch(a, b).map_or(Level::Cluster, Switch::level)
    }

    /// The lowest switch above both nodes; none where only the cluster as a whole joins them.
    pub fn common_switch(&self, a: NodeId, b: NodeId) -> Option<Switch<'_>> {
        self.above(a).map(|id| self.switch(id)).find(|switch| switch.nodes().contains(b))
    }

    /// The switches above a node, from its own to the root.
    pub(crate) fn above(&self, node: NodeId) -> impl Iterator<Item = SwitchId> {
        std::iter::successors(self.switch_of(node), |below| self.parent_of(*below))
    }

    /// How many network switches a message between two GPUs passes.
    ///
    /// Zero within a node or a scale-up domain, 1 below one leaf, 3 over a spine, 5 over a core. What joins
    /// several trees, or the nodes of a flat cluster, counts as one switch.
    pub fn hops(&self, a: GpuId, b: GpuId) -> u32 {
        let (node_a, node_b) = (self.node_of(a), self.node_of(b));
        if node_a == node_b || self.domain_of(a).contains(b) {
            return 0;
        }
        let top = self.common_switch(node_a, node_b).map(Switch::id);
        let below = |node| self.above(node).take_while(|switch| Some(*switch) != top).count() as u32;
        below(node_a) + below(node_b) + 1
    }

    /// The sets into which a level divides the cluster, in order.
    ///
    /// Two GPUs are in the same set if and only if they meet at that level or below. The exception is
    /// [`Level::Node`], which gives the machines, even where a domain spans several of them. A node below
    /// no switch of a level's height is a set of its own there, with its domain. Nodes without GPUs are in
    /// no set of the levels below [`Level::Node`].
    pub fn sets(&self, level: Level) -> Sets<'_> {
        Sets { cluster: self, level, next_node: 0, next_gpu: 0 }
    }

    /// All the levels that this cluster has, best first: switches as high as its tree.
    pub fn levels(&self) -> impl Iterator<Item = Level> + use<> {
        let highest = self.switches.height.iter().copied().max().unwrap_or(0);
        [Level::Gpu, Level::Domain, Level::Node]
            .into_iter()
            .chain((1..=highest).map(Level::Switch))
            .chain([Level::Cluster])
    }

    /// The nodes of the set of a switch level that begins with `node`.
    fn switch_set(&self, node: NodeId, height: u8) -> NodeRange {
        let high_enough = |switch: &Switch<'_>| switch.level() <= Level::Switch(height);
        match self.above(node).map(|id| self.switch(id)).take_while(high_enough).last() {
            Some(switch) => switch.nodes(),
            None => self.multi_node_domain(node).unwrap_or(NodeRange::new(node.0, node.0 + 1)),
        }
    }
}

/// The sets of one level; see [`Cluster::sets`].
#[derive(Debug, Clone)]
pub struct Sets<'a> {
    cluster: &'a Cluster,
    level: Level,
    next_node: u32,
    next_gpu: u32,
}

impl Sets<'_> {
    /// The next set of a level that divides between nodes.
    fn next_of_nodes(&mut self) -> Option<Set> {
        let count = self.cluster.node_count();
        if self.next_node >= count {
            return None;
        }
        let node = NodeId(self.next_node);
        let nodes = match self.level {
            Level::Switch(height) => self.cluster.switch_set(node, height),
            Level::Cluster => self.cluster.nodes(),
            _ => NodeRange::new(node.0, node.0 + 1),
        };
        self.next_node = nodes.end();
        Some(Set { gpus: self.cluster.gpus_of(nodes), nodes })
    }

    /// The next set of a level that may divide within nodes.
    fn next_of_gpus(&mut self) -> Option<Set> {
        let gpu = GpuId(self.next_gpu);
        if gpu.0 >= self.cluster.gpu_count() {
            return None;
        }
        let gpus = match self.level {
            Level::Gpu => GpuRange::new(gpu.0, gpu.0 + 1),
            _ => self.cluster.domain_of(gpu),
        };
        self.next_gpu = gpus.end();
        let last = gpus.last().unwrap_or(gpu);
        let nodes = NodeRange::new(self.cluster.node_of(gpu).0, self.cluster.node_of(last).0 + 1);
        Some(Set { gpus, nodes })
    }
}

impl Iterator for Sets<'_> {
    type Item = Set;

    fn next(&mut self) -> Option<Set> {
        match self.level {
            Level::Gpu | Level::Domain => self.next_of_gpus(),
            Level::Node | Level::Switch(_) | Level::Cluster => self.next_of_nodes(),
        }
    }
}

/// The smallest and the largest id.
pub(crate) fn bounds<I: Ord + Copy>(ids: impl IntoIterator<Item = I>) -> Option<(I, I)> {
    let mut ids = ids.into_iter();
    let first = ids.next()?;
    Some(ids.fold((first, first), |(low, high), id| (low.min(id), high.max(id))))
}
