//! The order of a draft: switches and nodes numbered depth-first, nodes of one domain side by side.

use super::ClusterDraft;
use crate::cluster::NONE;

/// Switches and nodes in depth-first order. Switches without nodes are left out.
#[derive(Debug, Default)]
pub(super) struct Arrangement {
    /// Draft indices in the new order.
    pub(super) switches: Vec<u32>,
    pub(super) nodes: Vec<u32>,
    /// By new switch number.
    pub(super) parents: Vec<u32>,
    pub(super) heights: Vec<u8>,
    pub(super) first_nodes: Vec<u32>,
    pub(super) end_nodes: Vec<u32>,
    /// By new node number.
    pub(super) node_switches: Vec<u32>,
}

impl Arrangement {
    pub(super) fn of(draft: &ClusterDraft, children: &[Vec<u32>]) -> Self {
        let own = own_nodes(draft);
        let mut order = Self::default();
        let mut open: Vec<Step> =
            children[draft.switches.len()].iter().rev().map(|s| Step::Enter(*s, NONE)).collect();
        while let Some(step) = open.pop() {
            match step {
                Step::Enter(switch, parent) => {
                    let number = order.enter(switch, parent, &own[switch as usize]);
                    open.push(Step::Leave(number));
                    let below = children[switch as usize].iter().rev();
                    open.extend(below.map(|child| Step::Enter(*child, number)));
                }
                Step::Leave(number) => order.leave(number),
            }
        }
        order.hang(&own[draft.switches.len()], NONE);
        order.shrink();
        order
    }

    fn enter(&mut self, switch: u32, parent: u32, nodes: &[u32]) -> u32 {
        let number = self.switches.len() as u32;
        self.switches.push(switch);
        self.parents.push(parent);
        self.heights.push(1);
        self.first_nodes.push(self.nodes.len() as u32);
        self.end_nodes.push(0);
        self.hang(nodes, number);
        number
    }

    fn hang(&mut self, nodes: &[u32], switch: u32) {
        self.nodes.extend(nodes);
        self.node_switches.resize(self.nodes.len(), switch);
    }

    /// Everything below is known now. A switch without nodes is removed: it is the newest entry, because
    /// everything below it had no nodes either.
    fn leave(&mut self, number: u32) {
        let index = number as usize;
        if self.first_nodes[index] as usize == self.nodes.len() {
            self.truncate(index);
            return;
        }
        self.end_nodes[index] = self.nodes.len() as u32;
        if let Some(parent) = self.heights.get(self.parents[index] as usize).copied() {
            let height = self.heights[index].saturating_add(1).max(parent);
            self.heights[self.parents[index] as usize] = height;
        }
    }

    fn truncate(&mut self, switches: usize) {
        self.switches.truncate(switches);
        self.parents.truncate(switches);
        self.heights.truncate(switches);
        self.first_nodes.truncate(switches);
        self.end_nodes.truncate(switches);
    }

    fn shrink(&mut self) {
        self.parents.shrink_to_fit();
        self.heights.shrink_to_fit();
        self.first_nodes.shrink_to_fit();
        self.end_nodes.shrink_to_fit();
        self.node_switches.shrink_to_fit();
    }
}

enum Step {
    /// A draft switch and the new number of its parent.
    Enter(u32, u32),
    /// The new number of a switch.
    Leave(u32),
}

/// Nodes by draft switch, the last list for nodes without one. Nodes of a domain are adjacent, at the
/// position of the first of them.
fn own_nodes(draft: &ClusterDraft) -> Vec<Vec<u32>> {
    let mut own = vec![Vec::new(); draft.switches.len() + 1];
    let mut first_of_domain = vec![u32::MAX; draft.domains.len()];
    for (index, node) in draft.nodes.iter().enumerate() {
        own[node.switch.map_or(draft.switches.len(), |switch| switch as usize)].push(index as u32);
        if let Some(domain) = node.domain {
            let first = &mut first_of_domain[domain as usize];
            *first = node.order.min(*first);
        }
    }
    for list in &mut own {
        list.sort_by_key(|index| {
            let node = &draft.nodes[*index as usize];
            (
                node.domain.map_or(node.order, |domain| first_of_domain[domain as usize]),
                node.domain,
                node.order,
            )
        });
    }
    own
}
