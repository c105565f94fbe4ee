//! From what an importer has read to a cluster: the tree is checked, nodes are put in order, arrays filled.
//!
//! Importers fill a [`ClusterDraft`] in whatever order their format has. [`ClusterDraft::build`] refuses cycles, bad names
//! and absurd sizes, numbers switches and nodes depth-first and keeps the order of siblings, so that reading
//! what was written gives the same cluster again. Time is linear except for one sort of the names.

mod arrangement;
mod named;

use std::collections::HashMap;

use bedplate_diag::Place;
pub(crate) use bedplate_diag::shown;

use self::arrangement::Arrangement;
use crate::cluster::{AttachedStorage, Cluster, DomainTable, GpuNumbers, NONE, NodeTable, SwitchTable};
use crate::features::{FeatureSets, MAX_FEATURE_SETS};
use crate::names::Names;
use crate::{GpuId, Health, NodeKind, TopologyError};

pub(crate) use self::named::{NamedDraft, undefined};

/// More than any cluster on earth; a larger count is a mistake or an attack.
pub(crate) const MAX_GPUS: u64 = 10_000_000;
pub(crate) const MAX_NODES: u64 = 1_000_000;
pub(crate) const MAX_GPUS_PER_NODE: u64 = 1024;
const MAX_KINDS: u64 = 60_000;
/// Heights fit in a byte, and walks up the tree stay short.
const MAX_HEIGHT: u64 = 64;
const MAX_NAME: usize = 253;
const MAX_NAME_BYTES: u64 = u32::MAX as u64;

#[derive(Debug, Default)]
pub(crate) struct ClusterDraft {
    pub(crate) name: String,
    pub(crate) kinds: Kinds,
    pub(crate) nodes: Vec<DraftNode>,
    pub(crate) switches: Vec<DraftSwitch>,
    /// Names of the domains that span several nodes.
    pub(crate) domains: Vec<String>,
    pub(crate) features: FeatureSets,
    pub(crate) storage: Vec<AttachedStorage>,
    /// Failed GPUs by node and number within it, in any order.
    pub(crate) failed: Vec<(u32, u32)>,
    pub(crate) straddling: Straddling,
}

/// What to do with a domain whose nodes are attached to different switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Straddling {
    /// A person wrote it, so it is a mistake.
    #[default]
    Refuse,
    /// A provider reported it: attach the nodes to the switch they have in common.
    Lift,
}

#[derive(Debug)]
pub(crate) struct DraftNode {
    pub(crate) name: String,
    pub(crate) kind: u16,
    pub(crate) switch: Option<u32>,
    pub(crate) domain: Option<u32>,
    /// Position among the nodes of its switch.
    pub(crate) order: u32,
    pub(crate) health: Health,
    pub(crate) reason: Option<String>,
    /// Number of its set of features.
    pub(crate) features: u16,
}

#[derive(Debug)]
pub(crate) struct DraftSwitch {
    pub(crate) name: String,
    pub(crate) parent: Option<u32>,
    /// Position among its siblings.
    pub(crate) order: u32,
    pub(crate) oversubscription: f32,
}

impl DraftSwitch {
    pub(crate) fn new(name: impl Into<String>, order: u32) -> Self {
        Self { name: name.into(), parent: None, order, oversubscription: 1.0 }
    }
}

/// What an error is about, so that the importer can report its place.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Culprit {
    Whole,
    Node(usize),
    Switch(usize),
}

/// Kinds of nodes, each distinct one once.
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    list: Vec<NodeKind>,
    known: HashMap<String, u16>,
}

impl Kinds {
    /// The number of a kind. It renders the kind, so callers cache the answer for identical nodes.
    /// Beyond the limit all further kinds get the last number; `build` then refuses the draft.
    pub(crate) fn intern(&mut self, kind: NodeKind) -> u16 {
        let next = self.list.len().min(MAX_KINDS as usize) as u16;
        let list = &mut self.list;
        *self.known.entry(format!("{kind:?}")).or_insert_with(|| {
            list.push(kind);
            next
        })
    }

    pub(crate) fn get(&self, kind: u16) -> &NodeKind {
        &self.list[usize::from(kind)]
    }
}

impl ClusterDraft {
    pub(crate) fn add_node(&mut self, name: impl Into<String>, kind: u16) -> &mut DraftNode {
        let order = self.nodes.len() as u32;
        self.nodes.push(DraftNode {
            name: name.into(),
            kind,
            switch: None,
            domain: None,
            order,
            health: Health::Healthy,
            reason: None,
            features: 0,
        });
        self.nodes.last_mut().expect("one was pushed just now")
    }

    /// Checks and arranges everything. `place` returns where a culprit is in the input.
    pub(crate) fn build(mut self, place: &dyn Fn(Culprit) -> Place) -> Result<Cluster, TopologyError> {
        self.check_sizes(place)?;
        self.check_names(place)?;
        self.settle_domains(place)?;
        let children = self.children();
        self.check_connected_upwards(&children, place)?;
        let order = Arrangement::of(&self, &children);
        self.check_height(&order, place)?;
        Ok(self.into_cluster(&order))
    }

    fn check_sizes(&self, place: &dyn Fn(Culprit) -> Place) -> Result<(), TopologyError> {
        let gpus = self.nodes.iter().map(|node| u64::from(self.kinds.get(node.kind).accelerators)).sum();
        let per_node = self.kinds.list.iter().map(|kind| kind.accelerators).max().unwrap_or(0);
        let bytes = self.nodes.iter().map(|node| node.name.len() as u64).sum();
        check_limit("nodes", self.nodes.len() as u64, MAX_NODES, || place(Culprit::Whole))?;
        check_limit("switches", self.switches.len() as u64, MAX_NODES, || place(Culprit::Whole))?;
        check_limit("kinds of nodes", self.kinds.list.len() as u64, MAX_KINDS, || place(Culprit::Whole))?;
        let feature_sets = self.features.len() as u64;
        check_limit("sets of features", feature_sets, MAX_FEATURE_SETS, || place(Culprit::Whole))?;
        check_limit("GPUs in one node", per_node.into(), MAX_GPUS_PER_NODE, || place(Culprit::Whole))?;
        check_limit("GPUs", gpus, MAX_GPUS, || place(Culprit::Whole))?;
        check_limit("bytes of node names", bytes, MAX_NAME_BYTES, || place(Culprit::Whole))?;
        if self.nodes.is_empty() {
            return Err(TopologyError::Empty { place: place(Culprit::Whole) });
        }
        Ok(())
    }

    fn check_names(&self, place: &dyn Fn(Culprit) -> Place) -> Result<(), TopologyError> {
        let bad = |what, name: &str, culprit| match check_name(name) {
            Ok(()) => Ok(()),
            Err(reason) => {
                Err(TopologyError::BadName { what, name: shown(name), reason, place: place(culprit) })
            }
        };
        for (index, node) in self.nodes.iter().enumerate() {
            bad("node", &node.name, Culprit::Node(index))?;
        }
        for (index, switch) in self.switches.iter().enumerate() {
            bad("switch", &switch.name, Culprit::Switch(index))?;
        }
        self.domains.iter().try_for_each(|name| bad("domain", name, Culprit::Whole))
    }

    /// Drops domains of a single node and handles those that span several switches.
    fn settle_domains(&mut self, place: &dyn Fn(Culprit) -> Place) -> Result<(), TopologyError> {
        self.drop_single_node_domains();
        let mut common: Vec<Option<Option<u32>>> = vec![None; self.domains.len()];
        let mut straddles = vec![false; self.domains.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let Some(domain) = node.domain.map(|domain| domain as usize) else { continue };
            let first = *common[domain].get_or_insert(node.switch);
            if first != node.switch {
                if self.straddling == Straddling::Refuse {
                    return Err(self.across_switches(
                        domain,
                        [first, node.switch],
                        place(Culprit::Node(index)),
                    ));
                }
                straddles[domain] = true;
                common[domain] = Some(self.common_switch(first, node.switch));
            }
        }
        self.lift(&straddles, &common);
        Ok(())
    }

    fn drop_single_node_domains(&mut self) {
        let mut sizes = vec![0u32; self.domains.len()];
        for domain in self.nodes.iter().filter_map(|node| node.domain) {
            sizes[domain as usize] += 1;
        }
        for node in &mut self.nodes {
            node.domain = node.domain.filter(|domain| sizes[*domain as usize] > 1);
        }
    }

    fn across_switches(&self, domain: usize, switches: [Option<u32>; 2], place: Place) -> TopologyError {
        let [first, second] = switches.map(|switch| match switch {
            Some(switch) => format!("switch `{}`", self.switches[switch as usize].name),
            None => "no switch".to_owned(),
        });
        TopologyError::DomainAcrossSwitches { domain: self.domains[domain].clone(), first, second, place }
    }

    /// Attaches the nodes of straddling domains to their common switch; switches left empty disappear later.
    fn lift(&mut self, straddles: &[bool], common: &[Option<Option<u32>>]) {
        for node in &mut self.nodes {
            if let Some(domain) = node.domain.filter(|domain| straddles[*domain as usize]) {
                node.switch = common[domain as usize].flatten();
            }
        }
    }

    /// The lowest switch above both, walking up no further than the height of a valid tree.
    fn common_switch(&self, a: Option<u32>, b: Option<u32>) -> Option<u32> {
        let above = |switch: Option<u32>| {
            std::iter::successors(switch, |below| self.switches[*below as usize].parent)
                .take(MAX_HEIGHT as usize)
        };
        above(a).find(|candidate| above(b).any(|other| other == *candidate))
    }

    /// Child switches by parent, each list in sibling order; the last list holds the roots.
    fn children(&self) -> Vec<Vec<u32>> {
        let mut children = vec![Vec::new(); self.switches.len() + 1];
        for (index, switch) in self.switches.iter().enumerate() {
            children[switch.parent.map_or(self.switches.len(), |parent| parent as usize)].push(index as u32);
        }
        for list in &mut children {
            list.sort_by_key(|child| self.switches[*child as usize].order);
        }
        children
    }

    /// A switch that no root leads to is on a cycle or below one.
    fn check_connected_upwards(
        &self,
        children: &[Vec<u32>],
        place: &dyn Fn(Culprit) -> Place,
    ) -> Result<(), TopologyError> {
        let mut is_reached = vec![false; self.switches.len()];
        let mut open: Vec<u32> = children[self.switches.len()].clone();
        while let Some(switch) = open.pop() {
            is_reached[switch as usize] = true;
            open.extend(&children[switch as usize]);
        }
        match is_reached.iter().position(|reached| !reached) {
            None => Ok(()),
            Some(start) => {
                let cycle = self.cycle_above(start as u32);
                Err(TopologyError::Cycle {
                    place: place(Culprit::Switch(cycle[0] as usize)),
                    switches: cycle.iter().map(|index| self.switches[*index as usize].name.clone()).collect(),
                })
            }
        }
    }

    /// The cycle reached by walking up from `start`, beginning with its first member in the input.
    fn cycle_above(&self, start: u32) -> Vec<u32> {
        let mut is_seen = vec![false; self.switches.len()];
        let mut at = start;
        while !is_seen[at as usize] {
            is_seen[at as usize] = true;
            at = self.switches[at as usize].parent.unwrap_or(at);
        }
        let mut cycle = vec![at];
        while let Some(parent) = self.switches[at as usize].parent.filter(|parent| *parent != cycle[0]) {
            cycle.push(parent);
            at = parent;
        }
        let first = cycle.iter().enumerate().min_by_key(|(_, index)| **index).map_or(0, |(at, _)| at);
        cycle.rotate_left(first);
        // Downwards, as in files that list children under their parents.
        cycle[1..].reverse();
        cycle
    }

    fn check_height(
        &self,
        order: &Arrangement,
        place: &dyn Fn(Culprit) -> Place,
    ) -> Result<(), TopologyError> {
        let highest = order.heights.iter().copied().max().unwrap_or(0);
        check_limit("levels of switches", highest.into(), MAX_HEIGHT, || place(Culprit::Whole))
    }

    fn into_cluster(mut self, order: &Arrangement) -> Cluster {
        let (kinds, kind_of) = self.kinds_in_order(&order.nodes);
        let gpus = gpu_numbers(&kinds, &kind_of);
        Cluster {
            switches: self.switch_table(order),
            domains: self.domain_table(&order.nodes),
            features: self.features.table(order.nodes.iter().map(|node| self.nodes[*node as usize].features)),
            failed: self.failed_gpus(&order.nodes, &kinds, &kind_of),
            reasons: self.reasons(&order.nodes),
            nodes: self.node_table(order, kind_of, gpus),
            name: self.name,
            kinds,
            storage: self.storage,
        }
    }

    /// The kinds in use by first appearance, their names made distinct, and the kind of each node.
    fn kinds_in_order(&mut self, nodes: &[u32]) -> (Vec<NodeKind>, Vec<u16>) {
        let mut renumbered = vec![None; self.kinds.list.len()];
        let mut kinds: Vec<NodeKind> = Vec::new();
        let mut copies: HashMap<String, u32> = HashMap::new();
        let mut kind_of = Vec::with_capacity(nodes.len());
        for node in nodes {
            let old = usize::from(self.nodes[*node as usize].kind);
            let number = *renumbered[old].get_or_insert_with(|| {
                kinds.push(distinct(self.kinds.list[old].clone(), &mut copies));
                kinds.len() as u16 - 1
            });
            kind_of.push(number);
        }
        kinds.shrink_to_fit();
        (kinds, kind_of)
    }

    fn switch_table(&self, order: &Arrangement) -> SwitchTable {
        let drafts = || order.switches.iter().map(|index| &self.switches[*index as usize]);
        let mut names =
            Names::with_capacity(order.switches.len(), drafts().map(|switch| switch.name.len()).sum());
        drafts().for_each(|switch| names.push(&switch.name));
        SwitchTable {
            names,
            parent: order.parents.clone(),
            height: order.heights.clone(),
            first_node: order.first_nodes.clone(),
            end_node: order.end_nodes.clone(),
            oversubscription: drafts().map(|switch| switch.oversubscription).collect(),
        }
    }

    fn domain_table(&self, nodes: &[u32]) -> DomainTable {
        let mut table = DomainTable::default();
        if self.nodes.iter().all(|node| node.domain.is_none()) {
            return table;
        }
        let mut last = None;
        for (position, node) in nodes.iter().enumerate() {
            let domain = self.nodes[*node as usize].domain;
            if let Some(domain) = domain {
                if last != Some(domain) {
                    table.names.push(&self.domains[domain as usize]);
                    table.first_node.push(position as u32);
                    table.end_node.push(position as u32);
                }
                *table.end_node.last_mut().expect("a domain was opened") = position as u32 + 1;
            }
            table.of_node.push(if domain.is_some() { table.names.len() as u32 - 1 } else { NONE });
            last = domain;
        }
        table
    }

    fn reasons(&mut self, nodes: &[u32]) -> Vec<(u32, String)> {
        let reason = |(position, node): (usize, &u32)| {
            Some((position as u32, self.nodes[*node as usize].reason.take()?))
        };
        nodes.iter().enumerate().filter_map(reason).collect()
    }

    fn failed_gpus(&self, nodes: &[u32], kinds: &[NodeKind], kind_of: &[u16]) -> Vec<GpuId> {
        if self.failed.is_empty() {
            return Vec::new();
        }
        let mut first_gpu = vec![0; nodes.len()];
        let mut total = 0;
        for (node, kind) in nodes.iter().zip(kind_of) {
            first_gpu[*node as usize] = total;
            total += kinds[usize::from(*kind)].accelerators;
        }
        let mut failed: Vec<GpuId> =
            self.failed.iter().map(|(node, local)| GpuId(first_gpu[*node as usize] + local)).collect();
        failed.sort_unstable();
        failed.dedup();
        failed
    }

    fn node_table(&self, order: &Arrangement, kind: Vec<u16>, gpus: GpuNumbers) -> NodeTable {
        let drafts = || order.nodes.iter().map(|index| &self.nodes[*index as usize]);
        let mut names = Names::with_capacity(order.nodes.len(), drafts().map(|node| node.name.len()).sum());
        drafts().for_each(|node| names.push(&node.name));
        let mut by_name: Vec<u32> = (0..order.nodes.len() as u32).collect();
        by_name.sort_unstable_by(|a, b| names.get(*a).cmp(names.get(*b)));
        NodeTable {
            by_name,
            names,
            kind,
            switch: order.node_switches.clone(),
            health: drafts().map(|node| node.health).collect(),
            gpus,
        }
    }
}

fn gpu_numbers(kinds: &[NodeKind], kind_of: &[u16]) -> GpuNumbers {
    if let Some(first) = kinds.first().filter(|kind| kind.accelerators > 0)
        && kinds.iter().all(|kind| kind.accelerators == first.accelerators)
    {
        return GpuNumbers::Even { per_node: first.accelerators };
    }
    let mut sums = Vec::with_capacity(kind_of.len() + 1);
    let mut total = 0;
    sums.push(0);
    for kind in kind_of {
        total += kinds[usize::from(*kind)].accelerators;
        sums.push(total);
    }
    GpuNumbers::Sums(sums)
}

/// Renames the second kind of a name to `…-2`, and so on.
fn distinct(mut kind: NodeKind, copies: &mut HashMap<String, u32>) -> NodeKind {
    let base = kind.name.clone();
    while copies.contains_key(&kind.name) {
        let copy = copies.entry(base.clone()).or_insert(1);
        *copy += 1;
        kind.name = format!("{base}-{copy}");
    }
    copies.insert(kind.name.clone(), 1);
    kind
}

/// Names go into Slurm's files and onto command lines, so they must not need quoting there.
pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    let is_bad = |c: char| c.is_whitespace() || c.is_control() || "[]{}(),;=#\"'`\\|&<>*?$".contains(c);
    match name {
        "" => Err("it is empty"),
        _ if name.len() > MAX_NAME => Err("it is longer than 253 bytes"),
        _ if name.contains(is_bad) => {
            Err("it has a blank, a control character or one of []{}(),;=#\"'`\\|&<>*?$")
        }
        _ => Ok(()),
    }
}

pub(crate) fn check_limit(
    what: &'static str,
    count: u64,
    limit: u64,
    place: impl FnOnce() -> Place,
) -> Result<(), TopologyError> {
    if count <= limit { Ok(()) } else { Err(TopologyError::TooMany { what, count, limit, place: place() }) }
}
