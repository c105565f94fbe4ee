//! The state machine: events change what is known, a pass over the queue decides.

use std::collections::VecDeque;
use std::sync::Arc;

use bedplate_topology::{Cluster, NodeId};

use crate::accounting::Accounting;
use crate::calendar::Calendar;
use crate::cycle::CycleRest;
use crate::dependencies::Dependencies;
use crate::eligible::EligibleSets;
use crate::fleet::NodeFleet;
use crate::guard::Allowance;
use crate::jobs::{EntryState, JobEntry, Jobs};
use crate::news::News;
use crate::ranking::Ranking;
use crate::reservations::Reservations;
use crate::resize::Targets;
use crate::victims::Eviction;
use crate::views::Views;
use crate::{
    Amount, Decision, Event, GangOutcome, GangRequest, Guard, JobId, NodeShare, NodeState, Priority, Queues,
    Reservation, Settings, Span, StopReason, Then, Time, Usage, Wait,
};

/// The scheduler of one cluster.
///
/// [`apply`](Scheduler::apply) takes an event and the time and returns decisions, which count as carried
/// out. Time never goes back. Nothing else moves it: call it with [`Event::Tick`] at the time that
/// [`wakeup`](Scheduler::wakeup) names.
#[derive(Debug, Clone)]
pub struct Scheduler {
    pub(crate) settings: Arc<Settings>,
    pub(crate) fleet: NodeFleet,
    pub(crate) jobs: Jobs,
    pub(crate) dependencies: Dependencies,
    pub(crate) reservations: Reservations,
    pub(crate) guard: Option<Guard>,
    pub(crate) allowance: Allowance,
    pub(crate) accounting: Accounting,
    pub(crate) calendar: Calendar,
    pub(crate) views: Views,
    pub(crate) eviction: Eviction,
    pub(crate) news: News,
    /// Of a cycle that is under way.
    pub(crate) rest: Option<CycleRest>,
    /// Of a cycle that is to come.
    pub(crate) ranking: Option<Ranking>,
    /// Of a long queue, where queues share quotas: as it was worked out last.
    pub(crate) borrow_order: Option<Arc<[JobId]>>,
    /// Priorities have been worked out together at least once.
    pub(crate) is_ranked: bool,
    pub(crate) targets: Targets,
    /// Jobs that may enter the queue and have not been looked at, and when some last were.
    pub(crate) admitting: VecDeque<JobId>,
    pub(crate) admitted: Time,
    pub(crate) decisions: Vec<Decision>,
}

/// Until the end of a stopping gang is reported its nodes count as taken for at least this long.
pub(crate) const SHORTEST_GRACE: Span = Span::seconds(1);

impl Scheduler {
    pub fn new(cluster: Cluster, settings: Settings) -> Self {
        assert!(!settings.partitions.is_empty() && !settings.qos.is_empty(), "there is a default of each");
        Self {
            accounting: Accounting::new(&settings, &cluster),
            views: Views::new(settings.packing, EligibleSets::default()),
            settings: Arc::new(settings),
            fleet: NodeFleet::new(cluster),
            jobs: Jobs::default(),
            dependencies: Dependencies::default(),
            reservations: Reservations::default(),
            guard: None,
            allowance: Allowance::default(),
            calendar: Calendar::default(),
            eviction: Eviction::default(),
            news: News::default(),
            rest: None,
            ranking: None,
            borrow_order: None,
            is_ranked: false,
            targets: Targets::default(),
            admitting: VecDeque::new(),
            admitted: Time::ZERO,
            decisions: Vec::new(),
        }
    }

    /// Takes in one event and decides.
    pub fn apply(&mut self, event: Event, now: Time) -> Vec<Decision> {
        self.apply_all([event], now)
    }

    /// Takes in events that happened at the same time and decides once.
    pub fn apply_all(&mut self, events: impl IntoIterator<Item = Event>, now: Time) -> Vec<Decision> {
        for event in events {
            self.handle(event, now);
        }
        // After the events: a gang that ended just in time has not exceeded its limit.
        self.advance(now);
        self.decide(now);
        std::mem::take(&mut self.decisions)
    }

    /// Makes all reservations anew, whether or not that is due, and starts what can start.
    pub fn replan(&mut self, now: Time) -> Vec<Decision> {
        self.advance(now);
        self.news.plan_is_wrong();
        self.decide(now);
        std::mem::take(&mut self.decisions)
    }

    /// The next time at which something is due although nothing happens.
    pub fn wakeup(&self) -> Option<Time> {
        let replan = self.news.next_cycle(&self.settings.backfill).filter(|_| self.jobs.is_any_waiting());
        let end = self.jobs.ends().first().map(|(time, _)| *time);
        let is_admitting = !self.admitting.is_empty() || self.dependencies.has_ended();
        let admission = is_admitting.then_some(self.admitted);
        let rest = self.rest.as_ref().map(|rest| rest.since);
        let ranking = self.ranking.as_ref().map(|ranking| ranking.since);
        [end, self.calendar.next(), replan, admission, rest, ranking].into_iter().flatten().min()
    }

    pub fn cluster(&self) -> &Cluster {
        self.fleet.cluster()
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// GPU time by account and user, of gangs that have ended and of what running ones were charged.
    pub fn usage(&self) -> &Usage {
        self.accounting.usage()
    }

    /// The queues of the site, with what running gangs use of their quotas.
    pub fn queues(&self) -> &Queues {
        self.accounting.queues()
    }

    pub fn node_state(&self, node: NodeId, now: Time) -> NodeState {
        self.fleet.state(node.0, now)
    }

    /// What a node has in all, working GPUs alone.
    pub fn capacity(&self, node: NodeId) -> Amount {
        self.fleet.capacity(node.0)
    }

    /// Local indices of the free GPUs of a node, as bits.
    pub fn free_devices(&self, node: NodeId) -> u64 {
        self.fleet.free_devices(node.0)
    }

    /// The gangs on a node.
    pub fn gangs_on(&self, node: NodeId) -> impl Iterator<Item = JobId> + '_ {
        self.fleet.bookings(node.0).iter().map(|booking| booking.job)
    }

    /// Free GPUs on nodes that are in service.
    pub fn free_gpus(&self, now: Time) -> u64 {
        self.fleet.free_gpus(now)
    }

    /// Gangs waiting for resources, in the order in which they are considered.
    pub fn queue(&self) -> impl DoubleEndedIterator<Item = JobId> + '_ {
        self.jobs.queue().iter()
    }

    pub fn queue_length(&self) -> usize {
        self.jobs.queue().len()
    }

    /// Jobs that run, in the order of their ids, with what they hold.
    pub fn running(&self) -> impl Iterator<Item = (JobId, &[NodeShare])> {
        self.jobs.iter().filter_map(|(job, entry)| Some((job, &entry.run()?.shares[..])))
    }

    pub fn request(&self, job: JobId) -> Option<&GangRequest> {
        self.jobs.get(job).map(|entry| &entry.request)
    }

    pub fn outcome(&self, job: JobId) -> Option<GangOutcome> {
        self.dependencies.outcome(job)
    }

    /// Jobs that live jobs depend on.
    pub fn awaited(&self) -> impl Iterator<Item = JobId> {
        self.dependencies.awaited()
    }

    /// The caller will not ask how a job ended, nor submit one of its number: it is forgotten once no live job depends
    /// on it. Without this, the outcome of every job is kept.
    pub fn forget(&mut self, job: JobId) {
        self.dependencies.forget(job);
    }

    /// Why a job waited when it was last looked at; nothing when it has not been, or waits no more.
    pub fn wait(&self, job: JobId) -> Option<Wait> {
        let entry = self.jobs.get(job)?;
        (entry.run().is_none() && entry.wait != Wait::NotTriedYet).then(|| self.wait_now(entry))
    }

    /// What others have done since a job was looked at, where it waits for them.
    pub(crate) fn wait_now(&self, entry: &JobEntry) -> Wait {
        self.dependencies.wait_now(&entry.request, &entry.wait)
    }

    /// What a running job holds; nothing while it does not run.
    pub fn shares(&self, job: JobId) -> &[NodeShare] {
        self.jobs.run(job).map_or(&[], |run| &run.shares)
    }

    /// When the time of a running gang is up, or was when it was suspended.
    pub fn ends_at(&self, job: JobId) -> Option<Time> {
        match &self.jobs.get(job)?.state {
            EntryState::Running(run) | EntryState::Suspended(run) => Some(run.ends()),
            EntryState::Blocked | EntryState::Queued => None,
        }
    }

    /// How often a job came back after failures and losses.
    pub fn restarts(&self, job: JobId) -> u32 {
        self.jobs.get(job).map_or(0, |entry| entry.restarts)
    }

    /// The terms of a waiting job's priority when it was last worked out.
    pub fn priority(&self, job: JobId) -> Option<Priority> {
        self.jobs.get(job).map(|entry| entry.priority)
    }

    /// What is reserved for a waiting gang.
    pub fn reservation(&self, job: JobId) -> Option<&Reservation> {
        self.reservations.get(job)
    }

    pub fn reservations(&self) -> impl Iterator<Item = &Reservation> {
        self.reservations.iter()
    }

    /// How many times less bandwidth than neighbours the nodes of a gang have between them, at worst.
    pub fn slowdown_across(&self, shares: &[NodeShare]) -> f64 {
        let nodes: Vec<u32> = shares.iter().map(|share| share.node.0).collect();
        if nodes.len() < 2 { 1.0 } else { self.fleet.level_of(&nodes).slower }
    }

    fn handle(&mut self, event: Event, now: Time) {
        self.news.count_event();
        match event {
            Event::Submit(request) => self.submit(*request, now),
            Event::Cancel(job) => self.end(job, StopReason::Cancelled, GangOutcome::Cancelled, now),
            Event::Hold(job) => self.hold(job),
            Event::Release(job) => self.release(job, now),
            Event::Requeue(job) => self.stop(job, StopReason::Requeued, Then::Requeue, now),
            Event::Postpone { job, until, avoid } => self.postpone(job, until, &avoid),
            Event::GiveUp(job) => self.end(job, StopReason::GivenUp, GangOutcome::Failed, now),
            Event::Ended { job, outcome } => self.ended(job, outcome, now),
            Event::Checkpointed(job) => self.checkpointed(job, now),
            Event::Left { job, nodes } => self.left(job, &nodes, now),
            Event::Node { node, order } => self.node_ordered(node, order, now),
            Event::Reserve(maintenance) => self.maintain(&maintenance, now),
            Event::Unreserve { name } => self.end_maintenance(&name, now),
            Event::Adopt(adopted) => self.adopt(*adopted, now),
            Event::Known { job, outcome } => self.know(job, outcome, now),
            Event::Used(record) => {
                self.accounting.restore(record, &self.settings);
                self.news.plan_is_wrong();
            }
            Event::Guarded(record) => self.restore_guard(record),
            Event::Learned(record) => self.accounting.restore_learned(record),
            Event::Ran { request, ran, ended } => self.accounting.learn(&request, ran, ended),
            Event::Tick => self.news.there_is_time(),
        }
    }
}
