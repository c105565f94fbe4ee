//! Sizes by goodput: what each elastic gang should have now, and the way there.
//!
//! Gangs that can stand on the same nodes form a pool: the running elastic ones, and whatever waits, in its order. `sizes` shares out what they hold and what
//! is free. A waiting gang starts at its share. A running one gives up nodes only when another gang needs them, and gets more
//! only where that pays back the pause that a change of size costs. Reservations, limits and quotas hold as for any other start.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::admission::rounded;
use crate::calendar::Alarm;
use crate::find::Horizon;
use crate::jobs::{GangRun, JobEntry};
use crate::scheduler::Scheduler;
use crate::settings::SizesBy;
use crate::sizes::{Change, Claim, share_out};
use crate::victims::VictimCandidate;
use crate::view::{NodeSetRule, RequestClass};
use crate::views::Fit;
use crate::{Elastic, GangRequest, JobId, Preemption, Span, StartReason, Time};

/// What the newest plan of sizes gives each gang; 0 where it has no room.
#[derive(Debug, Clone, Default)]
pub(crate) struct Targets {
    nodes: BTreeMap<JobId, u32>,
}

/// Waiting gangs beyond these have no part in the plan of sizes.
const MOST_WAITING: usize = 256;

impl Targets {
    fn get(&self, job: JobId) -> Option<u32> {
        self.nodes.get(&job).copied()
    }
}

impl Scheduler {
    pub(crate) fn sizes_by_goodput(&self) -> bool {
        self.settings.elastic.is_allowed && self.settings.elastic.by == SizesBy::Goodput
    }

    /// Works out the sizes for the gangs that run and those that wait, in their order.
    pub(crate) fn plan_sizes(&mut self, waiting: &[JobId], now: Time) {
        self.targets = Targets::default();
        if !self.sizes_by_goodput() {
            return;
        }
        for (class, gangs) in self.pools(waiting) {
            let held: u32 = gangs.iter().filter_map(|job| self.jobs.run(*job)).map(GangRun::nodes).sum();
            let nodes = held + self.views.open_now(&class, &self.fleet, now);
            let reach = self.within_reach(&class, &gangs, now);
            let claim = |job: JobId| Some((job, self.claim(job, &reach, now)?));
            let (gangs, claims): (Vec<JobId>, Vec<Claim>) = gangs.into_iter().filter_map(claim).unzip();
            self.targets.nodes.extend(gangs.into_iter().zip(share_out(&claims, nodes)));
        }
    }

    /// The nodes that gangs of a pool hold or that are open to them, one flag each.
    fn within_reach(&mut self, class: &RequestClass, gangs: &[JobId], now: Time) -> Vec<bool> {
        let mut reach = self.views.are_open_now(class, &self.fleet, now);
        let runs = gangs.iter().filter_map(|job| self.jobs.run(*job));
        runs.flat_map(GangRun::node_ids).for_each(|node| reach[node as usize] = true);
        reach
    }

    /// Gangs by what they need of a node, where any of them is elastic: those that run before those that wait.
    fn pools(&self, waiting: &[JobId]) -> BTreeMap<RequestClass, Vec<JobId>> {
        let mut pools: BTreeMap<RequestClass, Vec<JobId>> = BTreeMap::new();
        let running = self
            .jobs
            .elastic()
            .iter()
            .filter(|job| self.jobs.run(**job).is_some_and(|run| !run.is_leaving()));
        // An order that was worked out in slices may name gangs that have started or gone since.
        let queued = waiting.iter().filter(|job| self.jobs.get(**job).is_some_and(JobEntry::is_queued));
        let waiting = queued.take(MOST_WAITING).filter(|job| self.may_claim(&self.jobs[**job]));
        for job in running.chain(waiting) {
            pools.entry(self.pool_of(*job)).or_default().push(*job);
        }
        pools.retain(|_, gangs| gangs.iter().any(|job| self.jobs[*job].request.elastic().is_some()));
        pools
    }

    fn pool_of(&self, job: JobId) -> RequestClass {
        // Free at this very moment: how long for is looked at when nodes are chosen.
        RequestClass { nodes: 1, length: Span(1), rule: NodeSetRule::Anywhere, ..self.jobs[job].classes[0] }
    }

    fn may_claim(&self, entry: &JobEntry) -> bool {
        entry.classes.len() == 1
            && entry.request.roles[0].gpu_share.is_none()
            && self.limited_by(entry.request.id, self.smallest_gpus(&entry.request)).is_none()
    }

    /// The sizes that a gang can have now; none where it waits for more than is within reach.
    fn claim(&self, job: JobId, reach: &[bool], now: Time) -> Option<Claim> {
        let entry = &self.jobs[job];
        let most = self.most_by_rule(entry, reach);
        let mut sizes = match entry.request.elastic() {
            Some(elastic) => self.useful_sizes(&entry.request, elastic),
            None => vec![(entry.request.nodes(), 1.0)],
        };
        let held = entry.run().map_or(0, GangRun::nodes);
        // The more nodes, the sooner a limit is reached.
        let can_have = |size: &(u32, f64)| size.0 <= held || size.0 <= most && self.allows(entry, size.0);
        sizes.truncate(sizes.partition_point(can_have));
        let kept = entry.run().filter(|run| self.protected_until(entry, run) > now);
        let least = kept.map_or(0, |run| run.nodes().min(entry.request.nodes()));
        sizes.retain(|size| size.0 >= least);
        if sizes.is_empty() && held > 0 {
            sizes.push((held, entry.request.speed(held)));
        }
        (!sizes.is_empty()).then(|| Claim::new(sizes, self.settings.elastic.power))
    }

    /// Whether limits and quotas let a gang have this many nodes, more than it holds.
    fn allows(&self, entry: &JobEntry, nodes: u32) -> bool {
        let gpus = |nodes: u32| u64::from(nodes) * u64::from(entry.request.roles[0].per_node.gpus);
        match entry.run() {
            Some(run) => {
                let more = gpus(nodes - run.nodes());
                self.accounting.allows_more(&entry.request, more, &self.settings)
            }
            None => self.limited_by(entry.request.id, gpus(nodes)).is_none(),
        }
    }

    /// The most nodes within reach that a gang may take together; one that runs stays in its set.
    fn most_by_rule(&self, entry: &JobEntry, reach: &[bool]) -> u32 {
        let count = |set: Range<u32>| set.filter(|node| reach[*node as usize]).count() as u32;
        let sets = |level: u8| self.fleet.levels()[usize::from(level)].sets.iter().cloned();
        match (entry.classes[0].rule, entry.run()) {
            (NodeSetRule::Anywhere | NodeSetRule::Spread { .. }, _) => u32::MAX,
            (rule @ NodeSetRule::OneSet { .. }, Some(run)) => count(self.home_of(rule, &run.node_ids())),
            (NodeSetRule::OneSet { level }, None) => sets(level).map(count).max().unwrap_or(0),
            (NodeSetRule::Segments { level, segment }, _) => {
                let segment = segment.max(1);
                sets(level).map(|set| count(set) / segment * segment).sum()
            }
        }
    }

    /// Sizes with their speeds: all up to what was asked for, and larger ones whose further nodes bring their part on average. Single
    /// nodes are not looked at: a prediction that is a little off at one size would end the range there.
    fn useful_sizes(&self, request: &GangRequest, elastic: Elastic) -> Vec<(u32, f64)> {
        let asked = request.nodes();
        let brings = |nodes: u32, speed: f64| {
            (speed - 1.0) * f64::from(asked) / f64::from(nodes.saturating_sub(asked))
        };
        let is_useful = |(nodes, speed): &(u32, f64)| {
            *nodes <= asked || brings(*nodes, *speed) >= self.settings.elastic.least_gain
        };
        let most = self.fleet.count().max(elastic.min);
        let sizes = elastic.sizes().take_while(|nodes| *nodes <= most);
        sizes.map(|nodes| (nodes, request.speed(nodes))).filter(is_useful).collect()
    }

    /// The class of a gang with this many nodes.
    fn class_with(&self, job: JobId, nodes: u32) -> RequestClass {
        let length = rounded(self.planned_length(job, nodes), self.settings.backfill.resolution);
        RequestClass { nodes, length, ..self.jobs[job].classes[0] }
    }

    /// How long reservations of a gang last: those at the size asked for, as long as the searches for it.
    pub(crate) fn reserved_length(&self, job: JobId, nodes: u32) -> Span {
        let entry = &self.jobs[job];
        if nodes == entry.request.nodes() {
            entry.classes[0].length
        } else {
            self.class_with(job, nodes).length
        }
    }

    /// The class for which room is made: that of the planned size.
    pub(crate) fn wanted_class(&self, job: JobId) -> RequestClass {
        let asked = self.jobs[job].classes[0];
        match self.planned_size(job) {
            Some(target) if target != asked.nodes => self.class_with(job, target),
            _ => asked,
        }
    }

    /// The size that the plan has for an elastic gang.
    fn planned_size(&self, job: JobId) -> Option<u32> {
        self.jobs[job].request.elastic()?;
        self.targets.get(job).filter(|target| *target > 0)
    }

    /// Starts a waiting gang at the size that the plan has for it, or the next smaller one for which nodes are free. `waiting` is when
    /// it could start as asked, and `past` how many it passes.
    pub(crate) fn start_as_planned(
        &mut self,
        job: JobId,
        waiting: Option<&Fit>,
        past: usize,
        now: Time,
    ) -> bool {
        let Some((target, elastic)) = self.planned_size(job).zip(self.jobs[job].request.elastic()) else {
            return false;
        };
        let request = &self.jobs[job].request;
        let (asked, gpus) = (request.nodes(), u64::from(request.roles[0].per_node.gpus));
        let done_waiting = waiting.map(|fit| fit.at + request.time_limit);
        let sizes: Vec<u32> = elastic.sizes().take_while(|size| *size <= target).collect();
        for size in sizes.into_iter().rev() {
            let class = if size == asked { self.jobs[job].classes[0] } else { self.class_with(job, size) };
            // Smaller is not better than to wait where nodes come free soon; what the plan says is.
            if size < target && done_waiting.is_some_and(|done| now + class.length >= done) {
                return false;
            }
            if self.limited_by(job, u64::from(size) * gpus).is_some() {
                continue;
            }
            if let Some(fit) = self.find_class(&class, Horizon::Now, now) {
                let why = self.why_with(job, size, StartReason::after(past));
                self.start(job, &fit.nodes, now, why);
                return true;
            }
        }
        false
    }

    /// Why a gang starts with this many nodes, where `as_asked` is the reason at the size asked for.
    pub(crate) fn why_with(&self, job: JobId, nodes: u32, as_asked: StartReason) -> StartReason {
        let asked = self.jobs[job].request.nodes();
        match nodes.cmp(&asked) {
            Ordering::Less => StartReason::Smaller { nodes, asked },
            Ordering::Equal => as_asked,
            Ordering::Greater => StartReason::Larger { nodes, asked },
        }
    }

    /// What a running gang can do without for another: nodes beyond what it asked for, and for a gang of no lower standing nodes beyond
    /// its planned size.
    pub(crate) fn excess_for(&self, job: JobId, other: JobId, now: Time) -> Option<VictimCandidate> {
        let entry = &self.jobs[job];
        let asked = entry.request.nodes();
        let may_shrink = entry.run().is_some_and(|run| self.gives_from(entry, run) <= now);
        // A gang that the plan had no room for may have started since.
        let planned = self.planned_size(job).filter(|_| may_shrink);
        let keep = match planned {
            Some(target) if self.stands_no_lower(other, job) => target.min(asked),
            _ => asked,
        };
        self.removable(job, keep)
    }

    /// What a victim leaves: the wanted nodes, and with them all that the plan has for others, so that it stands still once and not for each of them.
    pub(crate) fn wanted_and_planned(&self, victim: &VictimCandidate, wanted: &[u32]) -> Vec<u32> {
        let held = self.jobs.run(victim.job).map_or(0, GangRun::nodes);
        let planned = self.planned_size(victim.job).map_or(0, |target| held.saturating_sub(target) as usize);
        let (mut leaves, others): (Vec<u32>, Vec<u32>) =
            victim.nodes.iter().partition(|node| wanted.contains(node));
        let more = planned.saturating_sub(leaves.len());
        leaves.extend(others.into_iter().rev().take(more));
        leaves
    }

    fn stands_no_lower(&self, one: JobId, than: JobId) -> bool {
        let standing = |job: JobId| {
            let request = &self.jobs[job].request;
            (self.settings.partition(request).tier, self.settings.qos(request).priority)
        };
        let (own, others) = (standing(one), standing(than));
        own.0 >= others.0 && own.1 >= others.1
    }

    /// When a gang may change its size again. One that just started has not changed it yet.
    fn settled_at(&self, run: &GangRun) -> Time {
        if run.resized == run.started { run.started } else { run.resized + self.settings.elastic.settle }
    }

    /// Until when a gang keeps what it asked for.
    fn protected_until(&self, entry: &JobEntry, run: &GangRun) -> Time {
        match entry.request.preemption {
            Preemption::Never => Time::NEVER,
            _ => run.started + entry.request.minimum_run_time,
        }
    }

    /// From when on a gang leaves nodes of those it asked for.
    fn gives_from(&self, entry: &JobEntry, run: &GangRun) -> Time {
        self.settled_at(run).max(self.protected_until(entry, run))
    }

    /// Gives running gangs the sizes of the plan: free nodes first, then those of gangs that have more than planned.
    pub(crate) fn grow_as_planned(&mut self, now: Time) {
        let waiting: Vec<JobId> = self.jobs.queue().iter().collect();
        self.plan_sizes(&waiting, now);
        let mut wishes: Vec<Wish> = self.jobs.elastic().iter().filter_map(|job| self.wish(*job)).collect();
        wishes.sort_by(|a, b| b.gain().total_cmp(&a.gain()).then(a.job.cmp(&b.job)));
        let mut later = self.next_excess(now).unwrap_or(Time::NEVER);
        for wish in wishes {
            let due = self.due(&wish);
            if due <= now {
                self.fulfil(&wish, now);
            } else {
                later = later.min(due);
            }
        }
        self.calendar.set(Alarm::Growth, Some(later).filter(|later| *later < Time::NEVER));
    }

    /// When a gang that has more than planned, or was left out of the plan, may leave nodes to one that waits.
    fn next_excess(&self, now: Time) -> Option<Time> {
        if !self.jobs.is_any_waiting() {
            return None;
        }
        let gives = |job: &JobId| {
            let entry = &self.jobs[*job];
            let run = entry.run()?;
            let has_more = self.planned_size(*job).is_some_and(|target| run.nodes() > target);
            let may_have = self.protected_until(entry, run) > now;
            Some(self.gives_from(entry, run)).filter(|from| *from > now && (has_more || may_have))
        };
        self.jobs.elastic().iter().filter_map(gives).min()
    }

    fn wish(&self, job: JobId) -> Option<Wish> {
        let entry = &self.jobs[job];
        let run = entry.run().filter(|run| !run.is_leaving())?;
        let (size, target) = (run.nodes(), self.targets.get(job)?);
        let speed = |nodes| entry.request.speed(nodes);
        (target > size).then(|| Wish { job, size, target, from: speed(size), to: speed(target) })
    }

    /// When the gang may change its size and that pays back.
    fn due(&self, wish: &Wish) -> Time {
        let run = self.jobs.run(wish.job).expect("it runs");
        let rules = &self.settings.elastic;
        let paid = Change { from: wish.from, to: wish.to, pause: rules.pause }.pays_back_after();
        let pays = run.started + paid;
        let due = self.settled_at(run).max(pays);
        if run.ends().since(due) >= paid { due } else { Time::NEVER }
    }

    fn fulfil(&mut self, wish: &Wish, now: Time) {
        if !self.grow_into_free(wish, now) {
            self.take_from_others(wish, now);
        }
    }

    /// As many nodes as are free, up to the plan.
    fn grow_into_free(&mut self, wish: &Wish, now: Time) -> bool {
        let entry = &self.jobs[wish.job];
        let run = entry.run().expect("it runs");
        let (ends, own) = (run.ends(), run.node_ids());
        let step = entry.request.elastic().map_or(1, |elastic| elastic.step.max(1));
        let gpus = u64::from(entry.request.roles[0].per_node.gpus);
        let rule = match entry.classes[0].rule {
            NodeSetRule::Spread { .. } => NodeSetRule::Anywhere,
            other => other,
        };
        let class = RequestClass { length: ends.since(now), rule, ..entry.classes[0] };
        let mut more = wish.target - wish.size;
        while more >= step {
            let is_allowed = self.accounting.allows_more(
                &self.jobs[wish.job].request,
                u64::from(more) * gpus,
                &self.settings,
            );
            let nodes = is_allowed
                .then(|| self.nodes_to_grow_into(&RequestClass { nodes: more, ..class }, &own, now));
            if let Some(nodes) = nodes.flatten() {
                self.add_nodes(wish.job, &nodes, ends, now);
                return true;
            }
            more -= step;
        }
        false
    }

    /// Asks gangs that have more than planned to leave what this one should have. Both stand still for a while, so it must pay back twice as much.
    fn take_from_others(&mut self, wish: &Wish, now: Time) {
        let run = self.jobs.run(wish.job).expect("it runs");
        let pause = self.settings.elastic.pause;
        let paid = Change { from: wish.from, to: wish.to, pause: pause + pause }.pays_back_after();
        let pays = now.since(run.started) >= paid && run.ends().since(now) >= paid;
        // What others are leaving may be for this gang already.
        if !pays || self.is_any_leaving() || !self.allows(&self.jobs[wish.job], wish.target) {
            return;
        }
        let home = self.home_of(self.jobs[wish.job].classes[0].rule, &run.node_ids());
        let mut missing = (wish.target - wish.size) as usize;
        for donor in self.donors(wish.job) {
            let wanted = self.beyond_plan(donor, wish.job, &home, missing, now);
            if let Some((excess, wanted)) = wanted {
                missing -= wanted.len();
                self.shrink(donor, &excess.nodes, &wanted, wish.job, now);
            }
        }
    }

    /// Gangs whose nodes would do for this one.
    fn donors(&self, job: JobId) -> Vec<JobId> {
        let pool = self.pool_of(job);
        self.jobs.elastic().iter().copied().filter(|other| self.pool_of(*other) == pool).collect()
    }

    fn is_any_leaving(&self) -> bool {
        self.jobs.elastic().iter().filter_map(|job| self.jobs.run(*job)).any(|run| !run.leaving.is_empty())
    }

    /// What a gang can do without for another, and the last nodes of that in the other's set, as many as are missing and the plan does not
    /// have for it.
    fn beyond_plan(
        &self,
        job: JobId,
        other: JobId,
        home: &Range<u32>,
        missing: usize,
        now: Time,
    ) -> Option<(VictimCandidate, Vec<u32>)> {
        let more = self.jobs.run(job)?.nodes().checked_sub(self.planned_size(job)?)?;
        let excess = self.excess_for(job, other, now)?;
        let usable = excess.nodes.iter().rev().copied().filter(|node| home.contains(node));
        let wanted: Vec<u32> = usable.take(missing.min(more as usize)).collect();
        (!wanted.is_empty()).then_some((excess, wanted))
    }
}

/// A running gang that should have more nodes.
#[derive(Debug, Clone, Copy)]
struct Wish {
    job: JobId,
    size: u32,
    target: u32,
    /// Speeds at both sizes.
    from: f64,
    to: f64,
}

impl Wish {
    /// What each node brings.
    fn gain(&self) -> f64 {
        (self.to - self.from) / f64::from(self.target - self.size)
    }
}
