//! The state machine: events change what is known, a pass over the queue decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bedplate_topology::{Cluster, NodeId};

use crate::eligible::EligibleSets;
use crate::entry::{Entry, State};
use crate::fairshare::FairShares;
use crate::fleet::Fleet;
use crate::limits::Ledger;
use crate::opening::NowView;
use crate::outlook::Outlook;
use crate::priority::Scales;
use crate::queue::Queue;
use crate::victims::Runner;
use crate::view::{Class, Shape, View};
use crate::{
    Decision, Event, JobId, Never, NodeShare, NodeState, Outcome, Priority, QosId, Request, Reservation,
    Settings, Span, StopReason, Then, Time, Usage, UserId, Wait,
};

/// The scheduler of one cluster.
///
/// [`apply`](Scheduler::apply) takes an event and the time and returns decisions, which count as carried
/// out. Time never goes back. Nothing else moves it: call it with [`Event::Tick`] at the time that
/// [`wakeup`](Scheduler::wakeup) names.
#[derive(Debug, Clone)]
pub struct Scheduler {
    pub(crate) settings: Settings,
    pub(crate) fleet: Fleet,
    pub(crate) jobs: BTreeMap<JobId, Entry>,
    pub(crate) finished: BTreeMap<JobId, Outcome>,
    pub(crate) queue: Queue,
    pub(crate) suspended: BTreeSet<JobId>,
    /// Running gangs that may change their size.
    pub(crate) elastic_running: BTreeSet<JobId>,
    /// When the time of each running gang is up.
    pub(crate) ends: BTreeSet<(Time, JobId)>,
    /// When jobs that may not begin yet may.
    pub(crate) begins: BTreeSet<(Time, JobId)>,
    /// When elastic gangs should have left nodes.
    pub(crate) departures: BTreeSet<(Time, JobId)>,
    /// When gangs must leave nodes that close.
    pub(crate) evictions: BTreeSet<(Time, JobId, NodeId)>,
    pub(crate) next_closure: Option<Time>,
    /// When a gang that may not be moved yet, or may not move others yet, may.
    pub(crate) next_preemption: Option<Time>,
    /// Gangs for which nobody could be moved in this cycle: tier, QOS and class.
    pub(crate) no_room: BTreeSet<(u16, QosId, Class)>,
    /// The running gangs as those see them who need room, until some of them change.
    pub(crate) runners: Option<Vec<Runner>>,
    /// Lost nodes on which adopted gangs are said to run.
    pub(crate) lost: BTreeSet<(JobId, NodeId)>,
    /// When an elastic gang may grow again.
    pub(crate) next_growth: Option<Time>,
    pub(crate) dependents: BTreeMap<JobId, Vec<JobId>>,
    pub(crate) namesakes: BTreeMap<(UserId, Arc<str>), BTreeSet<JobId>>,
    /// Those of them that run only one at a time.
    pub(crate) singletons: BTreeMap<(UserId, Arc<str>), BTreeSet<JobId>>,
    /// Quota that gangs took back and have not used yet: nobody borrows it meanwhile.
    pub(crate) claims: BTreeMap<JobId, Claim>,
    /// Waiting gangs that the last cycle put behind others because they would have to borrow, with the share
    /// that put them there.
    pub(crate) borrowers: BTreeMap<JobId, f64>,
    pub(crate) reservations: BTreeMap<JobId, Reservation>,
    pub(crate) reserved_on: BTreeSet<(NodeId, Time, JobId)>,
    pub(crate) eligible: EligibleSets,
    /// Whether the cluster is large enough for a class, found out once.
    pub(crate) possible: BTreeMap<Class, Option<Never>>,
    /// Look-ahead, valid within one full cycle.
    pub(crate) views: BTreeMap<Class, View>,
    pub(crate) now_views: BTreeMap<Shape, NowView>,
    /// What every class had gained when it was last tried.
    pub(crate) tried: BTreeMap<Class, u64>,
    /// Where shapes fit beside what runs, kept from cycle to cycle.
    pub(crate) outlooks: BTreeMap<Shape, Outlook>,
    pub(crate) ledger: Ledger,
    pub(crate) usage: Usage,
    pub(crate) fair_shares: FairShares,
    pub(crate) scales: Scales,
    pub(crate) cadence: Cadence,
    /// Jobs that entered the queue since the last pass.
    pub(crate) arrivals: Vec<JobId>,
    /// Nodes on which something was freed since the last pass.
    pub(crate) freed: BTreeSet<NodeId>,
    pub(crate) decisions: Vec<Decision>,
}

/// Until the end of a stopping gang is reported its nodes count as taken for at least this long.
pub(crate) const SHORTEST_GRACE: Span = Span::seconds(1);

/// GPUs of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) kind: String,
    pub(crate) gpus: u64,
}

/// When all reservations are made anew.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cadence {
    pub(crate) events: u64,
    pub(crate) last: Time,
    /// Something happened since.
    pub(crate) is_stale: bool,
    /// It cannot wait.
    pub(crate) is_urgent: bool,
}

impl Scheduler {
    pub fn new(cluster: Cluster, settings: Settings) -> Self {
        assert!(!settings.partitions.is_empty() && !settings.qos.is_empty(), "there is a default of each");
        let fleet = Fleet::new(cluster);
        Self {
            scales: Scales::new(&settings, fleet.count()),
            settings,
            fleet,
            jobs: BTreeMap::new(),
            finished: BTreeMap::new(),
            queue: Queue::default(),
            suspended: BTreeSet::new(),
            elastic_running: BTreeSet::new(),
            ends: BTreeSet::new(),
            begins: BTreeSet::new(),
            departures: BTreeSet::new(),
            evictions: BTreeSet::new(),
            next_closure: None,
            next_preemption: None,
            no_room: BTreeSet::new(),
            runners: None,
            lost: BTreeSet::new(),
            next_growth: None,
            dependents: BTreeMap::new(),
            namesakes: BTreeMap::new(),
            singletons: BTreeMap::new(),
            claims: BTreeMap::new(),
            borrowers: BTreeMap::new(),
            reservations: BTreeMap::new(),
            reserved_on: BTreeSet::new(),
            eligible: EligibleSets::default(),
            possible: BTreeMap::new(),
            views: BTreeMap::new(),
            now_views: BTreeMap::new(),
            tried: BTreeMap::new(),
            outlooks: BTreeMap::new(),
            ledger: Ledger::default(),
            usage: Usage::default(),
            fair_shares: FairShares::default(),
            cadence: Cadence::default(),
            arrivals: Vec::new(),
            freed: BTreeSet::new(),
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
        // After the events: what ended just in time has not run out of it.
        self.advance(now);
        self.decide(now);
        std::mem::take(&mut self.decisions)
    }

    /// Makes all reservations anew, whether or not that is due, and starts what can start.
    pub fn replan(&mut self, now: Time) -> Vec<Decision> {
        self.advance(now);
        self.cadence.is_urgent = true;
        self.decide(now);
        std::mem::take(&mut self.decisions)
    }

    /// The next time at which something is due although nothing happens.
    pub fn wakeup(&self) -> Option<Time> {
        let somebody_waits = !self.queue.is_empty() || !self.suspended.is_empty();
        let replan = (self.cadence.is_stale && somebody_waits)
            .then(|| self.cadence.last + self.settings.backfill.replan_after);
        let times = [
            self.ends.first().map(|(time, _)| *time),
            self.begins.first().map(|(time, _)| *time),
            self.departures.first().map(|(time, _)| *time),
            self.evictions.first().map(|(time, ..)| *time),
            self.next_closure,
            self.next_preemption,
            self.next_growth,
            replan,
        ];
        times.into_iter().flatten().min()
    }

    pub fn cluster(&self) -> &Cluster {
        &self.fleet.cluster
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// GPU time by account and user, of gangs that have ended and of what running ones were charged.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    pub fn node_state(&self, node: NodeId, now: Time) -> NodeState {
        self.fleet.state(node.0, now)
    }

    /// Local indices of the GPUs of a node that nobody holds, as bits.
    pub fn free_devices(&self, node: NodeId) -> u64 {
        self.fleet.free_devices(node.0)
    }

    /// The gangs on a node.
    pub fn gangs_on(&self, node: NodeId) -> impl Iterator<Item = JobId> + '_ {
        self.fleet.bookings(node.0).iter().map(|booking| booking.job)
    }

    /// GPUs that nobody holds, on nodes that are in service.
    pub fn free_gpus(&self, now: Time) -> u64 {
        self.fleet.free_gpus(now)
    }

    /// Gangs waiting for resources, in the order in which they are considered.
    pub fn queue(&self) -> impl DoubleEndedIterator<Item = JobId> + '_ {
        self.queue.iter()
    }

    pub fn queue_length(&self) -> usize {
        self.queue.len()
    }

    /// Jobs that run, in the order of their ids, with what they hold.
    pub fn running(&self) -> impl Iterator<Item = (JobId, &[NodeShare])> {
        self.jobs.iter().filter_map(|(job, entry)| Some((*job, &entry.run()?.shares[..])))
    }

    pub fn request(&self, job: JobId) -> Option<&Request> {
        self.jobs.get(&job).map(|entry| &entry.request)
    }

    pub fn outcome(&self, job: JobId) -> Option<Outcome> {
        self.finished.get(&job).copied()
    }

    /// Why a job waited when it was last looked at; nothing when it has not been, or waits no more.
    pub fn wait(&self, job: JobId) -> Option<&Wait> {
        let entry = self.jobs.get(&job)?;
        (entry.run().is_none() && entry.wait != Wait::NotTriedYet).then_some(&entry.wait)
    }

    /// When the time of a running gang is up, or was when it was suspended.
    pub fn ends_at(&self, job: JobId) -> Option<Time> {
        match &self.jobs.get(&job)?.state {
            State::Running(run) | State::Suspended(run) => Some(run.ends),
            State::Blocked | State::Queued => None,
        }
    }

    /// How often a job came back after failures and losses.
    pub fn restarts(&self, job: JobId) -> u32 {
        self.jobs.get(&job).map_or(0, |entry| entry.restarts)
    }

    /// The terms of a waiting job's priority when it was last worked out.
    pub fn priority(&self, job: JobId) -> Option<Priority> {
        self.jobs.get(&job).map(|entry| entry.priority)
    }

    /// What is promised to a waiting gang.
    pub fn reservation(&self, job: JobId) -> Option<&Reservation> {
        self.reservations.get(&job)
    }

    pub fn reservations(&self) -> impl Iterator<Item = &Reservation> {
        self.reservations.values()
    }

    /// How many times less bandwidth than neighbours the nodes of a gang have between them, at worst.
    pub fn slowdown_across(&self, shares: &[NodeShare]) -> f64 {
        let nodes: Vec<u32> = shares.iter().map(|share| share.node.0).collect();
        if nodes.len() < 2 { 1.0 } else { self.fleet.level_of(&nodes).slower }
    }

    fn handle(&mut self, event: Event, now: Time) {
        self.cadence.events += 1;
        match event {
            Event::Submit(request) => self.submit(*request, now),
            Event::Cancel(job) => self.cancel(job, now),
            Event::Hold(job) => self.hold(job),
            Event::Release(job) => self.release(job, now),
            Event::Requeue(job) => self.stop(job, StopReason::Requeued, Then::Requeue, now),
            Event::Ended { job, outcome } => self.ended(job, outcome, now),
            Event::Checkpointed(job) => self.checkpointed(job, now),
            Event::Left { job, nodes } => self.left(job, &nodes, now),
            Event::Node { node, order } => self.node_ordered(node, order, now),
            Event::Reserve(maintenance) => self.maintain(&maintenance, now),
            Event::Unreserve { name } => self.end_maintenance(&name, now),
            Event::Adopt(adopted) => self.adopt(*adopted, now),
            Event::Known { job, outcome } => self.know(job, outcome, now),
            Event::Used(record) => {
                self.usage.restore(record, self.settings.weights.half_life);
                self.cadence.is_urgent = true;
            }
            Event::Tick => {}
        }
    }
}
