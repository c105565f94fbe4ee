//! Running gangs as possible victims: what each would leave, and what that costs.
//!
//! In a cycle many gangs look for room one after the other, so what does not depend on the asking gang is worked
//! out once, until some gang starts, stops or changes its size. Where a gang would stand is found by
//! lending: what the candidates hold counts as free from the time at which all of them are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::fleet::NodeFleet;
use crate::jobs::{GangRun, JobEntry};
use crate::opening::is_spread_enough;
use crate::place::choose;
use crate::priority::Rank;
use crate::scheduler::{SHORTEST_GRACE, Scheduler};
use crate::view::{Openings, RequestClass};
use crate::views::Fit;
use crate::{Amount, JobId, Preemption, QosId, Span, Time};

/// A running gang that could make room.
#[derive(Debug, Clone)]
pub(crate) struct VictimCandidate {
    pub(crate) job: JobId,
    /// What it would leave: all its nodes, or those it can do without.
    pub(crate) nodes: Arc<[u32]>,
    pub(crate) shrinks: bool,
    /// A suspended gang keeps its memory.
    keeps_memory: bool,
    /// GPU milliseconds lost.
    pub(crate) cost: u128,
    pub(crate) leaves_within: Span,
}

/// What other gangs must know of a running gang to see whether it could go.
#[derive(Debug, Clone)]
pub(crate) struct Runner {
    pub(crate) job: JobId,
    pub(crate) tier: u16,
    pub(crate) qos: QosId,
    pub(crate) rank: Rank,
    /// Before this it is left alone.
    pub(crate) settled: Time,
    pub(crate) for_higher: Option<VictimCandidate>,
    pub(crate) for_any: Option<VictimCandidate>,
}

/// What the search for room remembers while a cycle lasts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Eviction {
    /// Tier, QOS and class of gangs for which no gang could be moved.
    hopeless: BTreeSet<Equals>,
    /// The running gangs, valid while [`Jobs::changes`](crate::jobs::Jobs::changes) is this.
    runners: Option<(u64, Arc<[Runner]>)>,
    /// By kind of GPU, gangs of queues that borrow, likewise.
    borrowers: BTreeMap<String, (u64, Arc<[JobId]>)>,
}

/// What makes gangs equal in the search for room: tier, QOS and class.
type Equals = (u16, QosId, RequestClass);

impl Eviction {
    pub(crate) fn begin_cycle(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn borrowers(&self, kind: &str, changes: u64) -> Option<Arc<[JobId]>> {
        self.borrowers.get(kind).filter(|(at, _)| *at == changes).map(|(_, jobs)| Arc::clone(jobs))
    }

    pub(crate) fn note_borrowers(&mut self, kind: &str, changes: u64, jobs: Arc<[JobId]>) {
        self.borrowers.insert(kind.to_owned(), (changes, jobs));
    }

    pub(crate) fn is_hopeless(&self, equals: &Equals) -> bool {
        self.hopeless.contains(equals)
    }

    pub(crate) fn give_up(&mut self, equals: Equals) {
        self.hopeless.insert(equals);
    }
}

/// What a candidate holds on a node until a time.
struct Held {
    node: u32,
    /// Its place among the candidates.
    candidate: usize,
    until: Time,
    amount: Amount,
}

/// Where a class could start at a time.
#[derive(Clone)]
struct OpenAt {
    at: Time,
    starts: Vec<Time>,
    spare: Vec<u16>,
}

impl Scheduler {
    /// The running gangs at this time.
    pub(crate) fn runners(&mut self, now: Time) -> Arc<[Runner]> {
        let changes = self.jobs.changes();
        if let Some((_, runners)) = self.eviction.runners.as_ref().filter(|(at, _)| *at == changes) {
            return Arc::clone(runners);
        }
        let runners: Arc<[Runner]> = self.jobs.ends().iter().map(|(_, job)| self.runner(*job, now)).collect();
        self.eviction.runners = Some((changes, Arc::clone(&runners)));
        runners
    }

    fn runner(&self, job: JobId, now: Time) -> Runner {
        let entry = &self.jobs[job];
        let run = entry.run().expect("a gang with an end runs");
        Runner {
            job,
            tier: self.settings.partition(&entry.request).tier,
            qos: entry.request.qos,
            rank: self.rank_at(job, now),
            settled: run.started + entry.request.minimum_run_time,
            for_higher: self.left_for_higher(entry, run, now),
            for_any: self.surplus(job),
        }
    }

    fn left_for_higher(&self, entry: &JobEntry, run: &GangRun, now: Time) -> Option<VictimCandidate> {
        let job = entry.request.id;
        // One of the gangs that share a GPU frees nothing by going.
        if run.is_leaving() || entry.request.roles.iter().any(|role| role.gpu_share.is_some()) {
            return None;
        }
        match entry.request.preemption {
            Preemption::Never => self.surplus(job),
            Preemption::Shrink => {
                self.removable(job, entry.request.elastic().map_or(u32::MAX, |elastic| elastic.min))
            }
            Preemption::Requeue | Preemption::Suspend => Some(self.whole(entry, run, now)),
        }
    }

    fn whole(&self, entry: &JobEntry, run: &GangRun, now: Time) -> VictimCandidate {
        let mut nodes = run.node_ids();
        nodes.sort_unstable();
        nodes.dedup();
        VictimCandidate {
            job: entry.request.id,
            nodes: nodes.into(),
            shrinks: false,
            keeps_memory: entry.request.preemption == Preemption::Suspend,
            cost: self.cost(run, now),
            leaves_within: entry.request.grace.max(SHORTEST_GRACE),
        }
    }

    /// GPU milliseconds that are lost when a gang stops.
    pub(crate) fn cost(&self, run: &GangRun, now: Time) -> u128 {
        let lost = now.since(run.safe_at) + self.settings.preemption.restart_cost;
        u128::from(lost.0) * u128::from(run.gpus())
    }

    /// Nodes beyond what an elastic gang asked for.
    pub(crate) fn surplus(&self, job: JobId) -> Option<VictimCandidate> {
        self.removable(job, self.jobs[job].request.nodes())
    }

    /// The last nodes of an elastic gang, down to `keep`, in whole steps.
    pub(crate) fn removable(&self, job: JobId, keep: u32) -> Option<VictimCandidate> {
        let entry = &self.jobs[job];
        let step = entry.request.elastic()?.step.max(1);
        let run = entry.run().filter(|run| !run.is_leaving())?;
        let steps = run.nodes().checked_sub(keep)? / step;
        let first = run.shares.len() - (steps * step) as usize;
        let nodes: Arc<[u32]> = run.shares[first..].iter().map(|share| share.node.0).collect();
        let leaves_within = self.settings.elastic.leave_within.max(SHORTEST_GRACE);
        let candidate =
            VictimCandidate { job, nodes, shrinks: true, keeps_memory: false, cost: 0, leaves_within };
        (!candidate.nodes.is_empty()).then_some(candidate)
    }

    /// The fewest of the cheapest candidates with which the gang fits, and of those only the ones in its way.
    pub(crate) fn cheapest_victims(
        &mut self,
        class: &RequestClass,
        candidates: &[VictimCandidate],
        at: Time,
        now: Time,
    ) -> Option<(Fit, Vec<VictimCandidate>)> {
        let open = self.open_at(class, at, now);
        let held = self.held_by(candidates);
        let all = self.fits_without(class, &open, &held, candidates.len())?;
        let (mut low, mut high, mut best) = (0, candidates.len(), all);
        while low < high {
            let middle = (low + high) / 2;
            match self.fits_without(class, &open, &held, middle) {
                Some(nodes) => (high, best) = (middle, nodes),
                None => low = middle + 1,
            }
        }
        let chosen: BTreeSet<u32> = best.iter().copied().collect();
        let in_the_way = |each: &&VictimCandidate| each.nodes.iter().any(|node| chosen.contains(node));
        let victims: Vec<VictimCandidate> = candidates[..high].iter().filter(in_the_way).cloned().collect();
        (!victims.is_empty()).then_some((Fit { at, nodes: vec![best] }, victims))
    }

    /// Where a class could start at a time if no gang went.
    fn open_at(&mut self, class: &RequestClass, at: Time, now: Time) -> OpenAt {
        let count = self.fleet.count() as usize;
        let mut open = OpenAt { at, starts: vec![Time::NEVER; count], spare: vec![0; count] };
        let (starts, ..) = self.views.follow_outlook(class, &self.fleet, now).windows();
        for node in (0..count).filter(|node| starts[*node] <= at) {
            open.look(class, &self.fleet, node as u32);
        }
        open
    }

    /// Where the gang would stand if the first `gone` candidates were gone.
    fn fits_without(
        &mut self,
        class: &RequestClass,
        open: &OpenAt,
        held: &[Held],
        gone: usize,
    ) -> Option<Vec<u32>> {
        let mut open = open.clone();
        for on_node in held.chunk_by(|a, b| a.node == b.node) {
            let lent = || on_node.iter().filter(|held| held.candidate < gone);
            self.look_without(class, &mut open, on_node[0].node, lent);
        }
        let openings = open.openings();
        let eligible = self.views.eligible(class);
        let fits = openings.count(0..self.fleet.count()) >= class.nodes
            && is_spread_enough(class, &self.fleet, eligible, &openings);
        fits.then(|| choose(&self.fleet, class, &openings, self.settings.packing)).flatten()
    }

    /// Looks at a node as if some of what is held there were free.
    fn look_without<'a, I: Iterator<Item = &'a Held>>(
        &mut self,
        class: &RequestClass,
        open: &mut OpenAt,
        node: u32,
        lent: impl Fn() -> I,
    ) {
        let at = open.at;
        let freed: i64 = lent().filter(|held| held.until > at).map(|held| i64::from(held.amount.gpus)).sum();
        let enough = self.fleet.plan(node).gpus_at(at) + freed >= i64::from(class.need.gpus);
        if lent().next().is_none() || !enough || !self.views.eligible(class)[node as usize] {
            return;
        }
        let amounts = || lent().map(|held| (held.until, held.amount));
        self.fleet.while_lent(node, at, amounts, |fleet| open.look(class, fleet, node));
    }

    /// What these would free, and until when they would have held it, node by node.
    fn held_by(&self, candidates: &[VictimCandidate]) -> Vec<Held> {
        let mut all = Vec::new();
        for (place, candidate) in candidates.iter().enumerate() {
            let memory = |amount: Amount| if candidate.keeps_memory { 0 } else { amount.memory_mib };
            for node in candidate.nodes.iter() {
                let bookings = self.fleet.bookings(*node).iter();
                let own = bookings.filter(|booking| booking.job == candidate.job);
                all.extend(own.map(|booking| Held {
                    node: *node,
                    candidate: place,
                    until: booking.until,
                    amount: Amount { memory_mib: memory(booking.amount), ..booking.amount },
                }));
            }
        }
        all.sort_by_key(|held| held.node);
        all
    }
}

impl VictimCandidate {
    /// Whether it would be stopped in place, at once.
    pub(crate) fn is_suspended(&self) -> bool {
        self.keeps_memory
    }
}

impl OpenAt {
    fn look(&mut self, class: &RequestClass, fleet: &NodeFleet, node: u32) {
        let place = node as usize;
        let need = class.need_on(fleet.capacity(node));
        let window = need.and_then(|need| fleet.plan(node).window_at(self.at, need, class.length));
        self.starts[place] = window.map_or(Time::NEVER, |window| window.start);
        self.spare[place] = window.map_or(0, |window| window.spare_gpus);
    }

    fn openings(&self) -> Openings<'_> {
        Openings { at: self.at, starts: &self.starts, spare: &self.spare }
    }
}
