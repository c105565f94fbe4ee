//! When nodes are in service: their condition, and the times for which they are closed.
//!
//! A node out of service has more than its whole capacity taken from both of its timelines.

use std::sync::Arc;

use bedplate_topology::NodeId;

use super::{Closure, Condition, NodeFleet};
use crate::{Amount, NodeOrder, NodeState, Time};

pub(crate) const OUT_OF_SERVICE: &str = "(out of service)";
const LEAVES: &str = "(leaves)";
pub(crate) const JOINS: &str = "(joins)";

impl NodeFleet {
    pub(crate) fn state(&self, node: u32, now: Time) -> NodeState {
        let entry = &self.nodes[node as usize];
        let closed = entry.closed.iter().filter(|each| each.from <= now && now < each.until);
        let closure = closed.map(|each| each.name.as_str()).min_by_key(|name| match *name {
            JOINS => 0,
            LEAVES => 1,
            _ => 2,
        });
        match (entry.condition, closure) {
            (Condition::Down, _) => NodeState::Down,
            (Condition::Draining, _) if entry.bookings.is_empty() => NodeState::Drained,
            (Condition::Draining, _) => NodeState::Draining,
            (Condition::Up, Some(JOINS)) => NodeState::Planned,
            (Condition::Up, Some(LEAVES)) => NodeState::Down,
            (Condition::Up, Some(_)) => NodeState::Maintenance,
            (Condition::Up, None) if entry.bookings.is_empty() => NodeState::Idle,
            (Condition::Up, None) => NodeState::Allocated,
        }
    }

    pub(crate) fn is_down(&self, node: u32) -> bool {
        self.nodes[node as usize].condition == Condition::Down
    }

    /// When a time-bound change of a node's service comes next.
    pub(crate) fn next_closure_change(&self, now: Time) -> Option<Time> {
        let bounds = self.nodes.iter().flat_map(|node| &node.closed).flat_map(|each| [each.from, each.until]);
        bounds.filter(|time| *time > now && *time < Time::NEVER).min()
    }

    /// The times from `at` on at which gangs must be off a node; one that drains, or is announced, lets them finish.
    pub(crate) fn closings(&self, node: u32, at: Time) -> impl Iterator<Item = Time> + '_ {
        let closed = self.nodes[node as usize].closed.iter();
        let windows = closed.filter(|each| each.name != OUT_OF_SERVICE && each.name != JOINS);
        windows.map(|closure| closure.from).filter(move |from| *from >= at)
    }

    /// The first of its closings.
    pub(crate) fn closes_after(&self, node: u32, at: Time) -> Option<Time> {
        self.closings(node, at).min()
    }

    pub(crate) fn drain(&mut self, node: u32, now: Time) {
        self.set_condition(node, Condition::Draining, now);
    }

    pub(crate) fn fail(&mut self, node: u32, now: Time) {
        self.set_condition(node, Condition::Down, now);
    }

    /// Takes work again; an announced departure is forgotten.
    pub(crate) fn resume(&mut self, node: u32, now: Time) {
        self.reopen(node, LEAVES, now);
        self.reopen(node, JOINS, now);
        self.set_condition(node, Condition::Up, now);
    }

    fn set_condition(&mut self, node: u32, condition: Condition, now: Time) {
        let before =
            std::mem::replace(&mut Arc::make_mut(&mut self.nodes[node as usize]).condition, condition);
        match (before == Condition::Up, condition == Condition::Up) {
            (true, false) => self.close(node, OUT_OF_SERVICE, now, Time::NEVER),
            (false, true) => self.reopen(node, OUT_OF_SERVICE, now),
            _ => {}
        }
    }

    /// The node leaves at a time; a later notice replaces an earlier one.
    pub(crate) fn leaves_at(&mut self, node: u32, at: Time, now: Time) {
        self.reopen(node, LEAVES, now);
        self.close(node, LEAVES, at, Time::NEVER);
    }

    pub(crate) fn joins_at(&mut self, node: u32, at: Time, now: Time) {
        self.resume(node, now);
        self.close(node, JOINS, now, at);
    }

    /// Closes a node for a time, under a name by which it can be opened again.
    pub(crate) fn close(&mut self, node: u32, name: &str, from: Time, until: Time) {
        if from >= until {
            return;
        }
        let entry = Arc::make_mut(&mut self.nodes[node as usize]);
        entry.closed.push(Closure { name: name.to_string(), from, until });
        self.take_both(node, from, until, self.more_than_all(node));
    }

    /// Ends every closure of that name.
    pub(crate) fn reopen(&mut self, node: u32, name: &str, now: Time) {
        let amount = self.more_than_all(node);
        let is_it = |closure: &mut Closure| closure.name == name;
        let closed = &mut Arc::make_mut(&mut self.nodes[node as usize]).closed;
        let ended: Vec<Closure> = closed.extract_if(.., is_it).collect();
        for closure in ended {
            self.give_both(node, closure.from.max(now), closure.until, amount);
        }
    }

    /// What a closed node has taken from it: with one GPU more than there are, so that even a gang that
    /// needs nothing of an idle node finds no room.
    fn more_than_all(&self, node: u32) -> Amount {
        self.capacity(node).plus(Amount::gpus(1))
    }

    fn closure(&self, node: u32, name: &str) -> Option<&Closure> {
        self.nodes[node as usize].closed.iter().find(|closure| closure.name == name)
    }

    /// Windows of maintenance.
    pub(crate) fn windows(&self, node: u32) -> impl Iterator<Item = &Closure> {
        let own = [OUT_OF_SERVICE, LEAVES, JOINS];
        self.nodes[node as usize].closed.iter().filter(move |closure| !own.contains(&closure.name.as_str()))
    }

    /// What became of a node since the cluster was described, as orders that make it so again.
    pub(crate) fn orders(&self, node: u32) -> Vec<NodeOrder> {
        let is_as_described = Condition::of(self.cluster.health(NodeId(node))) == Condition::Up;
        let condition = self.nodes[node as usize].condition;
        let joins = self.closure(node, JOINS).map(|closure| NodeOrder::JoinsAt(closure.until));
        let leaves = self.closure(node, LEAVES).map(|closure| NodeOrder::LeavesAt(closure.from));
        // To resume calls off what was announced, so it comes first.
        let orders = match condition {
            Condition::Up if is_as_described => [None, joins, leaves],
            Condition::Up => [Some(NodeOrder::Resume), joins, leaves],
            Condition::Draining => [joins, leaves, Some(NodeOrder::Drain)],
            Condition::Down => [joins, leaves, Some(NodeOrder::Fail)],
        };
        orders.into_iter().flatten().collect()
    }

    #[cfg(test)]
    pub(crate) fn closures(&self, node: u32) -> &[Closure] {
        &self.nodes[node as usize].closed
    }

    /// Forgets closures that are over.
    pub(crate) fn forget_closures(&mut self, now: Time) {
        for node in &mut self.nodes {
            if node.closed.iter().any(|closure| closure.until <= now) {
                Arc::make_mut(node).closed.retain(|closure| closure.until > now);
            }
        }
    }
}
