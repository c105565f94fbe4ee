//! The state machine: events change what is known, a pass over the queue decides.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bedplate_topology::{Cluster, NodeId};

use crate::eligible::EligibleSets;
use crate::entry::{Entry, Run, State};
use crate::fairshare::FairShares;
use crate::fleet::{Booking, Fleet};
use crate::limits::Ledger;
use crate::priority::{Rank, Scales, priority};
use crate::queue::Queue;
use crate::view::{Class, NowView, View};
use crate::{
    Decision, Event, JobId, Never, NodeShare, NodeState, Outcome, Priority, QosId, Request, Reservation,
    Settings, Span, StartReason, StopReason, Then, Time, Usage, UserId, Wait,
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
    /// When an elastic gang may grow again.
    pub(crate) next_growth: Option<Time>,
    pub(crate) dependents: BTreeMap<JobId, Vec<JobId>>,
    pub(crate) namesakes: BTreeMap<(UserId, Arc<str>), BTreeSet<JobId>>,
    /// Quota that gangs took back and have not used yet: nobody borrows it meanwhile.
    pub(crate) claims: BTreeMap<JobId, Claim>,
    /// Waiting gangs that the last cycle put behind others because they would have to borrow.
    pub(crate) borrowers: BTreeSet<JobId>,
    pub(crate) reservations: BTreeMap<JobId, Reservation>,
    pub(crate) reserved_on: BTreeSet<(NodeId, Time, JobId)>,
    pub(crate) eligible: EligibleSets,
    /// Whether the cluster is large enough for a class, found out once.
    pub(crate) possible: BTreeMap<Class, Option<Never>>,
    /// Look-ahead, valid within one full cycle.
    pub(crate) views: BTreeMap<Class, View>,
    pub(crate) now_views: BTreeMap<Class, NowView>,
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
            next_growth: None,
            dependents: BTreeMap::new(),
            namesakes: BTreeMap::new(),
            claims: BTreeMap::new(),
            borrowers: BTreeSet::new(),
            reservations: BTreeMap::new(),
            reserved_on: BTreeSet::new(),
            eligible: EligibleSets::default(),
            possible: BTreeMap::new(),
            views: BTreeMap::new(),
            now_views: BTreeMap::new(),
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
            Event::Tick => {}
        }
    }

    fn submit(&mut self, request: Request, now: Time) {
        let job = request.id;
        let twice = self.jobs.contains_key(&job) || self.finished.contains_key(&job);
        let refusal = if twice {
            Some(Never::Malformed { what: format!("{job} has been submitted before") })
        } else {
            self.never(&request)
        };
        if let Some(why) = refusal {
            self.decisions.push(Decision::Reject { job, why });
            if !twice {
                self.finished.insert(job, Outcome::Cancelled);
                let waiting = self.dependents.remove(&job).unwrap_or_default();
                self.admit_all(waiting.into(), now);
            }
            return;
        }
        let classes = self.classes_of(&request);
        let fair_share = self.fair_shares.factor(request.account, request.user);
        let priority = priority(&request, &self.settings, self.scales, fair_share, now, now);
        let rank = Rank::new(&request, &self.settings, priority.total(), now);
        if !request.name.is_empty() {
            self.namesakes.entry((request.user, request.name.clone())).or_default().insert(job);
        }
        for dependency in &request.dependencies {
            dependency.jobs.iter().for_each(|on| self.dependents.entry(*on).or_default().push(job));
        }
        let entry = Entry {
            submitted: now,
            state: State::Blocked,
            priority,
            rank,
            classes,
            wait: Wait::NotTriedYet,
            restarts: 0,
            returned: now,
            victims: Vec::new(),
            request,
        };
        self.jobs.insert(job, entry);
        self.admit(job, now);
    }

    /// Moves a job that is not running into the queue, or says what it waits for.
    pub(crate) fn admit(&mut self, job: JobId, now: Time) {
        self.admit_all([job].into(), now);
    }

    /// Admits what is blocked of these, and whoever waited for those that turn out never to run.
    fn admit_all(&mut self, mut jobs: VecDeque<JobId>, now: Time) {
        while let Some(job) = jobs.pop_front() {
            if !self.jobs.get(&job).is_some_and(|entry| matches!(entry.state, State::Blocked)) {
                continue;
            }
            match self.blocked_by(job, now) {
                Ok(None) => self.enqueue(job),
                Ok(Some(wait)) => {
                    if let Wait::NotBefore { begin } = wait {
                        self.begins.insert((begin, job));
                    }
                    self.entry_mut(job).wait = wait;
                }
                Err(why) => {
                    self.decisions.push(Decision::Reject { job, why });
                    jobs.extend(self.forget(job, Outcome::Cancelled));
                }
            }
        }
    }

    fn enqueue(&mut self, job: JobId) {
        let entry = self.jobs.get_mut(&job).expect("it is live");
        entry.state = State::Queued;
        entry.wait = Wait::NotTriedYet;
        self.queue.insert(entry.rank, job, &entry.classes);
        self.arrivals.push(job);
        self.cadence.is_stale = true;
    }

    pub(crate) fn dequeue(&mut self, job: JobId) {
        let entry = &self.jobs[&job];
        self.claims.remove(&job);
        self.queue.remove(entry.rank, job, &entry.classes);
        self.unreserve(job);
    }

    /// Takes a job out of the queue that does not start: what it was promised is free for others.
    fn withdraw(&mut self, job: JobId) {
        if let Some(reservation) = self.reservations.get(&job) {
            self.freed.extend(reservation.nodes.iter().map(|reserved| reserved.node));
        }
        self.dequeue(job);
        self.cadence.is_stale = true;
    }

    fn cancel(&mut self, job: JobId, now: Time) {
        match self.jobs.get(&job).map(|entry| &entry.state) {
            None => {}
            Some(State::Running(_)) => {
                self.stop(job, StopReason::Cancelled, Then::End(Outcome::Cancelled), now)
            }
            Some(State::Suspended(_)) => {
                self.forget_suspended(job, now);
                self.drop_waiting(job, now);
            }
            Some(State::Blocked | State::Queued) => self.drop_waiting(job, now),
        }
    }

    fn drop_waiting(&mut self, job: JobId, now: Time) {
        if self.jobs[&job].is_queued() {
            self.withdraw(job);
        }
        self.decisions.push(Decision::Drop { job, outcome: Outcome::Cancelled });
        self.finish(job, Outcome::Cancelled, now);
    }

    fn hold(&mut self, job: JobId) {
        let Some(entry) = self.jobs.get_mut(&job) else {
            return;
        };
        entry.request.is_held = true;
        if entry.is_queued() {
            self.withdraw(job);
            let entry = self.entry_mut(job);
            entry.state = State::Blocked;
            entry.wait = Wait::Held;
        }
    }

    fn release(&mut self, job: JobId, now: Time) {
        let Some(entry) = self.jobs.get_mut(&job) else {
            return;
        };
        entry.request.is_held = false;
        if matches!(entry.state, State::Blocked) {
            self.admit(job, now);
        }
    }

    fn checkpointed(&mut self, job: JobId, now: Time) {
        if let Some(run) = self.jobs.get_mut(&job).and_then(Entry::run_mut) {
            run.safe_at = now;
        }
    }

    /// Tells a running gang to stop. A second order while it stops changes only what comes then.
    pub(crate) fn stop(&mut self, job: JobId, why: StopReason, then: Then, now: Time) {
        let Some(entry) = self.jobs.get_mut(&job) else {
            return;
        };
        let grace = entry.request.grace;
        let lost_node = matches!(why, StopReason::NodeLost(_));
        let Some(run) = entry.run_mut() else {
            return;
        };
        let was_stopping = run.stopping.is_some();
        let keeps_end = matches!(run.stopping, Some(Then::End(_)));
        if !keeps_end {
            run.stopping = Some(then);
        }
        if was_stopping {
            return;
        }
        if lost_node {
            entry.restarts += 1;
        }
        self.decisions.push(Decision::Stop { job, grace, why, then });
        self.rebook(job, now + grace.max(SHORTEST_GRACE), now);
    }

    /// Changes when a running gang's time is up, on all its nodes.
    pub(crate) fn rebook(&mut self, job: JobId, ends: Time, now: Time) {
        let run = self.jobs.get_mut(&job).and_then(Entry::run_mut).expect("it runs");
        self.ends.remove(&(run.ends, job));
        run.ends = ends;
        self.ends.insert((ends, job));
        for node in run.node_ids() {
            self.fleet.rebook_until(node, job, ends, now);
        }
        self.cadence.is_stale = true;
    }

    pub(crate) fn ended(&mut self, job: JobId, outcome: Outcome, now: Time) {
        let Some(run) = self.take_run(job, now) else {
            return;
        };
        let entry = self.entry_mut(job);
        let retries_left = entry.restarts < entry.request.retries;
        match run.stopping {
            Some(Then::End(stopped)) => self.finish(job, stopped, now),
            Some(Then::Requeue) => {
                // Whoever it made room for goes first; a full cycle keeps that order.
                self.cadence.is_urgent = true;
                self.come_back(job, now);
            }
            Some(Then::Suspend) | None if outcome == Outcome::Failed && retries_left => {
                entry.restarts += 1;
                self.come_back(job, now);
            }
            Some(Then::Suspend) | None => self.finish(job, outcome, now),
        }
    }

    /// Frees all that a running gang holds.
    pub(crate) fn take_run(&mut self, job: JobId, now: Time) -> Option<Box<Run>> {
        self.charge(job, now);
        let entry = self.jobs.get_mut(&job)?;
        entry.run()?;
        let State::Running(run) = std::mem::replace(&mut entry.state, State::Blocked) else {
            return None;
        };
        self.ends.remove(&(run.ends, job));
        self.elastic_running.remove(&job);
        for share in &run.shares {
            self.fleet.release(share.node.0, job, now);
            self.freed.insert(share.node);
        }
        let gpus = run.gpus();
        self.ledger.end(&self.jobs[&job].request, gpus);
        self.give_quota(job, gpus);
        self.cadence.is_stale = true;
        Some(run)
    }

    pub(crate) fn come_back(&mut self, job: JobId, now: Time) {
        let entry = self.entry_mut(job);
        entry.returned = now;
        entry.state = State::Blocked;
        self.admit(job, now);
    }

    /// Books the GPU time of a running gang up to now.
    pub(crate) fn charge(&mut self, job: JobId, now: Time) {
        let half_life = self.settings.weights.half_life;
        let Some(entry) = self.jobs.get_mut(&job) else {
            return;
        };
        let (account, user) = (entry.request.account, entry.request.user);
        let Some(run) = entry.run_mut() else {
            return;
        };
        let gpu_ms = u128::from(now.since(run.charged).0) * u128::from(run.gpus());
        run.charged = now;
        self.usage.add(account, user, gpu_ms, now, half_life);
    }

    /// The job is over; those who waited for it are looked at again.
    pub(crate) fn finish(&mut self, job: JobId, outcome: Outcome, now: Time) {
        let waiting = self.forget(job, outcome);
        self.admit_all(waiting.into(), now);
    }

    /// Keeps nothing of a job but how it ended, and says who waited for it.
    fn forget(&mut self, job: JobId, outcome: Outcome) -> Vec<JobId> {
        let entry = self.jobs.remove(&job).expect("a job ends once");
        self.finished.insert(job, outcome);
        let mut waiting = self.dependents.remove(&job).unwrap_or_default();
        let key = (entry.request.user, entry.request.name.clone());
        if let Some(namesakes) = self.namesakes.get_mut(&key) {
            namesakes.remove(&job);
            waiting.extend(namesakes.iter().copied());
            if namesakes.is_empty() {
                self.namesakes.remove(&key);
            }
        }
        waiting
    }

    /// Starts a gang on nodes that are free for it.
    pub(crate) fn start(&mut self, job: JobId, nodes: &[Vec<u32>], now: Time, why: StartReason) {
        self.dequeue(job);
        let limit = self.planned_length(job, nodes.iter().map(|role| role.len() as u32).sum());
        let ends = now + limit;
        let mut shares = Vec::new();
        for (role, nodes) in nodes.iter().enumerate() {
            for node in nodes {
                let devices = self.fleet.book(*node, self.booking(job, role, *node, now, ends));
                shares.push(NodeShare { node: NodeId(*node), role: role as u16, devices });
            }
        }
        self.ends.insert((ends, job));
        let run = Run {
            shares: shares.clone(),
            started: now,
            ends,
            safe_at: now,
            stopping: None,
            leaving: Vec::new(),
            resized: now,
            charged: now,
        };
        let gpus = run.gpus();
        self.ledger.start(&self.jobs[&job].request, gpus);
        self.take_quota(job, gpus);
        if self.jobs[&job].request.elastic().is_some() {
            self.elastic_running.insert(job);
        }
        let entry = self.entry_mut(job);
        entry.state = State::Running(Box::new(run));
        entry.victims.clear();
        self.decisions.push(Decision::Start { job, shares, why });
        self.watch_closures(job);
    }

    pub(crate) fn booking(&self, job: JobId, role: usize, node: u32, from: Time, until: Time) -> Booking {
        let entry = &self.jobs[&job];
        let amount =
            entry.classes[role].need_on(self.fleet.capacity(node)).expect("the node is large enough");
        let asked = &entry.request.roles[role];
        Booking { job, amount, gpus: asked.per_node.gpus, from, until, devices: 0, share: asked.gpu_share }
    }

    /// How long a gang may take with so many nodes: longer than its limit when it is smaller than asked for.
    pub(crate) fn planned_length(&self, job: JobId, nodes: u32) -> Span {
        let request = &self.jobs[&job].request;
        let asked = request.nodes();
        if nodes >= asked { request.time_limit } else { request.time_limit.times(1.0 / request.speed(nodes)) }
    }

    pub(crate) fn entry_mut(&mut self, job: JobId) -> &mut Entry {
        self.jobs.get_mut(&job).expect("the job is live")
    }
}

impl Request {
    /// Throughput with so many nodes over that with the number asked for; proportional without a prediction.
    pub fn speed(&self, nodes: u32) -> f64 {
        let asked = self.nodes();
        match &self.expected {
            Some(expected) => expected.speed(nodes, asked),
            None => f64::from(nodes) / f64::from(asked.max(1)),
        }
    }
}
