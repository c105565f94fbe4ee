//! The full cycle: every waiting gang in order, each started, promised a time, or told why not.
//!
//! Reservations are made anew in order of priority, so that a gang's promised start depends only on what
//! runs and on the gangs before it. A gang behind the reserved ones starts only where that moves no promise.

use std::collections::BTreeMap;

use crate::entry::{Reservation, Reserved};
use crate::outlook::Outlook;
use crate::place::choose;
use crate::priority::{Rank, Scales, priority};
use crate::scheduler::{Cadence, Scheduler};
use crate::view::{Class, Rule, View};
use crate::{Amount, Closeness, FairShares, JobId, Priority, QueueId, Queues, Span, StartReason, Time, Wait};

/// Nodes by role.
pub(crate) type Placement = Vec<Vec<u32>>;

/// Where and when a gang fits.
#[derive(Debug, Clone)]
pub(crate) struct Fit {
    pub(crate) at: Time,
    pub(crate) nodes: Placement,
}

/// How far ahead a gang is looked after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Horizon {
    Now,
    Ever,
}

impl Scheduler {
    /// Decides, at full length when that is due.
    pub(crate) fn decide(&mut self, now: Time) {
        if self.queue.is_empty() && self.suspended.is_empty() {
            if self.cadence.events >= self.events_for_nodes() || self.is_growth_due(now) {
                self.grow(now);
                self.cadence.events = 0;
            }
        } else if self.is_cycle_due(now) || self.is_growth_due(now) {
            self.cycle(now);
            self.grow(now);
        } else {
            self.pass(now);
        }
        self.arrivals.clear();
        self.freed.clear();
    }

    /// What touches every node for every class is done once in so many events: at every event on a small
    /// cluster, seldom on a very large one.
    fn events_for_nodes(&self) -> u64 {
        u64::from(self.fleet.count()).pow(2) / 40_000
    }

    /// Likewise, cycles that only look again for gangs to move are so far apart: not at all on a small cluster,
    /// a second on 1,000 nodes, a minute on 10,000.
    pub(crate) fn pause_for_nodes(&self) -> Span {
        Span(25 * self.events_for_nodes())
    }

    fn is_cycle_due(&self, now: Time) -> bool {
        let rules = &self.settings.backfill;
        let cadence = &self.cadence;
        let by_queue = self.queue.len() as u64 * u64::from(rules.replan_percent) / 100;
        let enough_events = cadence.events >= by_queue.max(self.events_for_nodes());
        let late = now.since(cadence.last) >= rules.replan_after;
        cadence.is_urgent || cadence.is_stale && (enough_events || late)
    }

    /// Goes through the whole queue.
    pub(crate) fn cycle(&mut self, now: Time) {
        self.refresh_ranks(now);
        self.next_preemption = None;
        self.no_room.clear();
        self.runners = None;
        let promises = self.forget_reservations(now);
        let order = self.order();
        let mut reserved = 0;
        for job in order {
            if let Some(wait) = self.limited_by_size(job) {
                self.reclaim(job, now);
                self.entry_mut(job).wait = wait;
                continue;
            }
            let horizon =
                if reserved < self.settings.backfill.reserved { Horizon::Ever } else { Horizon::Now };
            if self.attend(job, horizon, promises.get(&job), reserved, now) {
                continue;
            }
            reserved += 1;
            if !self.settings.backfill.overtakes {
                self.tell_the_rest(job);
                break;
            }
        }
        self.resume_suspended(now);
        if !self.freed.is_empty() {
            self.start_promised(now);
        }
        self.cadence = Cadence { last: now, ..Cadence::default() };
        self.views.clear();
        self.forget_now_views();
        self.tidy_outlooks();
    }

    /// Keeps what the cycle asked for, and the list of bookings short.
    fn tidy_outlooks(&mut self) {
        let most = 8 * self.fleet.count() as usize + 65_536;
        if self.fleet.rebooked.len() > most {
            self.fleet.rebooked.clear();
            self.outlooks.clear();
        }
        self.outlooks.retain(|_, outlook| std::mem::take(&mut outlook.is_used));
    }

    /// Starts a gang, or reserves for it; true when it started.
    fn attend(
        &mut self,
        job: JobId,
        horizon: Horizon,
        promise: Option<&Reservation>,
        reserved: usize,
        now: Time,
    ) -> bool {
        let mut fit = self.find(job, horizon, now);
        if let Some((fit, promise)) = fit.as_mut().zip(promise) {
            self.keep_nodes(fit, promise);
        }
        if let Some(fit) = &fit
            && fit.at <= now
        {
            let why =
                if reserved == 0 { StartReason::InOrder } else { StartReason::Backfilled { past: reserved } };
            self.start(job, &fit.nodes, now, why);
            return true;
        }
        if self.start_smaller(job, fit.as_ref(), now) {
            return true;
        }
        if let Some(makes_room) = self.make_room(job, now) {
            self.reserve(job, &makes_room);
            return false;
        }
        self.entry_mut(job).wait = Wait::NotTriedYet;
        if let Some(fit) = fit {
            self.reserve(job, &fit);
        }
        false
    }

    /// In strict order, all others wait for the first that does.
    fn tell_the_rest(&mut self, behind: JobId) {
        let others: Vec<JobId> = self.queue.iter().filter(|job| *job != behind).collect();
        for job in others {
            self.entry_mut(job).wait = Wait::InOrder { behind };
        }
    }

    /// Works out priorities at this time and puts the queue in their order.
    fn refresh_ranks(&mut self, now: Time) {
        let weights = &self.settings.weights;
        if weights.fair_share != 0 {
            let running: Vec<JobId> = self.running().map(|(job, _)| job).collect();
            running.into_iter().for_each(|job| self.charge(job, now));
            let waiting = self.queue.iter().map(|job| &self.jobs[&job].request);
            let users = waiting.map(|request| (request.account, request.user));
            let half_life = self.settings.weights.half_life;
            self.fair_shares = FairShares::rank(&self.settings.accounts, &self.usage, users, now, half_life);
        }
        self.scales = Scales::new(&self.settings, self.fleet.count());
        let waiting: Vec<JobId> = self.queue.iter().collect();
        self.queue.clear();
        for job in waiting {
            let priority = self.priority_at(job, now);
            let rank = self.rank_at(job, now);
            let entry = self.jobs.get_mut(&job).expect("queued jobs are live");
            entry.priority = priority;
            entry.rank = rank;
            self.queue.insert(rank, job, &entry.classes);
        }
    }

    fn priority_at(&self, job: JobId, now: Time) -> Priority {
        let entry = &self.jobs[&job];
        let factor = self.fair_shares.factor(entry.request.account, entry.request.user);
        priority(&entry.request, &self.settings, self.scales, factor, entry.submitted, now)
    }

    /// Where a job would stand in the queue.
    pub(crate) fn rank_at(&self, job: JobId, now: Time) -> Rank {
        let entry = &self.jobs[&job];
        Rank::new(&entry.request, &self.settings, self.priority_at(job, now).total(), entry.submitted)
    }

    /// By priority. Within a tier those who must borrow come after those who need not, and of them the queue
    /// that has borrowed the smallest share first.
    fn order(&mut self) -> Vec<JobId> {
        let waiting: Vec<JobId> = self.queue.iter().collect();
        self.borrowers.clear();
        if self.settings.queues.is_empty() {
            return waiting;
        }
        let mut queues = self.settings.queues.clone();
        let mut order = Vec::with_capacity(waiting.len());
        let mut behind = BTreeMap::new();
        let tier = |job: &JobId| self.tier(&self.jobs[job].request);
        for of_tier in waiting.chunk_by(|a, b| tier(a) == tier(b)) {
            let mut borrowers = Vec::new();
            for job in of_tier {
                match self.quota_asked(*job) {
                    Some(asked) if asked.borrows(&queues) => borrowers.push((*job, asked)),
                    Some(asked) => {
                        queues.take(asked.queue, &asked.kind, asked.gpus);
                        order.push(*job);
                    }
                    None => order.push(*job),
                }
            }
            while let Some(least) = least_share(&borrowers, &queues) {
                let (job, asked) = borrowers.remove(least);
                behind.insert(job, asked.share(&queues));
                queues.take(asked.queue, &asked.kind, asked.gpus);
                order.push(job);
            }
        }
        self.borrowers = behind;
        order
    }

    /// What a job takes from a quota, where it has one.
    pub(crate) fn quota_asked(&self, job: JobId) -> Option<Asked> {
        let request = &self.jobs[&job].request;
        let queue = request.queue?;
        Some(Asked { queue, kind: self.quota_kind(request), gpus: request.gpus() })
    }

    /// The limit in the way of a gang, at the smallest size it accepts.
    fn limited_by_size(&self, job: JobId) -> Option<Wait> {
        self.limited_by(job, self.smallest_gpus(&self.jobs[&job].request))
    }

    /// A gang that starts no earlier than promised keeps the promised nodes, so that nobody behind it has
    /// to make way for a mere exchange.
    fn keep_nodes(&self, fit: &mut Fit, promise: &Reservation) {
        let is_free = |(node, amount): (u32, Amount)| {
            self.fleet.plan[node as usize].window_at(promise.start, amount, promise.length()).is_some()
        };
        if promise.start == fit.at && promise.amounts().into_iter().all(is_free) {
            fit.nodes = promise.nodes_by_role(fit.nodes.len());
        }
    }

    fn forget_reservations(&mut self, now: Time) -> BTreeMap<JobId, Reservation> {
        self.reserved_on.clear();
        self.fleet.reset_plan(now);
        self.views.clear();
        self.forget_now_views();
        std::mem::take(&mut self.reservations)
    }

    /// The first time at which a gang fits, at the size asked for.
    pub(crate) fn find(&mut self, job: JobId, horizon: Horizon, now: Time) -> Option<Fit> {
        let entry = &self.jobs[&job];
        if entry.request.roles.len() > 1 {
            return self.find_mixed(job, horizon, now);
        }
        let class = entry.classes[0];
        if let Some(node) = self.shared_room(job, now) {
            return Some(Fit { at: now, nodes: vec![vec![node]] });
        }
        if self.limited_by(job, self.jobs[&job].request.gpus()).is_some() {
            return None;
        }
        let earliest = self.find_class(&class, horizon, now)?;
        if horizon == Horizon::Now {
            return Some(earliest);
        }
        Some(self.closer_and_done_earlier(job, &class, earliest, now))
    }

    /// A shared GPU that has room for the gang now.
    fn shared_room(&self, job: JobId, now: Time) -> Option<u32> {
        let entry = &self.jobs[&job];
        let share = entry.request.roles[0].gpu_share?;
        let class = &entry.classes[0];
        let beside = Amount { gpus: 0, ..class.need };
        let eligible = self.eligible.get(class.eligible);
        let fits = |node: &u32| {
            eligible[*node as usize]
                && self.fleet.find_share(*node, share, now + entry.request.time_limit, now).is_some()
                && self.fleet.plan[*node as usize].window_at(now, beside, class.length).is_some()
        };
        self.fleet.sharing_nodes().find(fits)
    }

    pub(crate) fn find_class(&mut self, class: &Class, horizon: Horizon, now: Time) -> Option<Fit> {
        if horizon == Horizon::Now {
            return self.find_class_now(class, now);
        }
        if !self.views.contains_key(class) {
            let view = self.new_view(class, now);
            self.views.insert(*class, view);
        }
        let view = self.views.get_mut(class).expect("it was made");
        let at = view.find(&self.fleet, self.eligible.get(class.eligible))?;
        let nodes = choose(&self.fleet, class, &view.openings(), self.settings.packing)?;
        Some(Fit { at, nodes: vec![nodes] })
    }

    fn new_view(&mut self, class: &Class, now: Time) -> View {
        // To follow many changes takes longer than to look at every node.
        let is_near = self.fleet.is_traced && self.fleet.changes.len() <= 2 * self.fleet.count() as usize;
        if is_near {
            self.follow_outlook(class, now);
        }
        let (fleet, eligible) = (&self.fleet, self.eligible.get(class.eligible));
        match self.outlooks.get(&class.shape()).filter(|_| is_near) {
            Some(outlook) => View::from_outlook(*class, fleet, eligible, outlook, now),
            None => View::new(*class, fleet, eligible, now),
        }
    }

    /// Brings what is known of where a class fits beside what runs to `now`.
    pub(crate) fn follow_outlook(&mut self, class: &Class, now: Time) {
        let (shape, fleet) = (class.shape(), &self.fleet);
        let eligible = self.eligible.get(class.eligible);
        let new = || Outlook::new(shape, fleet, eligible, now);
        self.outlooks.entry(shape).or_insert_with(new).follow(fleet, eligible, now);
    }

    /// With a prediction, a start further off may end earlier: when the nodes are closer to each other.
    fn closer_and_done_earlier(&mut self, job: JobId, class: &Class, earliest: Fit, now: Time) -> Fit {
        let request = &self.jobs[&job].request;
        let free_choice =
            class.rule == Rule::Anywhere && class.nodes > 1 && request.closeness == Closeness::Any;
        let Some(expected) = request.expected.filter(|_| free_choice) else {
            return earliest;
        };
        let limit = request.time_limit;
        let slower = self.fleet.level_of(&earliest.nodes[0]).slower;
        let done = |fit: &Fit, slower: f64| fit.at + limit.times(expected.stretch(slower));
        let mut best = (done(&earliest, slower), earliest);
        let closer: Vec<(u8, f64)> =
            self.fleet.levels().iter().enumerate().map(|(at, sets)| (at as u8, sets.slower)).collect();
        for (level, slower) in closer.into_iter().filter(|(_, each)| *each < slower) {
            let class = Class { rule: Rule::OneSet { level }, ..*class };
            let Some(fit) = self.find_class(&class, Horizon::Ever, now) else {
                continue;
            };
            let end = done(&fit, slower);
            if end < best.0 {
                best = (end, fit);
            }
        }
        best.1
    }

    /// Roles are placed one after the other at the same time; when one does not fit, all move on.
    fn find_mixed(&mut self, job: JobId, horizon: Horizon, now: Time) -> Option<Fit> {
        const TRIES: usize = 32;
        if self.limited_by(job, self.jobs[&job].request.gpus()).is_some() {
            return None;
        }
        let classes = self.jobs[&job].classes.clone();
        let mut at = now;
        for _ in 0..TRIES {
            match self.find_roles(&classes, at) {
                Ok(nodes) => return Some(Fit { at, nodes }),
                Err(later) if horizon == Horizon::Ever && later < Time::NEVER => at = later,
                Err(_) => return None,
            }
        }
        None
    }

    /// Nodes for all roles at one time, or the time at which the first role that failed might fit. The role
    /// with the smallest choice of nodes comes first, so that another does not take them.
    fn find_roles(&mut self, classes: &[Class], at: Time) -> Result<Placement, Time> {
        let choice = |class: &Class| {
            let eligible = self.eligible.get(class.eligible).iter().filter(|flag| **flag).count();
            (eligible, std::cmp::Reverse(class.need.gpus))
        };
        let mut order: Vec<usize> = (0..classes.len()).collect();
        order.sort_by_key(|role| choice(&classes[*role]));
        let mut nodes: Placement = vec![Vec::new(); classes.len()];
        let mut outcome = Ok(());
        for role in order {
            let class = &classes[role];
            let eligible = self.eligible.get(class.eligible);
            let mut view = View::new(*class, &self.fleet, eligible, at);
            let found = view.find(&self.fleet, eligible);
            let chosen = (found == Some(at))
                .then(|| choose(&self.fleet, class, &view.openings(), self.settings.packing))
                .flatten();
            let Some(chosen) = chosen else {
                let later = found.unwrap_or(Time::NEVER);
                outcome = Err(if later > at { later } else { Time::NEVER });
                break;
            };
            self.hold_nodes(class, &chosen, at, class.length, true);
            nodes[role] = chosen;
        }
        for (class, chosen) in classes.iter().zip(&nodes) {
            self.hold_nodes(class, chosen, at, class.length, false);
        }
        outcome.map(|()| nodes)
    }

    /// Whether the roles of a gang fit together on a cluster where nothing runs and every node serves.
    pub(crate) fn fits_empty_cluster(&mut self, classes: &[Class]) -> bool {
        let empty = self.fleet.empty_plan();
        let plan = std::mem::replace(&mut self.fleet.plan, empty);
        let changes = std::mem::take(&mut self.fleet.changes);
        let found = self.find_roles(classes, Time::ZERO).is_ok();
        (self.fleet.plan, self.fleet.changes) = (plan, changes);
        found
    }

    fn hold_nodes(&mut self, class: &Class, nodes: &[u32], at: Time, length: Span, takes: bool) {
        for node in nodes {
            let need = class.need_on(self.fleet.capacity(*node)).expect("the node was chosen for its size");
            if takes {
                self.fleet.reserve(*node, at, at + length, need);
            } else {
                self.fleet.unreserve(*node, at, at + length, need);
            }
        }
    }

    /// Promises nodes to a gang from a time on.
    pub(crate) fn reserve(&mut self, job: JobId, fit: &Fit) {
        let entry = &self.jobs[&job];
        let whole = self.settings.backfill.whole_nodes;
        let until = fit.at + entry.classes[0].length;
        let mut nodes = Vec::new();
        for (role, (class, chosen)) in entry.classes.iter().zip(&fit.nodes).enumerate() {
            for node in chosen {
                let capacity = self.fleet.capacity(*node);
                let need = class.need_on(capacity).expect("the node was chosen for its size");
                let amount = if whole { capacity } else { need };
                nodes.push(Reserved { node: bedplate_topology::NodeId(*node), role: role as u16, amount });
            }
        }
        for reserved in &nodes {
            self.fleet.reserve(reserved.node.0, fit.at, until, reserved.amount);
            self.reserved_on.insert((reserved.node, fit.at, job));
        }
        self.reservations.insert(job, Reservation { job, start: fit.at, until, nodes });
    }

    /// Takes a promise back.
    pub(crate) fn unreserve(&mut self, job: JobId) {
        let Some(reservation) = self.reservations.remove(&job) else {
            return;
        };
        for reserved in &reservation.nodes {
            self.fleet.unreserve(reserved.node.0, reservation.start, reservation.until, reserved.amount);
            self.reserved_on.remove(&(reserved.node, reservation.start, job));
        }
    }
}

/// GPUs of a kind, asked of a queue.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) queue: QueueId,
    pub(crate) kind: String,
    pub(crate) gpus: u64,
}

impl Asked {
    pub(crate) fn borrows(&self, queues: &Queues) -> bool {
        queues.borrows(self.queue, &self.kind, self.gpus)
    }

    /// What share of the lendable its queue would have borrowed.
    pub(crate) fn share(&self, queues: &Queues) -> f64 {
        queues.dominant_share(self.queue, &self.kind, self.gpus)
    }
}

fn least_share(borrowers: &[(JobId, Asked)], queues: &Queues) -> Option<usize> {
    let shares: Vec<f64> = borrowers.iter().map(|(_, asked)| asked.share(queues)).collect();
    (0..shares.len()).min_by(|a, b| shares[*a].total_cmp(&shares[*b]))
}
