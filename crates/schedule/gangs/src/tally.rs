//! Where the nodes are that a waiting gang might use: left out by its own request, too small, out of service, held by others, free.
//!
//! Every node of the cluster is counted once, for the first of these that holds. The cost is one look at each node and at what runs on it.

use std::collections::BTreeMap;

use bedplate_topology::NodeId;
use serde::Serialize;

use crate::fleet::NodeFleet;
use crate::view::{Eligible, RequestClass};
use crate::{GangRequest, JobId, NodeState, Partition, Span, Time};

/// The nodes of the cluster as a waiting gang meets them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeTally {
    pub all: u32,
    /// Left out by the request; its rules, with how many nodes each leaves out by itself.
    pub left_out: u32,
    pub rules: Vec<LeftOut>,
    /// Smaller, even when empty, than a node of the gang must be.
    pub too_small: u32,
    pub out_of_service: Vec<NodeId>,
    /// Have enough free for a moment; reservations are left aside.
    pub free: u32,
    /// Nodes that others hold, and who: those with the most nodes first.
    pub held: u32,
    pub holders: Vec<NodeHolder>,
}

/// A rule of a request that leaves nodes out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    pub by: String,
    pub nodes: u32,
}

/// A gang on nodes that another waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeHolder {
    pub job: JobId,
    pub nodes: u32,
    /// When it ends at the latest.
    pub until: Time,
}

impl NodeTally {
    pub(crate) fn of(
        fleet: &NodeFleet,
        request: &GangRequest,
        partition: &Partition,
        class: &RequestClass,
        eligible: &Eligible,
        now: Time,
    ) -> Self {
        let mut tally =
            Self { all: fleet.count(), rules: rules(fleet, request, partition), ..Self::default() };
        let mut holders: BTreeMap<JobId, (u32, Time)> = BTreeMap::new();
        for node in 0..fleet.count() {
            let need = class.need_on(fleet.capacity(node));
            match need {
                _ if !eligible[node as usize] => tally.left_out += 1,
                None => tally.too_small += 1,
                _ if !matches!(fleet.state(node, now), NodeState::Idle | NodeState::Allocated) => {
                    tally.out_of_service.push(NodeId(node));
                }
                Some(need) if fleet.booked(node).window_at(now, need, Span(1)).is_some() => tally.free += 1,
                Some(_) => {
                    tally.held += 1;
                    for booking in fleet.bookings(node) {
                        let (nodes, until) = holders.entry(booking.job).or_insert((0, Time::ZERO));
                        (*nodes, *until) = (*nodes + 1, (*until).max(booking.until));
                    }
                }
            }
        }
        tally.holders =
            holders.into_iter().map(|(job, (nodes, until))| NodeHolder { job, nodes, until }).collect();
        tally.holders.sort_by_key(|holder| (std::cmp::Reverse(holder.nodes), holder.until, holder.job));
        tally
    }
}

/// Those rules of a request that leave any node out.
fn rules(fleet: &NodeFleet, request: &GangRequest, partition: &Partition) -> Vec<LeftOut> {
    let (cluster, filter) = (fleet.cluster(), &request.filter);
    let mut rules = Vec::new();
    let mut add = |by: String, nodes: usize| {
        if nodes > 0 {
            rules.push(LeftOut { by, nodes: nodes as u32 });
        }
    };
    let all = fleet.count() as usize;
    if let Some(nodes) = &partition.nodes {
        add(format!("partition {}", partition.name), all.saturating_sub(nodes.len()));
    }
    if !filter.only.is_empty() {
        add("the list of nodes to use".to_owned(), all.saturating_sub(filter.only.len()));
    }
    add("the list of nodes to avoid".to_owned(), filter.avoid.len());
    for feature in &filter.features {
        let lacks = |node: &NodeId| !cluster.node(*node).features().contains(feature);
        add(format!("feature {feature}"), cluster.nodes().into_iter().filter(lacks).count());
    }
    if let Some(role) = request.roles.first() {
        let is_other = |node: &NodeId| role.kinds & (1 << fleet.kind(node.0).min(63)) == 0;
        add("the kind of node".to_owned(), cluster.nodes().into_iter().filter(is_other).count());
    }
    rules
}
