//! How a gang's pods become roles: equal pods together, as many to a node as fit, and back to pods when nodes are chosen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bedplate_gangs::{NodeFilter, NodeShare, RoleRequest};
use bedplate_topology::NodeId;

use crate::action::UNSCHEDULABLE;
use crate::cluster::ClusterShape;
use crate::free_resources::{FreeResources, rounded_up};
use crate::{Constraints, Node, Pod, Resources, Waiting};

/// The nodes as pods see them, with answers that many pods share.
pub(crate) struct NodeMatcher<'a> {
    shape: &'a ClusterShape,
    nodes: Vec<&'a Node>,
    allowed: BTreeMap<Constraints, Arc<Vec<bool>>>,
    shapes: BTreeMap<(Constraints, Resources, usize), usize>,
}

/// What a gang may choose from beside what its pods ask for.
pub(crate) struct NodeChoice<'a> {
    /// It has lost a node: spares are for it.
    pub(crate) takes_spares: bool,
    /// Nodes that have failed its job.
    pub(crate) avoided: BTreeSet<&'a str>,
    /// Nodes on which others of the gang stand already.
    pub(crate) standing: BTreeSet<&'a str>,
}

/// A gang split into roles.
#[derive(Debug)]
pub(crate) struct RoleSplit {
    pub(crate) roles: Vec<RoleRequest>,
    pub(crate) filter: NodeFilter,
    parts: Vec<Part>,
}

/// The pods of one role, in order, and how many of them stand on each of its nodes.
#[derive(Debug)]
struct Part {
    uids: Vec<String>,
    per_node: usize,
}

/// Pods that ask for the same.
struct EqualPods<'p> {
    pods: Vec<&'p Pod>,
    /// By node.
    allowed: Vec<bool>,
    per_node: usize,
}

impl<'a> NodeMatcher<'a> {
    pub(crate) fn new(shape: &'a ClusterShape, nodes: &'a BTreeMap<String, Node>) -> Self {
        let nodes = shape.cluster.nodes().iter().map(|id| &nodes[shape.name(id)]).collect();
        Self { shape, nodes, allowed: BTreeMap::new(), shapes: BTreeMap::new() }
    }

    /// Roles for these pods, in the order of their ranks; or why no nodes can be found for them.
    pub(crate) fn split(
        &mut self,
        pods: &[&Pod],
        choice: &NodeChoice<'_>,
        free_resources: &FreeResources,
    ) -> Result<RoleSplit, Waiting> {
        let mut equal: BTreeMap<(&Constraints, &Resources), Vec<&Pod>> = BTreeMap::new();
        for pod in pods {
            equal.entry((&pod.constraints, &pod.needs)).or_default().push(pod);
        }
        let equal_pods: Result<Vec<EqualPods<'_>>, Waiting> =
            equal.into_values().map(|pods| self.equal_pods(pods, choice, free_resources)).collect();
        let equal_pods = equal_pods?;
        let (filter, kinds) = self.filter(&equal_pods);
        let mut split = RoleSplit { roles: Vec::new(), filter, parts: Vec::new() };
        for (each, kinds) in equal_pods.iter().zip(kinds) {
            split.add(each, kinds);
        }
        Ok(split)
    }

    fn equal_pods<'p>(
        &mut self,
        pods: Vec<&'p Pod>,
        choice: &NodeChoice<'_>,
        free_resources: &FreeResources,
    ) -> Result<EqualPods<'p>, Waiting> {
        let pod = pods[0];
        let allowed = self.allowed(&pod.constraints);
        let count = self.nodes.len();
        let unschedulable = |message: String| Waiting { reason: UNSCHEDULABLE, message };
        if !allowed.contains(&true) {
            return Err(unschedulable(format!(
                "none of {count} nodes has the labels that it requires and no taint that it does not tolerate"
            )));
        }
        let most = self.most_per_node(&allowed, &pod.needs);
        if most == 0 {
            return Err(unschedulable(format!("none of {count} nodes is large enough for it")));
        }
        // What the scheduler does not count, there must be now.
        let uncounted = Resources { gpus: 0, cpu_milli: 0, memory_bytes: 0, ..pod.needs.clone() };
        let has_rest = |index: usize| free_resources.free(NodeId(index as u32)).covers(&uncounted);
        let is_open = |index: usize| has_rest(index) && choice.allows(pod, self.nodes[index]);
        let mut allowed: Vec<bool> =
            allowed.iter().enumerate().map(|(at, is_allowed)| *is_allowed && is_open(at)).collect();
        self.prefer_spares(&mut allowed, &pods, choice, free_resources);
        if !allowed.contains(&true) {
            return Err(unschedulable("no node that it may use has a free place for one more pod, or enough of what else it asks for".to_owned()));
        }
        let most = if pod.constraints.is_apart { 1 } else { most.min(pods.len()) };
        let per_node = self.per_node(pod, pods.len(), most, &allowed, free_resources);
        Ok(EqualPods { pods, allowed, per_node })
    }

    /// The rest of a gang that stands goes to spares, where they have room for all of it.
    fn prefer_spares(
        &self,
        allowed: &mut [bool],
        pods: &[&Pod],
        choice: &NodeChoice<'_>,
        free_resources: &FreeResources,
    ) {
        if choice.standing.is_empty() || !choice.takes_spares {
            return;
        }
        let spare = |index: &usize| allowed[*index] && self.nodes[*index].is_spare;
        let spares: Vec<usize> = (0..self.nodes.len()).filter(spare).collect();
        let each = if pods[0].constraints.is_apart { 1 } else { i64::MAX };
        let fits = |index: &usize| {
            free_resources.free(NodeId(*index as u32)).fits(&pods[0].needs).clamp(0, each) as usize
        };
        if spares.iter().map(fits).fold(0, usize::saturating_add) >= pods.len() {
            allowed.fill(false);
            spares.into_iter().for_each(|index| allowed[index] = true);
        }
    }

    fn allowed(&mut self, constraints: &Constraints) -> Arc<Vec<bool>> {
        if let Some(known) = self.allowed.get(constraints) {
            return Arc::clone(known);
        }
        let allowed = Arc::new(self.nodes.iter().map(|node| constraints.allow(node)).collect::<Vec<bool>>());
        self.allowed.insert(constraints.clone(), Arc::clone(&allowed));
        allowed
    }

    /// How many of such pods the largest node holds when it is empty.
    fn most_per_node(&self, allowed: &[bool], needs: &Resources) -> usize {
        let usable = self.nodes.iter().zip(allowed).filter(|(_, is_allowed)| **is_allowed);
        usable.map(|(node, _)| node.allocatable.fits(needs)).max().unwrap_or(0).max(0) as usize
    }

    /// As many to a node as can start now; where nothing can, as many as fit on an empty one.
    fn per_node(
        &mut self,
        pod: &Pod,
        pods: usize,
        most: usize,
        allowed: &[bool],
        free_resources: &FreeResources,
    ) -> usize {
        if most == 1 {
            return 1;
        }
        let key = (pod.constraints.clone(), pod.needs.clone(), pods);
        if let Some(known) = self.shapes.get(&key) {
            return *known;
        }
        let usable = (0..self.nodes.len()).filter(|index| allowed[*index]);
        let mut fitting: Vec<usize> = usable
            .map(|index| {
                free_resources.free(NodeId(index as u32)).fits(&pod.needs).clamp(0, most as i64) as usize
            })
            .collect();
        fitting.sort_unstable();
        let nodes_with = |count: usize| fitting.len() - fitting.partition_point(|fits| *fits < count);
        let starts = (1..=most).rev().find(|count| nodes_with(*count) >= pods.div_ceil(*count));
        let chosen = starts.unwrap_or(most);
        self.shapes.insert(key, chosen);
        chosen
    }

    /// One filter for the gang and a set of kinds of machines for each role. Where roles want different nodes of one kind, nodes
    /// that one of them cannot use are left out for all.
    fn filter(&self, equal_pods: &[EqualPods<'_>]) -> (NodeFilter, Vec<u64>) {
        let kinds: Vec<u64> = self.shape.cluster.nodes().iter().map(|id| self.kind_bit(id)).collect();
        let bits = |each: &EqualPods<'_>| {
            let allowed = each.allowed.iter().zip(&kinds).filter(|(is_allowed, _)| **is_allowed);
            allowed.fold(0, |bits, (_, bit)| bits | bit)
        };
        let bits: Vec<u64> = equal_pods.iter().map(bits).collect();
        let is_usable = |index: &usize| {
            let for_some = equal_pods.iter().any(|each| each.allowed[*index]);
            let wants =
                |(each, bits): (&EqualPods<'_>, &u64)| bits & kinds[*index] == 0 || each.allowed[*index];
            for_some && equal_pods.iter().zip(&bits).all(wants)
        };
        let usable: Vec<NodeId> =
            (0..self.nodes.len()).filter(is_usable).map(|index| NodeId(index as u32)).collect();
        let is_all = usable.len() == self.nodes.len();
        // An empty list would mean all nodes: with nothing usable the gang asks for a node and avoids it.
        let avoid = if usable.is_empty() { self.shape.cluster.nodes().iter().collect() } else { Vec::new() };
        let only = if is_all { Vec::new() } else { usable };
        (NodeFilter { only, avoid, ..NodeFilter::default() }, bits)
    }

    fn kind_bit(&self, id: NodeId) -> u64 {
        let name = &self.shape.cluster.node(id).kind().name;
        let at = self.shape.cluster.kinds().iter().position(|kind| kind.name == *name).unwrap_or(0);
        1 << at.min(63)
    }
}

impl NodeChoice<'_> {
    fn allows(&self, pod: &Pod, node: &Node) -> bool {
        let is_taken = pod.constraints.is_apart && self.standing.contains(node.name.as_str());
        let is_kept = node.is_spare && !self.takes_spares;
        !is_taken && !is_kept && !self.avoided.contains(node.name.as_str())
    }
}

impl RoleSplit {
    fn add(&mut self, equal_pods: &EqualPods<'_>, kinds: u64) {
        let (whole, rest) =
            (equal_pods.pods.len() / equal_pods.per_node, equal_pods.pods.len() % equal_pods.per_node);
        let (first, last) = equal_pods.pods.split_at(whole * equal_pods.per_node);
        for (pods, nodes, per_node) in
            [(first, whole, equal_pods.per_node), (last, usize::from(rest > 0), rest)]
        {
            if nodes > 0 {
                let needs = equal_pods.pods[0].needs.times(per_node as i64);
                let role =
                    RoleRequest { per_node: rounded_up(&needs), kinds, ..RoleRequest::new(nodes as u32, 0) };
                self.roles.push(role);
                let uids = pods.iter().map(|pod| pod.uid.clone()).collect();
                self.parts.push(Part { uids, per_node });
            }
        }
    }

    /// Which pod goes where: neighbours in rank to neighbours in the network.
    pub(crate) fn assign(&self, shares: &[NodeShare]) -> BTreeMap<String, NodeId> {
        let mut places = BTreeMap::new();
        for (role, part) in self.parts.iter().enumerate() {
            let mut nodes: Vec<NodeId> = shares
                .iter()
                .filter(|share| usize::from(share.role) == role)
                .map(|share| share.node)
                .collect();
            nodes.sort_unstable();
            for (uids, node) in part.uids.chunks(part.per_node).zip(nodes) {
                places.extend(uids.iter().map(|uid| (uid.clone(), node)));
            }
        }
        places
    }
}
