//! What is free on every node now, exactly, and how the scheduler is told of it in whole cores and mebibytes.

use std::collections::BTreeMap;

use bedplate_gangs::{Amount, NodeShare, RoleRequest, Scheduler};
use bedplate_topology::NodeId;

use crate::cluster::ClusterShape;
use crate::{Node, Resources};

/// What pods may still take of each node.
#[derive(Debug, Clone)]
pub(crate) struct FreeResources {
    free: Vec<Resources>,
}

impl FreeResources {
    /// All that is allocatable.
    pub(crate) fn of(nodes: &BTreeMap<String, Node>, shape: &ClusterShape) -> Self {
        let nodes = shape.cluster.nodes().iter().map(|id| &nodes[shape.name(id)]);
        Self { free: nodes.map(|node| node.allocatable.clone()).collect() }
    }

    pub(crate) fn take(&mut self, node: NodeId, needs: &Resources) {
        self.free[node.0 as usize].take(needs);
    }

    pub(crate) fn free(&self, node: NodeId) -> &Resources {
        &self.free[node.0 as usize]
    }

    /// Nodes of which more is taken than they have.
    pub(crate) fn overdrawn(&self) -> impl Iterator<Item = NodeId> + '_ {
        let indexed = self.free.iter().enumerate();
        indexed.filter(|(_, free)| free.is_overdrawn()).map(|(index, _)| NodeId(index as u32))
    }

    /// Takes what is needed on every node, all of it or nothing.
    pub(crate) fn take_all(&mut self, needs: &BTreeMap<NodeId, Resources>) -> bool {
        let fits = needs.iter().all(|(node, needs)| self.free(*node).covers(needs));
        if fits {
            needs.iter().for_each(|(node, needs)| self.take(*node, needs));
        }
        fits
    }
}

/// What the scheduler has not been told of yet, node by node: gangs are entered one after the other, and no
/// two get the same of a node even where the API server says so.
pub(crate) struct Ledger {
    left: Vec<Amount>,
    devices: Vec<u64>,
}

impl Ledger {
    pub(crate) fn of(scheduler: &Scheduler) -> Self {
        let nodes = || scheduler.cluster().nodes().iter();
        Self {
            left: nodes().map(|node| scheduler.capacity(node)).collect(),
            devices: nodes().map(|node| scheduler.free_devices(node)).collect(),
        }
    }

    /// Enters what a gang holds: its roles and shares as the scheduler wants them.
    pub(crate) fn enter(&mut self, held: &BTreeMap<NodeId, Resources>) -> (Vec<RoleRequest>, Vec<NodeShare>) {
        let claims = held.iter().map(|(node, needs)| (*node, rounded_up(needs)));
        self.enter_amounts(claims)
    }

    /// Enters all that is not free, so that the scheduler sees no more than there is.
    pub(crate) fn enter_rest(
        &mut self,
        free_resources: &FreeResources,
        nodes: impl Iterator<Item = NodeId>,
    ) -> (Vec<RoleRequest>, Vec<NodeShare>) {
        let rest = |node: NodeId| {
            let (left, free) = (self.left[node.0 as usize], rounded_down(free_resources.free(node)));
            let less = |left: u32, free: u32| left.saturating_sub(free);
            Amount {
                gpus: left.gpus.saturating_sub(free.gpus),
                cpus: left.cpus.saturating_sub(free.cpus),
                memory_mib: less(left.memory_mib, free.memory_mib),
            }
        };
        let claims: Vec<(NodeId, Amount)> = nodes.map(|node| (node, rest(node))).collect();
        self.enter_amounts(claims.into_iter())
    }

    fn enter_amounts(
        &mut self,
        claims: impl Iterator<Item = (NodeId, Amount)>,
    ) -> (Vec<RoleRequest>, Vec<NodeShare>) {
        let mut by_amount: BTreeMap<Amount, Vec<(NodeId, u64)>> = BTreeMap::new();
        for (node, amount) in claims {
            let amount = amount.least(self.left[node.0 as usize]);
            let (devices, count) = lowest(self.devices[node.0 as usize], amount.gpus);
            let amount = Amount { gpus: count, ..amount };
            if amount != Amount::ZERO {
                self.devices[node.0 as usize] &= !devices;
                let left = self.left[node.0 as usize].minus(amount);
                self.left[node.0 as usize] = left.expect("no more than what is left");
                by_amount.entry(amount).or_default().push((node, devices));
            }
        }
        let mut roles = Vec::new();
        let mut shares = Vec::new();
        for (role, (amount, nodes)) in by_amount.into_iter().enumerate() {
            roles.push(RoleRequest { per_node: amount, ..RoleRequest::new(nodes.len() as u32, 0) });
            let share = |(node, devices)| NodeShare { node, role: role as u16, devices };
            shares.extend(nodes.into_iter().map(share));
        }
        (roles, shares)
    }
}

/// The lowest bits of a set, as many as wanted or as there are.
fn lowest(set: u64, wanted: u16) -> (u64, u16) {
    let (mut chosen, mut count, mut rest) = (0, 0, set);
    while count < wanted && rest != 0 {
        chosen |= rest & rest.wrapping_neg();
        rest &= rest - 1;
        count += 1;
    }
    (chosen, count)
}

const MIB: i64 = 1 << 20;

/// No less than is needed, in the scheduler's units.
pub(crate) fn rounded_up(needs: &Resources) -> Amount {
    let up = |amount: i64, unit: i64| amount.max(0).saturating_add(unit - 1) / unit;
    amount(needs.gpus.max(0), up(needs.cpu_milli, 1000), up(needs.memory_bytes, MIB))
}

/// No more than is free.
fn rounded_down(free: &Resources) -> Amount {
    amount(free.gpus.max(0), free.cpu_milli.max(0) / 1000, free.memory_bytes.max(0) / MIB)
}

fn amount(gpus: i64, cpus: i64, memory_mib: i64) -> Amount {
    Amount {
        gpus: u16::try_from(gpus).unwrap_or(u16::MAX),
        cpus: u16::try_from(cpus).unwrap_or(u16::MAX),
        memory_mib: u32::try_from(memory_mib).unwrap_or(u32::MAX),
    }
}
