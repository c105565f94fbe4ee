//! The full cycle: every waiting gang in order, each started, given a start reservation, or told why not.
//!
//! Reservations are made anew in order of priority, so that a reserved start depends only on what
//! runs and on the gangs before it. A gang behind the reserved ones starts only where that delays no reservation.
//!
//! A long queue is gone through in slices, between which other events are decided: first its priorities are worked out (`ranking`), then reservations are
//! made in one slice, and the rest is only tried. Where queues of a site share quotas, the order between those that borrow is worked out in
//! slices as well (`borrow_order`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bedplate_topology::NodeId;

use crate::calendar::Alarm;
use crate::find::Horizon;
use crate::guard::LOOKED_AT;
use crate::priority::Rank;
use crate::reservations::{Reservation, Reserved};
use crate::scheduler::Scheduler;
use crate::views::Fit;
use crate::{Amount, JobId, Span, StartReason, Time, Wait};

/// What a cycle has still to look at.
#[derive(Debug, Clone)]
pub(crate) struct CycleRest {
    order: CycleOrder,
    /// Those that were looked at first.
    attended: Arc<BTreeSet<JobId>>,
    /// What was reserved before the cycle.
    reservations: Arc<BTreeMap<JobId, Reservation>>,
    only_small: bool,
    reserved: usize,
    passed: usize,
    pub(crate) since: Time,
}

/// In which order a cycle looks at gangs.
#[derive(Debug, Clone)]
enum CycleOrder {
    /// Written down, where it is short or another one than the queue's.
    Listed {
        order: Arc<[JobId]>,
        at: usize,
    },
    /// As they stand in the queue, after the last that was looked at.
    Queued(Option<(Rank, JobId)>),
    Done,
}

impl Scheduler {
    /// Decides, at full length when that is due.
    pub(crate) fn decide(&mut self, now: Time) {
        self.let_small_pass(now);
        let is_growth_due = self.calendar.is_due(Alarm::Growth, now);
        // A cycle that is under way is ended first, unless what it has planned is wrong.
        let is_under_way = self.rest.is_some() || self.ranking.is_some();
        let may_cycle = !is_under_way || self.news.is_urgent();
        if !self.jobs.is_any_waiting() {
            (self.rest, self.ranking) = (None, None);
            if self.news.has_events(self.events_for_nodes()) || is_growth_due {
                self.grow(now);
                self.news.forget_events();
            }
        } else if may_cycle && (self.is_cycle_due(now) || is_growth_due) {
            if !self.begin_cycle(now) {
                self.pass(now);
            }
        } else {
            // Whoever asks for something else does not wait for that.
            let has_cycled = self.news.has_time() && self.go_on(now);
            if !has_cycled {
                self.pass(now);
            }
        }
        self.news.end_pass();
    }

    /// How many events must come before something that touches every node for every class is done again: none
    /// on a small cluster, many on a very large one.
    pub(crate) fn events_for_nodes(&self) -> u64 {
        u64::from(self.fleet.count()).pow(2) / 40_000
    }

    /// Likewise, how far apart cycles are that only search again for gangs to move: not at all on a small
    /// cluster, a second on 1,000 nodes, a minute on 10,000.
    pub(crate) fn pause_for_nodes(&self) -> Span {
        Span(25 * self.events_for_nodes())
    }

    fn is_cycle_due(&self, now: Time) -> bool {
        let rules = &self.settings.backfill;
        let by_queue = self.jobs.queue().len() as u64 * u64::from(rules.replan_percent) / 100;
        self.news.is_cycle_due(by_queue.max(self.events_for_nodes()), rules, now)
    }

    /// Goes through the whole queue in its order.
    pub(crate) fn cycle(&mut self, now: Time) {
        self.calendar.set(Alarm::Preemption, None);
        self.eviction.begin_cycle();
        let reservations = self.withdraw_reservations(now);
        let order = self.cycle_order(now);
        let attended = Arc::new(self.attend_first(&reservations, now).into_iter().collect());
        let only_small = self.has_guard();
        let guarded = usize::from(self.guard.is_some());
        let reservations = Arc::new(reservations);
        let (reserved, passed) = (guarded, guarded);
        let mut rest = CycleRest { order, attended, reservations, only_small, reserved, passed, since: now };
        self.attend_rest(&mut rest, now);
        let is_done = matches!(rest.order, CycleOrder::Done);
        if is_done {
            self.resume_suspended(now);
        }
        if !self.news.freed().is_empty() {
            self.start_reserved(now);
        }
        self.news.end_cycle(now);
        self.views.forget_ahead();
        self.views.forget_now();
        self.views.tidy_outlooks(&mut self.fleet);
        self.rest = (!is_done).then_some(rest);
        self.grow(now);
    }

    fn cycle_order(&mut self, now: Time) -> CycleOrder {
        let is_short = self.jobs.queue().len() <= self.slice();
        if !is_short && !self.accounting.reorders() && !self.sizes_by_goodput() {
            return CycleOrder::Queued(None);
        }
        // A cycle that cannot wait for the order of a long queue goes by the one before it; another one follows.
        let known = self.borrow_order.take().filter(|_| !is_short && self.accounting.reorders());
        let order = match known {
            Some(order) => order,
            None => self.accounting.order(&self.jobs, &self.settings).into(),
        };
        self.plan_sizes(&order, now);
        self.borrow_order = (!is_short).then(|| order.clone());
        CycleOrder::Listed { order, at: 0 }
    }

    /// The next slice of a cycle that is under way; true when it was the first.
    fn go_on(&mut self, now: Time) -> bool {
        if self.rest.is_none() && self.rank_some() {
            self.cycle(now);
            return true;
        }
        let Some(mut rest) = self.rest.take() else { return false };
        self.views.forget_ahead();
        self.attend_rest(&mut rest, now);
        self.views.forget_ahead();
        self.views.forget_now();
        match rest.order {
            CycleOrder::Done => self.resume_suspended(now),
            _ => self.rest = Some(rest),
        }
        false
    }

    /// Looks at gangs in order until a slice of them has been looked at. Those that are to hold reservations are all in the first one.
    fn attend_rest(&mut self, rest: &mut CycleRest, now: Time) {
        let most_reserved = self.settings.backfill.reserved;
        for _ in 0..self.slice() {
            let Some(job) = self.next_in(&mut rest.order) else { return };
            // In between others may have started it, planned for it or ended it.
            if rest.attended.contains(&job)
                || self.jobs.get(job).is_none_or(|entry| !entry.is_queued())
                || self.reservations.get(job).is_some()
            {
                continue;
            }
            if let Some(wait) = self.limited_by(job, self.smallest_gpus(&self.jobs[job].request)) {
                self.reclaim(job, now);
                self.jobs.set_wait(job, wait);
                continue;
            }
            if let Some(wait) = self.waits_for_guarded(job, now) {
                self.jobs.set_wait(job, wait);
                rest.passed += 1;
                continue;
            }
            let is_entitled = !rest.only_small || self.jobs[job].rank.is_small();
            let may_reserve = is_entitled && rest.reserved < most_reserved;
            let horizon = if may_reserve { Horizon::Ever } else { Horizon::Now };
            if self.attend(job, horizon, rest.reservations.get(&job), rest.passed, now) {
                continue;
            }
            rest.passed += 1;
            rest.reserved += usize::from(may_reserve);
            if !self.settings.backfill.overtakes {
                self.tell_the_rest(job);
                rest.order = CycleOrder::Done;
                return;
            }
        }
        if self.is_through(&rest.order) {
            rest.order = CycleOrder::Done;
        }
    }

    fn next_in(&self, order: &mut CycleOrder) -> Option<JobId> {
        let next = match order {
            CycleOrder::Listed { order, at } => {
                *at += 1;
                order.get(*at - 1).copied()
            }
            CycleOrder::Queued(last) => {
                let next = self.jobs.queue().after(*last);
                *last = next.or(*last);
                next.map(|(_, job)| job)
            }
            CycleOrder::Done => None,
        };
        if next.is_none() {
            *order = CycleOrder::Done;
        }
        next
    }

    fn is_through(&self, order: &CycleOrder) -> bool {
        match order {
            CycleOrder::Listed { order, at } => *at >= order.len(),
            CycleOrder::Queued(last) => self.jobs.queue().after(*last).is_none(),
            CycleOrder::Done => true,
        }
    }

    /// Starts a gang, or reserves for it; true when it started.
    fn attend(
        &mut self,
        job: JobId,
        horizon: Horizon,
        reservation: Option<&Reservation>,
        passed: usize,
        now: Time,
    ) -> bool {
        let mut fit = self.find(job, horizon, now);
        if fit.as_ref().is_none_or(|fit| fit.at > now) && self.pass_guarded(job, now) {
            return true;
        }
        if let Some((fit, reservation)) = fit.as_mut().zip(reservation) {
            self.keep_nodes(fit, reservation);
        }
        if self.start_as_planned(job, fit.as_ref(), passed, now) {
            return true;
        }
        if let Some(fit) = &fit
            && fit.at <= now
        {
            self.start(job, &fit.nodes, now, StartReason::after(passed));
            return true;
        }
        if !self.sizes_by_goodput() && self.start_smaller(job, fit.as_ref(), now) {
            return true;
        }
        if let Some(makes_room) = self.make_room(job, now) {
            self.reserve(job, &makes_room);
            return false;
        }
        self.jobs.set_wait(job, Wait::NotTriedYet);
        if let Some(fit) = fit {
            self.reserve(job, &fit);
        }
        false
    }

    /// Starts those whose turn has come, one after the other, until one must wait: that is guarded. Gives all that were looked at.
    fn attend_first(&mut self, reservations: &BTreeMap<JobId, Reservation>, now: Time) -> Vec<JobId> {
        let mut attended = Vec::new();
        let by_turn = self.by_turn(LOOKED_AT);
        // Room that was made belongs to those for whom it was made.
        let with_room =
            reservations.keys().copied().filter(|job| self.has_guard() && self.has_made_room(*job));
        let with_room: Vec<JobId> = with_room.collect();
        for job in &with_room {
            if !self.is_limited(*job) {
                attended.push(*job);
                self.attend(*job, Horizon::Ever, reservations.get(job), 0, now);
            }
        }
        for job in by_turn {
            if with_room.contains(&job) || self.is_limited(job) {
                continue;
            }
            attended.push(job);
            if self.attend(job, Horizon::Ever, reservations.get(&job), 0, now) {
                continue;
            }
            // One that can have no reservation waits for nodes to come.
            if self.reservations.get(job).is_some() {
                self.guard(Some(job), now);
                return attended;
            }
        }
        self.guard(None, now);
        attended
    }

    /// Why a gang may not start whatever is free: it would run on for too long beside the guarded one.
    pub(crate) fn waits_for_guarded(&self, job: JobId, now: Time) -> Option<Wait> {
        let guard = self.guard.filter(|_| self.outlasts(job, now))?;
        Some(Wait::BehindReservation { of: guard.job, from: guard.first })
    }

    /// In strict order, all others wait for the first that does.
    fn tell_the_rest(&mut self, behind: JobId) {
        let others: Vec<JobId> = self.jobs.queue().iter().filter(|job| *job != behind).collect();
        for job in others {
            self.jobs.set_wait(job, Wait::InOrder { behind });
        }
    }

    /// A gang that starts no earlier than reserved keeps the reserved nodes, so that no gang behind it has
    /// to make way for a mere exchange.
    fn keep_nodes(&self, fit: &mut Fit, reservation: &Reservation) {
        let is_free = |(node, amount): (u32, Amount)| {
            self.fleet.plan(node).window_at(reservation.start, amount, reservation.length()).is_some()
        };
        if reservation.start == fit.at && reservation.amounts().into_iter().all(is_free) {
            fit.nodes = reservation.nodes_by_role(fit.nodes.len());
        }
    }

    fn withdraw_reservations(&mut self, now: Time) -> BTreeMap<JobId, Reservation> {
        self.views.forget_ahead();
        self.views.forget_now();
        self.reservations.withdraw_all(&mut self.fleet, now)
    }

    /// Reserves nodes for a gang from a time on.
    pub(crate) fn reserve(&mut self, job: JobId, fit: &Fit) {
        let entry = &self.jobs[job];
        let mut nodes = Vec::new();
        for (role, (class, chosen)) in entry.classes.iter().zip(&fit.nodes).enumerate() {
            for node in chosen {
                let whole = self.settings.backfill.whole_nodes.then(|| self.fleet.capacity(*node));
                let amount = whole.unwrap_or_else(|| class.need_on_chosen(&self.fleet, *node));
                nodes.push(Reserved { node: NodeId(*node), role: role as u16, amount });
            }
        }
        let nodes_in_all = fit.nodes.iter().map(|chosen| chosen.len() as u32).sum();
        let until = fit.at + self.reserved_length(job, nodes_in_all);
        self.reservations.make(Reservation { job, start: fit.at, until, nodes }, &mut self.fleet);
    }
}
