//! Which nodes a request may use at all: partition, kind, features, names. Few different answers, so each
//! is worked out once.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fleet::NodeFleet;
use crate::view::{Eligible, NodeSetRule, RequestClass};
use crate::{Never, NodeFilter, Partition, PartitionId};

#[derive(Debug, Clone, Default)]
pub(crate) struct EligibleSets {
    sets: Vec<Arc<Eligible>>,
    index: BTreeMap<(PartitionId, u64, NodeFilter), u32>,
    /// Why the cluster is too small for a class, if it is.
    too_few: BTreeMap<RequestClass, Option<Never>>,
}

impl EligibleSets {
    pub(crate) fn get(&self, id: u32) -> &Eligible {
        &self.sets[id as usize]
    }

    /// The sets alone, for classes that have been found already.
    pub(crate) fn snapshot(&self) -> Self {
        Self { sets: self.sets.clone(), ..Self::default() }
    }

    pub(crate) fn find_or_add(
        &mut self,
        fleet: &NodeFleet,
        partition: (PartitionId, &Partition),
        kinds: u64,
        filter: &NodeFilter,
    ) -> u32 {
        let key = (partition.0, kinds, filter.clone());
        if let Some(id) = self.index.get(&key) {
            return *id;
        }
        let id = self.sets.len() as u32;
        self.sets.push(Arc::new(eligible(fleet, partition.1, kinds, filter)));
        self.index.insert(key, id);
        id
    }

    pub(crate) fn too_few_nodes(&mut self, class: RequestClass, fleet: &NodeFleet) -> Option<Never> {
        let eligible = &self.sets[class.eligible as usize];
        self.too_few.entry(class).or_insert_with(|| too_few_nodes(&class, fleet, eligible)).clone()
    }
}

fn too_few_nodes(class: &RequestClass, fleet: &NodeFleet, eligible: &Eligible) -> Option<Never> {
    let fits = |node: &u32| eligible[*node as usize] && class.need_on(fleet.capacity(*node)).is_some();
    let matching = (0..fleet.count()).filter(fits).count() as u32;
    if matching < class.nodes {
        return Some(Never::NoSuchNodes { needed: class.nodes, per_node: class.need, matching });
    }
    let (level, segment) = match class.rule {
        NodeSetRule::OneSet { level } => (level, None),
        NodeSetRule::Segments { level, segment } => (level, Some(segment)),
        NodeSetRule::Anywhere | NodeSetRule::Spread { .. } => return None,
    };
    let sets = &fleet.levels()[usize::from(level)];
    let (level, needed) = (sets.level, class.nodes);
    let counts = sets.sets.iter().map(|set| set.clone().filter(fits).count() as u32);
    match segment {
        None => {
            let largest = counts.max().unwrap_or(0);
            (largest < needed).then_some(Never::LevelTooSmall { level, needed, largest })
        }
        Some(segment) => {
            let (needed, possible) = (needed / segment, counts.map(|count| count / segment).sum());
            (possible < needed).then_some(Never::TooFewSegments { level, segment, needed, possible })
        }
    }
}

fn eligible(fleet: &NodeFleet, partition: &Partition, kinds: u64, filter: &NodeFilter) -> Eligible {
    let mut set = match &partition.nodes {
        None => vec![true; fleet.count() as usize],
        Some(nodes) => only(fleet, nodes),
    };
    if !filter.only.is_empty() {
        let named = only(fleet, &filter.only);
        set.iter_mut().zip(named).for_each(|(flag, named)| *flag &= named);
    }
    for node in filter.avoid.iter().filter(|node| node.0 < fleet.count()) {
        set[node.0 as usize] = false;
    }
    for node in fleet.cluster().nodes() {
        let is_kind = kinds & (1 << fleet.kind(node.0).min(63)) != 0;
        let features = fleet.cluster().node(node).features();
        let has_features = filter.features.iter().all(|wanted| features.contains(wanted));
        set[node.0 as usize] &= is_kind && has_features;
    }
    set
}

fn only(fleet: &NodeFleet, nodes: &[bedplate_topology::NodeId]) -> Eligible {
    let mut set = vec![false; fleet.count() as usize];
    nodes.iter().filter(|node| node.0 < fleet.count()).for_each(|node| set[node.0 as usize] = true);
    set
}
