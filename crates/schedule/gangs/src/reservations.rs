//! Start reservations: which nodes are kept for which waiting gang, from when on.
//!
//! Only this file makes and withdraws reservations, so the fleet's plan holds exactly what is booked and reserved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bedplate_topology::NodeId;

use crate::amount::summed_by_node;
use crate::fleet::NodeFleet;
use crate::{Amount, JobId, Span, Time};

#[derive(Debug, Clone, Default)]
pub(crate) struct Reservations {
    by_job: BTreeMap<JobId, Reservation>,
    /// By node; shorter than the cluster where the last nodes have no reservation.
    on_nodes: Vec<Arc<BTreeSet<(Time, JobId)>>>,
}

/// A start reservation: nodes kept for a gang from a time on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    pub job: JobId,
    pub start: Time,
    pub until: Time,
    /// Nodes by role.
    pub nodes: Vec<Reserved>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved {
    pub node: NodeId,
    pub role: u16,
    pub amount: Amount,
}

impl Reservations {
    pub(crate) fn get(&self, job: JobId) -> Option<&Reservation> {
        self.by_job.get(&job)
    }

    /// The reservation of one gang, and when each node is reserved for others.
    pub(crate) fn snapshot(&self, job: JobId) -> Self {
        let own = self.by_job.get(&job).map(|reservation| (job, reservation.clone()));
        Self { by_job: own.into_iter().collect(), on_nodes: self.on_nodes.clone() }
    }

    /// How many other gangs hold one.
    pub(crate) fn of_others(&self, job: JobId) -> usize {
        self.by_job.len() - usize::from(self.by_job.contains_key(&job))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Reservation> {
        self.by_job.values()
    }

    /// When a node is reserved for which gangs, the earliest first.
    pub(crate) fn on_node(&self, node: NodeId) -> impl Iterator<Item = (Time, JobId)> {
        self.on_nodes.get(node.0 as usize).into_iter().flat_map(|starts| starts.iter().copied())
    }

    pub(crate) fn make(&mut self, reservation: Reservation, fleet: &mut NodeFleet) {
        for reserved in &reservation.nodes {
            fleet.reserve(reserved.node.0, reservation.start, reservation.until, reserved.amount);
            let place = reserved.node.0 as usize;
            if self.on_nodes.len() <= place {
                self.on_nodes.resize(place + 1, Arc::default());
            }
            Arc::make_mut(&mut self.on_nodes[place]).insert((reservation.start, reservation.job));
        }
        self.by_job.insert(reservation.job, reservation);
    }

    pub(crate) fn withdraw(&mut self, job: JobId, fleet: &mut NodeFleet) {
        let Some(reservation) = self.by_job.remove(&job) else {
            return;
        };
        for reserved in &reservation.nodes {
            fleet.unreserve(reserved.node.0, reservation.start, reservation.until, reserved.amount);
            if let Some(starts) = self.on_nodes.get_mut(reserved.node.0 as usize) {
                Arc::make_mut(starts).remove(&(reservation.start, job));
            }
        }
    }

    /// Withdraws all reservations and says what they were.
    pub(crate) fn withdraw_all(&mut self, fleet: &mut NodeFleet, now: Time) -> BTreeMap<JobId, Reservation> {
        self.on_nodes.clear();
        fleet.reset_plan(now);
        std::mem::take(&mut self.by_job)
    }
}

impl Reservation {
    pub(crate) fn length(&self) -> Span {
        self.until.since(self.start)
    }

    /// What is reserved on each node.
    pub(crate) fn amounts(&self) -> Vec<(u32, Amount)> {
        summed_by_node(self.nodes.iter().map(|reserved| (reserved.node.0, reserved.amount)))
    }

    pub(crate) fn nodes_by_role(&self, roles: usize) -> Vec<Vec<u32>> {
        let mut nodes = vec![Vec::new(); roles];
        for reserved in &self.nodes {
            nodes[usize::from(reserved.role)].push(reserved.node.0);
        }
        nodes
    }
}
