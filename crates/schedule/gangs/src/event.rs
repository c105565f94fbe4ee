//! What happens, and what is decided about it.

use bedplate_topology::NodeId;

use crate::{Adopted, GangRequest, GuardRecord, JobId, Misfit, Never, RunRecord, Span, Time, UsageRecord};

/// Something that has happened. Decisions count as carried out; what is reported back is their end.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Submit(Box<GangRequest>),
    Cancel(JobId),
    Hold(JobId),
    Release(JobId),
    /// Puts a running gang back in the queue.
    Requeue(JobId),
    /// A gang that comes back may start only from this time on, and on none of these nodes while there are enough others.
    Postpone {
        job: JobId,
        until: Time,
        avoid: Vec<NodeId>,
    },
    /// A gang has used up its chances: it ends as failed.
    GiveUp(JobId),
    /// All processes of a gang are gone and its nodes free, whether by itself or after [`Decision::Stop`].
    Ended {
        job: JobId,
        outcome: GangOutcome,
    },
    /// The gang wrote a checkpoint that it can start from.
    Checkpointed(JobId),
    /// An elastic gang has left nodes after [`Decision::Shrink`].
    Left {
        job: JobId,
        nodes: Vec<NodeId>,
    },
    /// A node's state was observed or ordered.
    Node {
        node: NodeId,
        order: NodeOrder,
    },
    /// Nodes out of service from one time to another.
    Reserve(Maintenance),
    Unreserve {
        name: String,
    },
    /// A gang runs already, on devices of its own: it was started before this scheduler was made. The states of
    /// nodes come before the gangs on them, and all running gangs come in one call, before anything is decided.
    Adopt(Box<Adopted>),
    /// How a job ended that this scheduler never saw, for the jobs that depend on it.
    Known {
        job: JobId,
        outcome: GangOutcome,
    },
    /// GPU time that was used before this scheduler was made.
    Used(UsageRecord),
    /// What gangs of one kind used of their limits before this scheduler was made.
    Learned(RunRecord),
    /// Who is guarded, after all waiting gangs are known.
    Guarded(GuardRecord),
    /// A gang ran once, without an interruption, and ended before this scheduler was made.
    Ran {
        request: Box<GangRequest>,
        ran: Span,
        ended: Time,
    },
    /// Nothing but time has passed.
    Tick,
}

/// How a gang ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GangOutcome {
    Succeeded,
    Failed,
    Cancelled,
    TimedOut,
    /// Its node was lost and it may not be requeued.
    NodeLost,
}

/// What to do with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeOrder {
    /// Take work again.
    Resume,
    /// Finish what runs, take nothing new.
    Drain,
    /// It is gone, with whatever ran on it.
    Fail,
    /// It will leave at this time: a spot notice, or the end of a capacity block.
    LeavesAt(Time),
    /// It is not here yet but will be from this time on; reservations count on it.
    JoinsAt(Time),
}

/// A window in which nodes do no work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maintenance {
    pub name: String,
    pub nodes: Vec<NodeId>,
    pub from: Time,
    pub until: Time,
}

/// The state of a node, as users see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeState {
    Idle,
    /// Some or all of it runs gangs.
    Allocated,
    Draining,
    Drained,
    Down,
    Maintenance,
    /// Announced, not here yet.
    Planned,
}

/// What the scheduler wants done, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    Start {
        job: JobId,
        shares: Vec<NodeShare>,
        why: StartReason,
    },
    /// Stop the whole gang; its end is reported with [`Event::Ended`].
    Stop {
        job: JobId,
        grace: Span,
        why: StopReason,
        then: Then,
    },
    /// Continue a suspended gang where it stands.
    Resume {
        job: JobId,
    },
    /// The elastic gang shall leave these nodes; reported with [`Event::Left`].
    Shrink {
        job: JobId,
        nodes: Vec<NodeId>,
        grace: Span,
        for_job: Option<JobId>,
    },
    /// The elastic gang gets these nodes too.
    Grow {
        job: JobId,
        shares: Vec<NodeShare>,
    },
    /// The elastic gang goes on without a node that is lost.
    GoOnWithout {
        job: JobId,
        lost: NodeId,
    },
    /// Lost nodes are replaced inside the gang, which restarts from its newest checkpoint unless it survives the loss.
    Swap {
        job: JobId,
        lost: Vec<NodeId>,
        shares: Vec<NodeShare>,
    },
    /// The job can never run here.
    Reject {
        job: JobId,
        why: Never,
    },
    /// What an adopted gang is said to hold cannot be: what runs of it must be stopped. The job waits again, or is
    /// dropped next where it may not.
    Disown {
        job: JobId,
        why: Misfit,
    },
    /// The job is gone and does not run: it waited, or was suspended and what is left of it must go.
    Drop {
        job: JobId,
        outcome: GangOutcome,
    },
}

/// What one node gives to a gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeShare {
    pub node: NodeId,
    /// Which of the gang's roles it plays.
    pub role: u16,
    /// One bit for each GPU of the node, by local index.
    pub devices: u64,
}

impl NodeShare {
    pub fn gpus(&self) -> u32 {
        self.devices.count_ones()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartReason {
    /// It was its turn.
    InOrder,
    /// It fits into a gap without delaying this many gangs that hold reservations.
    Backfilled { past: usize },
    /// With fewer nodes than asked for, because that ends earlier than waiting.
    Smaller { nodes: u32, asked: u32 },
    /// With more nodes than asked for, because they idle.
    Larger { nodes: u32, asked: u32 },
}

impl StartReason {
    /// At the size asked for, past this many gangs that hold reservations.
    pub(crate) fn after(past: usize) -> Self {
        if past == 0 { Self::InOrder } else { Self::Backfilled { past } }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    PreemptedBy(JobId),
    TimeLimit,
    NodeLost(NodeId),
    /// The node leaves or goes into maintenance before the gang ends.
    NodeLeaves(NodeId),
    Cancelled,
    Requeued,
    /// It has failed too often.
    GivenUp,
}

/// What becomes of a gang that is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    Requeue,
    Suspend,
    End(GangOutcome),
}
