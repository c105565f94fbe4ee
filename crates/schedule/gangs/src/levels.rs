//! The sets into which the levels of the cluster divide its nodes.

use std::ops::Range;

use bedplate_topology::{Cluster, Level, NodeId};

#[derive(Debug, Clone)]
pub(crate) struct LevelSets {
    pub(crate) level: Level,
    pub(crate) sets: Vec<Range<u32>>,
    /// The set of every node.
    pub(crate) of_node: Vec<u32>,
    /// How many times less bandwidth nodes of one set have than neighbours, at worst.
    pub(crate) slower: f64,
}

/// The levels at which several nodes meet, closest first.
pub(crate) fn levels_of(cluster: &Cluster) -> Vec<LevelSets> {
    let spans_nodes = |level: &Level| match level {
        Level::Gpu | Level::Node => false,
        Level::Domain => cluster.nodes().iter().any(|node| cluster.multi_node_domain(node).is_some()),
        Level::Switch(_) | Level::Cluster => true,
    };
    let mut levels: Vec<LevelSets> =
        cluster.levels().filter(spans_nodes).map(|level| LevelSets::new(cluster, level)).collect();
    let mut slower: f64 = 1.0;
    for sets in &mut levels {
        slower = slower.max(sets.slower);
        sets.slower = slower;
    }
    levels
}

impl LevelSets {
    /// The nodes of the set in which a node is.
    pub(crate) fn set_of(&self, node: u32) -> Range<u32> {
        self.sets[self.of_node[node as usize] as usize].clone()
    }

    fn new(cluster: &Cluster, level: Level) -> Self {
        let mut sets: Vec<Range<u32>> = Vec::new();
        if level == Level::Domain {
            let mut next = 0;
            while next < cluster.node_count() {
                let nodes = cluster.multi_node_domain(NodeId(next));
                let end = nodes.map_or(next + 1, |nodes| nodes.end());
                sets.push(next..end);
                next = end;
            }
        } else {
            sets.extend(cluster.sets(level).map(|set| set.nodes.start()..set.nodes.end()));
        }
        let mut of_node = vec![0; cluster.node_count() as usize];
        for (index, set) in sets.iter().enumerate() {
            set.clone().for_each(|node| of_node[node as usize] = index as u32);
        }
        Self { level, sets, of_node, slower: slower_across(cluster, level) }
    }
}

/// What leaves the switches below a level shares their uplinks: the product of their oversubscription.
fn slower_across(cluster: &Cluster, level: Level) -> f64 {
    let below = |switch: &bedplate_topology::Switch<'_>| switch.level() < level;
    let mut worst: Vec<(Level, f64)> = Vec::new();
    for switch in cluster.switches().filter(below) {
        match worst.iter_mut().find(|(at, _)| *at == switch.level()) {
            Some((_, ratio)) => *ratio = ratio.max(switch.oversubscription()),
            None => worst.push((switch.level(), switch.oversubscription())),
        }
    }
    worst.iter().map(|(_, ratio)| ratio).product()
}
