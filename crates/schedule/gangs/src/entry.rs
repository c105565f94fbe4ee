//! What the scheduler remembers of every live job.

use bedplate_topology::NodeId;

use crate::amount::summed_by_node;
use crate::priority::Rank;
use crate::view::Class;
use crate::{Amount, JobId, NodeShare, Priority, Request, Span, Then, Time, Wait};

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) request: Request,
    pub(crate) submitted: Time,
    pub(crate) state: State,
    pub(crate) priority: Priority,
    pub(crate) rank: Rank,
    /// One per role.
    pub(crate) classes: Vec<Class>,
    /// Why it did not start when it was last tried.
    pub(crate) wait: Wait,
    /// Restarts after failures and losses, not after preemption.
    pub(crate) restarts: u32,
    /// When it last came back to the queue.
    pub(crate) returned: Time,
    /// Gangs that stop for it.
    pub(crate) victims: Vec<JobId>,
}

#[derive(Debug, Clone)]
pub(crate) enum State {
    /// Not in the queue yet: held, too early, or waiting for other jobs.
    Blocked,
    Queued,
    Running(Box<Run>),
    /// Stopped in place: its GPUs are free, its place is remembered.
    Suspended(Box<Run>),
}

#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) shares: Vec<NodeShare>,
    pub(crate) started: Time,
    /// When its time is up.
    pub(crate) ends: Time,
    /// Since when work would be lost: the start or the newest checkpoint.
    pub(crate) safe_at: Time,
    /// Set once it was told to stop.
    pub(crate) stopping: Option<Then>,
    /// Nodes it was told to leave.
    pub(crate) leaving: Vec<NodeId>,
    pub(crate) resized: Time,
    /// Up to when its GPU time has been booked.
    pub(crate) charged: Time,
}

impl Run {
    pub(crate) fn nodes(&self) -> u32 {
        self.shares.len() as u32
    }

    pub(crate) fn gpus(&self) -> u64 {
        self.shares.iter().map(|share| u64::from(share.gpus())).sum()
    }

    pub(crate) fn node_ids(&self) -> Vec<u32> {
        self.shares.iter().map(|share| share.node.0).collect()
    }
}

impl Entry {
    pub(crate) fn run(&self) -> Option<&Run> {
        match &self.state {
            State::Running(run) => Some(run),
            _ => None,
        }
    }

    pub(crate) fn run_mut(&mut self) -> Option<&mut Run> {
        match &mut self.state {
            State::Running(run) => Some(run),
            _ => None,
        }
    }

    pub(crate) fn is_queued(&self) -> bool {
        matches!(self.state, State::Queued)
    }
}

/// Nodes promised to a gang from a time on.
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

impl Reservation {
    pub(crate) fn length(&self) -> Span {
        self.until.since(self.start)
    }

    /// What is promised on each node.
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
