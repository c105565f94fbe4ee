//! The full cycle: every waiting gang in order, each started, given a start reservation, or told why not.
//!
//! Reservations are made anew in order of priority, so that a reserved start depends only on what
//! runs and on the gangs before it. A gang behind the reserved ones starts only where that delays no reservation.

use std::collections::BTreeMap;

use bedplate_topology::NodeId;

use crate::calendar::Alarm;
use crate::find::Horizon;
use crate::reservations::{Reservation, Reserved};
use crate::scheduler::Scheduler;
use crate::views::Fit;
use crate::{Amount, JobId, QueueOrder, Span, StartReason, Time, Wait};

impl Scheduler {
    /// Decides, at full length when that is due.
    pub(crate) fn decide(&mut self, now: Time) {
        let is_growth_due = self.calendar.is_due(Alarm::Growth, now);
        if !self.jobs.is_any_waiting() {
            if self.news.has_events(self.events_for_nodes()) || is_growth_due {
                self.grow(now);
                self.news.forget_events();
            }
        } else if self.is_cycle_due(now) || is_growth_due {
            self.cycle(now);
            self.grow(now);
        } else {
            self.pass(now);
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

    /// Goes through the whole queue.
    pub(crate) fn cycle(&mut self, now: Time) {
        self.refresh_ranks(now);
        self.calendar.set(Alarm::Preemption, None);
        self.eviction.begin_cycle();
        let reservations = self.withdraw_reservations(now);
        let order = self.accounting.order(&self.jobs, &self.settings);
        self.plan_sizes(&order, now);
        let mut oldest = self.oldest_of_first(&order);
        let mut only_small = oldest.is_some();
        let (mut reserved, mut passed) = (0, 0);
        for job in order {
            // One reservation is kept for the oldest until its turn comes.
            let is_oldest = oldest.take_if(|oldest| *oldest == job).is_some();
            if let Some(wait) = self.limited_by(job, self.smallest_gpus(&self.jobs[job].request)) {
                self.reclaim(job, now);
                self.jobs.set_wait(job, wait);
                continue;
            }
            let is_entitled = is_oldest || !only_small || self.jobs[job].rank.is_small();
            let kept = usize::from(oldest.is_some());
            let may_reserve = is_entitled && reserved + kept < self.settings.backfill.reserved;
            let horizon = if may_reserve { Horizon::Ever } else { Horizon::Now };
            if self.attend(job, horizon, reservations.get(&job), passed, now) {
                continue;
            }
            passed += 1;
            // Where the oldest can have no reservation, the first ones have.
            let is_in_vain = is_oldest && self.reservations.get(job).is_none();
            only_small &= !is_in_vain;
            reserved += usize::from(may_reserve && !is_in_vain);
            if !self.settings.backfill.overtakes {
                self.tell_the_rest(job);
                break;
            }
        }
        self.resume_suspended(now);
        if !self.news.freed().is_empty() {
            self.start_reserved(now);
        }
        self.news.end_cycle(now);
        self.views.forget_ahead();
        self.views.forget_now();
        self.views.tidy_outlooks(&mut self.fleet);
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

    /// With the smallest first, large gangs wait for each other's turn anyway: of those with most points only the oldest holds a reservation. None where
    /// the first gangs do, whatever their size.
    fn oldest_of_first(&self, order: &[JobId]) -> Option<JobId> {
        if self.settings.order != QueueOrder::SmallestFirst || !self.settings.backfill.overtakes {
            return None;
        }
        let is_limited =
            |job: JobId| self.limited_by(job, self.smallest_gpus(&self.jobs[job].request)).is_some();
        let mut large =
            order.iter().copied().filter(|job| !self.jobs[*job].rank.is_small() && !is_limited(*job));
        let first = large.next()?;
        let level = large.take_while(|job| self.jobs[*job].rank.is_level_with(&self.jobs[first].rank));
        let begin = |job: &JobId| self.jobs[*job].submitted.max(self.jobs[*job].request.begin);
        level.chain([first]).min_by_key(|job| (begin(job), *job))
    }

    /// In strict order, all others wait for the first that does.
    fn tell_the_rest(&mut self, behind: JobId) {
        let others: Vec<JobId> = self.jobs.queue().iter().filter(|job| *job != behind).collect();
        for job in others {
            self.jobs.set_wait(job, Wait::InOrder { behind });
        }
    }

    /// Works out priorities at this time and puts the queue in their order.
    fn refresh_ranks(&mut self, now: Time) {
        if self.settings.weights.fair_share != 0 {
            let running: Vec<JobId> = self.jobs.ends().iter().map(|(_, job)| *job).collect();
            running.into_iter().for_each(|job| self.charge(job, now));
            let waiting = self.jobs.queue().iter().map(|job| &self.jobs[job].request);
            let users = waiting.map(|request| (request.account, request.user));
            self.accounting.rank_users(users, &self.settings, now);
        }
        let waits = self.jobs.queue().iter().map(|job| &self.jobs[job]);
        let begins = waits.map(|entry| entry.submitted.max(entry.request.begin));
        let longest_wait = begins.min().map_or(Span::ZERO, |begin| now.since(begin));
        self.accounting.look_around(longest_wait, &self.settings.weights);
        let (accounting, settings) = (&self.accounting, &self.settings);
        self.jobs.reorder(|entry| accounting.rank(&entry.request, entry.submitted, settings, now));
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
