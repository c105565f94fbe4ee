//! Who answers for a failure: the job, the node, or nobody yet.
//!
//! A job that fails says little about the node it failed on, so evidence becomes a verdict only by these rules:
//!
//! - A fault that a job can cause by itself (its probe, its prolog or epilog, a stall, slow preparation) is held against the job.
//! - A node is suspected once jobs of different users, of different programs, failed there and nowhere else, and no job that had
//!   as much of the node has succeeded there since. Tasks of an array and jobs of one user are one witness, however many they are.
//! - What only one user's jobs say calls for a check of the node by our own means; only what that confirms takes the node out. On a
//!   cluster of one node a failure of jobs never does more than that.
//! - A job avoids a node that failed it twice, unless it failed on so many that the fault is its own.
//! - Every distinct node on which a job failed counts against the job; too many end it.
//! - Restarts have a budget, and the pause before each one doubles. A newer checkpoint or a long run refills the budget.
//! - A rank that says a GPU failed it is not proof, because a job can say anything: the node is suspected by the same rule, and the first
//!   few such restarts within the window are free of charge. What proves a fault is a finding of the node, or its own check.
//! - A diagnosis that names a node rests on what the job says of itself: it accuses the node like a failure of that job, and moves the job
//!   at most [`BlamePolicy::most_moves`] times within the window, which costs it no restart and never ends it.
//! - What a node finds about its own hardware takes it out at once. When more than half of the cluster finds something, the cause is not
//!   in the nodes: none is taken out, and an operator is told.
//! - A node that comes and goes is taken out.
//! - Only a part of the cluster may be out at once on our word alone; nodes whose fault is proven have a larger budget of their own, which
//!   suspicions cannot use up.
//!
//! Evidence expires after [`BlamePolicy::window`]. This crate decides nothing about placement and holds no clock; control planes ask it
//! what to do and carry it out.
//!
//! ```
//! use bedplate_blame::{Blame, JobFault, FaultKind, JobVerdict, NodeVerdict, BlamePolicy, Circumstances, Program};
//! use bedplate_gangs::{JobId, Time, UserId};
//! use bedplate_topology::NodeId;
//!
//! let mut blame = Blame::new(BlamePolicy::default());
//! let mut fails = |job, user, program| {
//!     let fault = JobFault { job: JobId(job), user: UserId(user), program: Program::of(program), gpus: 8, node: NodeId(0), kind: FaultKind::Probe };
//!     blame.job_failed(fault, || Circumstances { nodes: 8, nodes_out: 0, nodes_proven: 0 }, Time::ZERO)
//! };
//! // One user alone cannot take a node out of service, however often their jobs fail there.
//! assert_eq!(fails(1, 0, "train").node, NodeVerdict::Keep);
//! assert_eq!(fails(1, 0, "train").job, JobVerdict::Avoid(NodeId(0)));
//! assert_eq!(fails(2, 0, "train").node, NodeVerdict::Check { jobs: 2 });
//! assert_eq!(fails(3, 1, "evaluate").node, NodeVerdict::Suspect { users: 2 });
//! ```

mod evidence;
mod policy;
mod restarts;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bedplate_gangs::{JobId, Span, Time};
use bedplate_topology::NodeId;

pub use evidence::{FaultKind, JobFault, Program};
pub use policy::BlamePolicy;
pub use restarts::{Restart, RestartCause};

use evidence::FaultEvidence;
use restarts::Budget;

/// Everything that is held against jobs and nodes.
#[derive(Debug, Clone, Default)]
pub struct Blame {
    policy: BlamePolicy,
    evidence: FaultEvidence,
    budgets: BTreeMap<JobId, Budget>,
    losses: BTreeMap<NodeId, Vec<Time>>,
    /// When diagnoses made jobs start again.
    moves: BTreeMap<JobId, Vec<Time>>,
    /// When nodes were last asked to check themselves.
    checks: BTreeMap<NodeId, Time>,
}

/// What a verdict depends on beside the evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Circumstances {
    pub nodes: usize,
    /// Nodes that are out of service, for whatever reason.
    pub nodes_out: usize,
    /// Those of them that found something about themselves, or whose own check fails.
    pub nodes_proven: usize,
}

/// What follows from a job's failure on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    pub node: NodeVerdict,
    pub job: JobVerdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeVerdict {
    /// It stays in service.
    Keep,
    /// So many jobs failed there and nowhere else, but they are of one user or one program: the node is to check itself, and
    /// [`Blame::check_passed`] or [`Blame::check_failed`] is to hear of it.
    Check { jobs: usize },
    /// Jobs of this many users failed there and nowhere else: it finishes what it runs and takes nothing new.
    Suspect { users: usize },
    /// It was lost this often within [`BlamePolicy::flapping_window`].
    Flapping { losses: usize },
    /// Its own check fails.
    Unhealthy,
    /// This many nodes, more than half of the cluster, have findings at once: the cause is not in them.
    Common { nodes: usize },
    /// It should go, but too many nodes are out already: an operator must look.
    TooManyOut { out: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobVerdict {
    /// It may start again anywhere.
    GoOn,
    /// It may start again, on other nodes than this one.
    Avoid(NodeId),
    /// It failed on this many different nodes: the fault is its own.
    End { nodes: usize },
}

impl NodeVerdict {
    pub fn takes_out(self) -> bool {
        matches!(self, NodeVerdict::Suspect { .. } | NodeVerdict::Flapping { .. } | NodeVerdict::Unhealthy)
    }
}

impl Blame {
    pub fn new(policy: BlamePolicy) -> Self {
        Self { policy, ..Self::default() }
    }

    pub fn policy(&self) -> &BlamePolicy {
        &self.policy
    }

    /// A job failed on a node in a way that a job can cause. `around` is asked for only where the verdict depends on it.
    pub fn job_failed(
        &mut self,
        fault: JobFault,
        around: impl FnOnce() -> Circumstances,
        now: Time,
    ) -> Verdict {
        self.evidence.forget_before(now - self.policy.window);
        self.evidence.add(fault, now);
        Verdict { node: self.suspicion(fault.node, around, now), job: self.charge(fault) }
    }

    /// A job has succeeded on a node, of which it had so many GPUs.
    pub fn job_succeeded(&mut self, node: NodeId, gpus: u32) {
        self.evidence.succeeded(node, gpus);
    }

    /// A node's own check, for which [`NodeVerdict::Check`] called, has found nothing: what jobs said until now is not
    /// confirmed.
    pub fn check_passed(&mut self, node: NodeId) {
        self.evidence.forgive(node);
    }

    /// The node's own check fails.
    pub fn check_failed(&self, around: Circumstances) -> NodeVerdict {
        self.proven(around)
    }

    /// The node found something about itself that calls for taking it out of service. `accused` nodes have such findings now, this one
    /// included.
    pub fn found(&self, accused: usize, around: Circumstances) -> NodeVerdict {
        let is_common = accused > 1 && accused as f64 > around.nodes as f64 * self.policy.most_accused;
        match is_common {
            true => NodeVerdict::Common { nodes: accused },
            false => self.proven(around),
        }
    }

    /// A node was lost: its link closed or fell silent.
    pub fn node_lost(&mut self, node: NodeId, around: Circumstances, now: Time) -> NodeVerdict {
        let losses = self.losses.entry(node).or_default();
        losses.retain(|loss| now.since(*loss) <= self.policy.flapping_window);
        losses.push(now);
        let losses = losses.len();
        if losses < self.policy.most_losses {
            return NodeVerdict::Keep;
        }
        self.suspected(NodeVerdict::Flapping { losses }, around)
    }

    /// When a node was lost lately, to be recorded and given back to [`Blame::restore_losses`].
    pub fn losses(&self, node: NodeId) -> &[Time] {
        self.losses.get(&node).map_or(&[], Vec::as_slice)
    }

    pub fn restore_losses(&mut self, node: NodeId, losses: Vec<Time>) {
        self.losses.insert(node, losses);
    }

    /// An operator trusts a node again: nothing that happened until now counts against it. It still counts against the
    /// jobs that failed there: otherwise a job would last for ever where nodes are resumed regularly.
    pub fn forgive(&mut self, node: NodeId) {
        self.evidence.forgive(node);
        self.losses.remove(&node);
        self.checks.remove(&node);
    }

    /// A job wants to start again.
    pub fn restart(&mut self, job: JobId, cause: RestartCause, ran: Span) -> Restart {
        let reported = self.evidence.count_of_kind(job, FaultKind::ReportedDevice);
        if cause == RestartCause::ReportedDevice && reported <= self.policy.most_excused {
            return Restart::After(self.policy.pause(reported as u32));
        }
        self.budgets.entry(job).or_default().spend(cause, ran, &self.policy)
    }

    /// Whether a diagnosis may make a job start again: it was not moved too often for one already.
    pub fn may_move(&mut self, job: JobId, now: Time) -> bool {
        let oldest = now - self.policy.window;
        let Some(moves) = self.moves.get_mut(&job) else { return self.policy.most_moves > 0 };
        moves.retain(|at| *at >= oldest);
        moves.len() < self.policy.most_moves
    }

    /// A diagnosis has made a job start again.
    pub fn moved(&mut self, job: JobId, at: Time) {
        self.moves.entry(job).or_default().push(at);
    }

    /// A job has written a newer checkpoint: its budget of restarts is whole again.
    pub fn progressed(&mut self, job: JobId) {
        self.budgets.remove(&job);
    }

    /// Restarts that a job has used, as recorded by a control plane before it was restarted itself.
    pub fn restore_restarts(&mut self, job: JobId, used: u32) {
        if used > 0 {
            self.budgets.insert(job, Budget::used(used));
        }
    }

    /// A failure of a job, as recorded by a control plane before it was restarted itself.
    pub fn restore_fault(&mut self, fault: JobFault, at: Time) {
        self.evidence.add(fault, at);
    }

    /// Whether a job has failed on a node too often to be sent there again. A job that failed on many accuses itself: it
    /// avoids none of them, or it would wait for ever for others.
    pub fn avoids(&self, job: JobId, node: NodeId) -> bool {
        let accuses_itself = self.evidence.nodes_of(job) >= self.policy.most_nodes;
        !accuses_itself && self.evidence.count(job, node) >= self.policy.avoid_after
    }

    /// Restarts that a job has used since its budget was last whole.
    pub fn restarts(&self, job: JobId) -> u32 {
        self.budgets.get(&job).map_or(0, Budget::restarts)
    }

    /// A job has ended. What it says about nodes stays until it expires; its budget goes.
    pub fn job_ended(&mut self, job: JobId) {
        self.budgets.remove(&job);
        self.moves.remove(&job);
    }

    fn suspicion(&mut self, node: NodeId, around: impl FnOnce() -> Circumstances, now: Time) -> NodeVerdict {
        let witnesses = self.evidence.witnesses_against(node);
        if witnesses.jobs < self.policy.most_witnesses {
            return NodeVerdict::Keep;
        }
        let users = witnesses.users;
        if users >= self.policy.most_witnesses {
            let around = around();
            if around.nodes > 1 {
                return self.suspected(NodeVerdict::Suspect { users }, around);
            }
        }
        let checked = self.checks.get(&node);
        if checked.is_some_and(|at| now.since(*at) < self.policy.check_pause) {
            return NodeVerdict::Keep;
        }
        self.checks.insert(node, now);
        NodeVerdict::Check { jobs: witnesses.jobs }
    }

    fn charge(&self, fault: JobFault) -> JobVerdict {
        let nodes = self.evidence.nodes_of(fault.job);
        if nodes >= self.policy.most_nodes {
            return JobVerdict::End { nodes };
        }
        match self.avoids(fault.job, fault.node) {
            true => JobVerdict::Avoid(fault.node),
            false => JobVerdict::GoOn,
        }
    }

    fn suspected(&self, verdict: NodeVerdict, around: Circumstances) -> NodeVerdict {
        match around.nodes_out < part(around.nodes, self.policy.most_out) {
            true => verdict,
            false => NodeVerdict::TooManyOut { out: around.nodes_out },
        }
    }

    fn proven(&self, around: Circumstances) -> NodeVerdict {
        match around.nodes_proven < part(around.nodes, self.policy.most_proven) {
            true => NodeVerdict::Unhealthy,
            false => NodeVerdict::TooManyOut { out: around.nodes_proven },
        }
    }
}

/// A part of the cluster, at least one node.
fn part(nodes: usize, part: f64) -> usize {
    ((nodes as f64 * part) as usize).max(1)
}
