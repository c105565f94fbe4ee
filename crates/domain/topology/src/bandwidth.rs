//! What a set of GPUs can count on between its members: one route, per GPU, at the narrowest stage.

use bedplate_units::Bandwidth;

use crate::query::bounds;
use crate::{Cluster, GpuId, Level, NodeId, SwitchId};

/// Bandwidth over the network, and the stage that sets it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleOut {
    /// One route, per GPU.
    pub per_gpu: Bandwidth,
    pub narrowest: PathStage,
}

/// A stage of the path between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathStage {
    /// The network cards of a node, shared by all its GPUs.
    Cards(NodeId),
    /// The uplinks of a switch, shared by everything below it.
    Uplinks(SwitchId),
}

impl Cluster {
    /// What each GPU of the set can send over NVLink, one route, where the set is in one scale-up domain.
    ///
    /// None where it does not, where the figure is unknown, and for fewer than two GPUs. Nodes of different
    /// kinds in one domain run at the pace of the slowest.
    pub fn scale_up_bandwidth(&self, gpus: impl IntoIterator<Item = GpuId>) -> Option<Bandwidth> {
        let (first, last) = bounds(gpus)?;
        if self.meet(first, last) != Level::Domain {
            return None;
        }
        let nodes = self.node_of(first).0..=self.node_of(last).0;
        nodes.map(|node| self.kind_of(NodeId(node)).scale_up_bandwidth).min().flatten()
    }

    /// What each GPU of the set can send to GPUs in other nodes of the set, one route, when all of them send.
    ///
    /// The rest of the cluster is assumed busy. So a GPU gets its fair share of its node's network
    /// cards, whether or not the set has the node's other GPUs, and a node gets its fair share of every
    /// uplink on the path to where the set meets: each switch divides by its oversubscription. The slowest
    /// link counts, not the mean: a ring runs at the pace of its worst hop. For a set within one node this is
    /// what it could send out of the node.
    ///
    /// None where a node's figure is unknown, and for no GPUs. Order and repetition do not matter, and
    /// nothing is allocated.
    pub fn scale_out_bandwidth<S>(&self, gpus: S) -> Option<ScaleOut>
    where
        S: IntoIterator<Item = GpuId, IntoIter: Clone>,
    {
        let gpus = gpus.into_iter();
        let (first, last) = bounds(gpus.clone())?;
        let top = self.common_switch(self.node_of(first), self.node_of(last)).map(|switch| switch.id());
        let mut route = Route { switch: None, share: 1.0, stage: None };
        let mut worst: Option<(Bandwidth, NodeId, PathStage)> = None;
        for node in self.nodes_of(gpus) {
            if route.switch != Some(self.switch_of(node)) {
                route = self.route_up(node, top);
            }
            let kind = self.kind_of(node);
            let cards = kind.scale_out_bandwidth? / f64::from(kind.accelerators);
            let stage = route.stage.map_or(PathStage::Cards(node), PathStage::Uplinks);
            let here = (cards / route.share, node, stage);
            // Ties go to the first node of the cluster, so that the answer does not depend on the set's order.
            if worst.is_none_or(|worst| (here.0, here.1) < (worst.0, worst.1)) {
                worst = Some(here);
            }
        }
        worst.map(|(per_gpu, _, narrowest)| ScaleOut { per_gpu, narrowest })
    }

    /// The factor by which uplinks between a node and the switch `top` divide its bandwidth.
    fn route_up(&self, node: NodeId, top: Option<SwitchId>) -> Route {
        let mut route = Route { switch: Some(self.switch_of(node)), share: 1.0, stage: None };
        for id in self.above(node).take_while(|id| Some(*id) != top) {
            let ratio = self.switch(id).oversubscription();
            if ratio > 1.0 {
                route.share *= ratio;
                route.stage = Some(id);
            }
        }
        route
    }

    /// The nodes of a set; each once where its GPUs are adjacent.
    fn nodes_of(&self, gpus: impl Iterator<Item = GpuId>) -> impl Iterator<Item = NodeId> {
        let mut gpus = gpus.peekable();
        std::iter::from_fn(move || {
            let node = self.node(self.node_of(gpus.next()?));
            while gpus.next_if(|gpu| node.gpus().contains(*gpu)).is_some() {}
            Some(node.id())
        })
    }
}

/// The path from nodes of one switch up to where a set meets.
struct Route {
    /// The switch of these nodes; the outer `Option` is none before the first node.
    switch: Option<Option<SwitchId>>,
    /// Product of the oversubscriptions.
    share: f64,
    /// The highest oversubscribed switch, above which nothing gets narrower.
    stage: Option<SwitchId>,
}
