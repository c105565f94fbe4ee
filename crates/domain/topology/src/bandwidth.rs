//! What a set of GPUs can count on between its members: one way, per GPU, at the narrowest stage.

use bedplate_units::Bandwidth;

use crate::query::bounds;
use crate::{Cluster, GpuId, Level, NodeId, SwitchId};

/// Bandwidth over the network, and the stage that sets it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleOut {
    /// One way, per GPU.
    pub per_gpu: Bandwidth,
    pub narrowest: Stage,
}

/// A stage of the way between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The network cards of a node, shared by the set's GPUs in it.
    Cards(NodeId),
    /// The uplinks of a switch, shared by everything below it.
    Uplinks(SwitchId),
}

impl Cluster {
    /// What each GPU of the set can send over NVLink, one way, where the set lies in one scale-up domain.
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

    /// What each GPU of the set can send to GPUs in other nodes of the set, one way, when all of them send.
    ///
    /// A node's network cards are shared by the set's GPUs in that node. Every switch on the way to where
    /// the set meets divides by its oversubscription: the rest of the cluster is taken to be busy, so a node
    /// gets its fair share of an uplink and no more. The slowest link counts, not the mean: a ring runs at
    /// the pace of its worst hop. For a set within one node this is what it could send out of the node.
    ///
    /// None where a node's figure is unknown, and for no GPUs. An ascending set costs no allocation.
    pub fn scale_out_bandwidth<S>(&self, gpus: S) -> Option<ScaleOut>
    where
        S: IntoIterator<Item = GpuId, IntoIter: Clone>,
    {
        let gpus = gpus.into_iter();
        if gpus.clone().is_sorted() {
            return self.narrowest(gpus);
        }
        let mut sorted: Vec<GpuId> = gpus.collect();
        sorted.sort_unstable();
        self.narrowest(sorted.into_iter())
    }

    fn narrowest(&self, ascending: impl Iterator<Item = GpuId> + Clone) -> Option<ScaleOut> {
        let (first, last) = bounds(ascending.clone())?;
        let top = self.common_switch(self.node_of(first), self.node_of(last)).map(|switch| switch.id());
        let mut way = Way { switch: None, share: 1.0, stage: None };
        let mut worst: Option<ScaleOut> = None;
        for (node, gpus) in self.by_node(ascending) {
            if way.switch != Some(self.switch_of(node)) {
                way = self.way_up(node, top);
            }
            let cards = self.kind_of(node).scale_out_bandwidth? / f64::from(gpus);
            let stage = way.stage.map_or(Stage::Cards(node), Stage::Uplinks);
            let here = ScaleOut { per_gpu: cards / way.share, narrowest: stage };
            if worst.is_none_or(|worst| here.per_gpu < worst.per_gpu) {
                worst = Some(here);
            }
        }
        worst
    }

    /// How far the uplinks between a node and the switch `top` thin its bandwidth out.
    fn way_up(&self, node: NodeId, top: Option<SwitchId>) -> Way {
        let mut way = Way { switch: Some(self.switch_of(node)), share: 1.0, stage: None };
        for id in self.above(node).take_while(|id| Some(*id) != top) {
            let ratio = self.switch(id).oversubscription();
            if ratio > 1.0 {
                way.share *= ratio;
                way.stage = Some(id);
            }
        }
        way
    }

    /// The nodes of an ascending set with the number of its distinct GPUs in each.
    fn by_node(&self, ascending: impl Iterator<Item = GpuId>) -> impl Iterator<Item = (NodeId, u32)> {
        let mut gpus = ascending.peekable();
        std::iter::from_fn(move || {
            let mut last = gpus.next()?;
            let node = self.node(self.node_of(last));
            let mut count = 1;
            while let Some(gpu) = gpus.next_if(|gpu| node.gpus().contains(*gpu)) {
                count += u32::from(gpu != last);
                last = gpu;
            }
            Some((node.id(), count))
        })
    }
}

/// The way from nodes of one switch up to where a set meets.
struct Way {
    /// Whose nodes these are; outer none before the first node.
    switch: Option<Option<SwitchId>>,
    /// Product of the oversubscriptions.
    share: f64,
    /// The highest oversubscribed switch, behind which nothing gets narrower.
    stage: Option<SwitchId>,
}
