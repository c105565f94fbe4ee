//! Gangs that run already when the scheduler hears of them: a restarted control plane takes them over.
//!
//! An adopted gang holds exactly the devices it is said to hold and counts as if it had been started here:
//! its limit and its GPU time run from its start, quotas and limits count it, jobs that depend on it wait.
//! It stops only for what happened since: a limit that has passed, a node that is gone. Rules that became tighter
//! meanwhile do not end it.
//!
//! What it is said to hold may be impossible. Then it is disowned: whatever still runs of it must be stopped
//! by the caller, and the job goes back to the queue.

use std::fmt;

use bedplate_topology::NodeId;

use crate::fleet::Booking;
use crate::jobs::{EntryState, GangRun};
use crate::scheduler::Scheduler;
use crate::{Amount, Decision, GangRequest, JobId, Never, NodeShare, Then, Time};

/// A gang with everything a scheduler must know of its run so far.
#[derive(Debug, Clone, PartialEq)]
pub struct Adopted {
    pub request: GangRequest,
    /// What it holds, in the order in which it got it: an elastic gang gives up the last first.
    pub shares: Vec<NodeShare>,
    pub started: Time,
    pub state: AdoptedState,
    /// When its newest checkpoint was written.
    pub checkpointed: Option<Time>,
    /// When its time is up: its limit after its start unless something else is said, as it must be of a gang
    /// that changed its size, was suspended or stops.
    pub ends: Option<Time>,
    /// When it last changed its size.
    pub resized: Option<Time>,
    /// Up to when its GPU time is part of the usage that was restored; none of it when absent.
    pub charged: Option<Time>,
    /// Nodes that it was told to leave.
    pub leaving: Option<Leaving>,
}

impl Adopted {
    /// A gang that has run undisturbed since its start.
    pub fn new(request: GangRequest, shares: Vec<NodeShare>, started: Time) -> Self {
        Self {
            request,
            shares,
            started,
            state: AdoptedState::Runs,
            checkpointed: None,
            ends: None,
            resized: None,
            charged: None,
            leaving: None,
        }
    }
}

/// What an adopted gang was last told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdoptedState {
    Runs,
    /// It was told to stop and its end has not been reported.
    Stops(Then),
    /// It was stopped in place; its time runs on from `charged`, when that was.
    Suspended,
}

/// Nodes that an elastic gang was told to leave, and until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaving {
    pub nodes: Vec<NodeId>,
    pub until: Time,
}

/// Why a gang cannot hold what it is said to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misfit {
    /// It is said to hold nothing.
    NoNodes,
    UnknownNode(NodeId),
    /// It has no role of this number.
    UnknownRole(u16),
    /// Another number of GPUs on a node than its role has.
    OtherGpus(NodeId),
    /// The node never had room for what the gang asks for, or not those GPUs.
    TooSmall(NodeId),
    /// Another gang holds what it should hold on this node.
    Taken(NodeId),
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfit::NoNodes => write!(f, "it is said to run and to hold no node"),
            Misfit::UnknownNode(node) => write!(f, "the cluster has no node {}", node.0),
            Misfit::UnknownRole(role) => write!(f, "it has no role {role}"),
            Misfit::OtherGpus(node) => {
                write!(f, "its role has another number of GPUs than on node {}", node.0)
            }
            Misfit::TooSmall(node) => write!(f, "node {} does not have what it is said to hold", node.0),
            Misfit::Taken(node) => write!(f, "another gang holds what it should hold on node {}", node.0),
        }
    }
}

impl Scheduler {
    pub(crate) fn adopt(&mut self, adopted: Adopted, now: Time) {
        self.news.plan_is_wrong();
        let job = adopted.request.id;
        let refusal = self.submitted_before(job).or_else(|| {
            let what = self.malformed(&adopted.request)?;
            Some(Never::Malformed { what: what.into() })
        });
        if let Some(why) = refusal {
            return self.refuse(job, why, now);
        }
        let Adopted { request, shares, started, state, checkpointed, ends, resized, charged, leaving } =
            adopted;
        self.enter(request, now);
        let ends = ends.unwrap_or_else(|| started + self.planned_length(job, shares.len() as u32));
        if let Err(why) = self.book_adopted(job, &shares, state, ends, now) {
            return self.disown(job, why, now);
        }
        let mut run = GangRun::new(shares, started, ends);
        run.safe_at = checkpointed.unwrap_or(started);
        run.resized = resized.unwrap_or(started);
        run.charged = charged.unwrap_or(started);
        match state {
            AdoptedState::Suspended => self.jobs.suspend(job, run),
            AdoptedState::Runs => self.count_running(job, run),
            AdoptedState::Stops(then) => {
                run.stopping = Some(then);
                self.count_running(job, run);
            }
        }
        self.keep_leaving(job, leaving, now);
        self.watch_closures(job);
        self.note_lost_nodes(job);
    }

    /// Books exactly what a gang holds, all of it or nothing.
    fn book_adopted(
        &mut self,
        job: JobId,
        shares: &[NodeShare],
        state: AdoptedState,
        ends: Time,
        now: Time,
    ) -> Result<(), Misfit> {
        if shares.is_empty() {
            return Err(Misfit::NoNodes);
        }
        for (booked, share) in shares.iter().enumerate() {
            let fits = self.adopted_booking(job, share, state, ends, now).and_then(|booking| {
                let is_free = self.fleet.is_free_for(share.node.0, &booking);
                if is_free { Ok(booking) } else { Err(Misfit::Taken(share.node)) }
            });
            match fits {
                Ok(booking) => self.fleet.book_exactly(share.node.0, booking),
                Err(why) => {
                    shares[..booked].iter().for_each(|share| self.fleet.release(share.node.0, job, now));
                    return Err(why);
                }
            }
        }
        Ok(())
    }

    fn adopted_booking(
        &self,
        job: JobId,
        share: &NodeShare,
        state: AdoptedState,
        ends: Time,
        now: Time,
    ) -> Result<Booking, Misfit> {
        let entry = &self.jobs[job];
        let (node, role) = (share.node, usize::from(share.role));
        if node.0 >= self.fleet.count() {
            return Err(Misfit::UnknownNode(node));
        }
        let asked = entry.request.roles.get(role).ok_or(Misfit::UnknownRole(share.role))?;
        if share.gpus() != u32::from(asked.per_node.gpus) {
            return Err(Misfit::OtherGpus(node));
        }
        let has_room = entry.classes[role].need_on(self.fleet.capacity(node.0)).is_some();
        if !has_room || !self.fleet.has_devices(node.0, share.devices) {
            return Err(Misfit::TooSmall(node));
        }
        let whole = self.booking(job, role, node.0, now, ends);
        Ok(match state {
            AdoptedState::Suspended => whole.suspended(),
            AdoptedState::Runs | AdoptedState::Stops(_) => Booking { devices: share.devices, ..whole },
        })
    }

    fn keep_leaving(&mut self, job: JobId, leaving: Option<Leaving>, now: Time) {
        let (Some(run), Some(Leaving { mut nodes, until })) = (self.jobs.run_mut(job), leaving) else {
            return;
        };
        nodes.retain(|node| run.shares.iter().any(|share| share.node == *node));
        run.leaving.clone_from(&nodes);
        for node in nodes {
            self.fleet.rebook_until(node.0, job, until, now);
            self.calendar.departures.add(until, job);
        }
    }

    /// Nodes that were lost in the meantime are dealt with once all gangs are known: the nodes that could
    /// replace them may be those of the next.
    fn note_lost_nodes(&mut self, job: JobId) {
        let entry = &self.jobs[job];
        let run = match &entry.state {
            EntryState::Running(run) if run.stopping.is_none() => run,
            EntryState::Suspended(run) => run,
            _ => return,
        };
        for node in run.shares.iter().map(|share| share.node).filter(|node| self.fleet.is_down(node.0)) {
            self.news.node_lost(job, node);
        }
    }

    pub(crate) fn save_from_lost_nodes(&mut self, now: Time) {
        while let Some((job, node)) = self.news.next_lost() {
            if self.gangs_on(node).any(|each| each == job) {
                self.save(job, node, now);
            }
        }
    }

    fn disown(&mut self, job: JobId, why: Misfit, now: Time) {
        self.decisions.push(Decision::Disown { job, why });
        self.come_back_or_end(job, now);
    }
}

impl Booking {
    /// What is left of it while the gang is suspended: its memory, for as long as it takes.
    pub(crate) fn suspended(self) -> Self {
        let amount = Amount { gpus: 0, cpus: 0, ..self.amount };
        Self { amount, gpus: 0, share: None, until: Time::NEVER, devices: 0, ..self }
    }
}
