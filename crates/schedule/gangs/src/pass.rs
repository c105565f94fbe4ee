//! The quick pass: what an event lets start at once, with every reservation kept as it is.
//!
//! Only classes for which something opened are tried, and gangs whose own reserved nodes came free. Where
//! few gangs hold reservations (EASY), those are brought forward too.

use std::collections::BTreeSet;

use crate::find::Horizon;
use crate::priority::Rank;
use crate::reservations::Reservation;
use crate::scheduler::Scheduler;
use crate::view::{NodeSetRule, RequestClass};
use crate::views::Fit;
use crate::{JobId, QueueOrder, Span, StartReason, Time};

/// Up to this many reservations are brought forward at every event.
const FEW: usize = 16;
/// … on clusters of at most 1,000 nodes: on larger ones that would take longer than all the rest, and cycles do it.
const FEW_EVENTS: u64 = 25;

impl Scheduler {
    pub(crate) fn pass(&mut self, now: Time) {
        if self.fleet.forgets_changes() {
            self.views.forget_now();
        }
        if self.has_guard() {
            self.attend_guarded(now);
        }
        let is_cheap = self.events_for_nodes() <= FEW_EVENTS;
        if self.settings.backfill.reserved <= FEW && is_cheap {
            self.bring_forward(now);
        } else if !self.news.freed().is_empty() {
            self.start_reserved(now);
        }
        if !self.settings.backfill.overtakes {
            return;
        }
        if self.news.freed().is_empty() {
            self.try_arrivals(now);
        } else {
            self.try_gained(now);
        }
    }

    /// Gives the first gangs the earliest start there is now, and starts those whose turn has come.
    fn bring_forward(&mut self, now: Time) {
        let mut held = 0;
        for job in self.first_to_reserve() {
            if held == self.settings.backfill.reserved {
                break;
            }
            if self.limited_by(job, self.jobs[job].request.gpus()).is_some() || self.outlasts(job, now) {
                continue;
            }
            if self.news.freed().is_empty() && self.reservations.get(job).is_some() {
                held += 1;
                continue;
            }
            if !self.start_or_reserve_anew(job, now) {
                held += 1;
            }
        }
    }

    /// Gangs that may hold reservations, in order. With the smallest first they are those that do; a cycle chooses others.
    fn first_to_reserve(&self) -> Vec<JobId> {
        if self.settings.order != QueueOrder::SmallestFirst {
            return self.jobs.queue().iter().take(2 * FEW).collect();
        }
        let others = self.reservations.iter().filter(|each| !self.is_guarded(each.job));
        let ranked = others.map(|each| (self.jobs[each.job].rank, each.job));
        ranked.collect::<BTreeSet<_>>().into_iter().map(|(_, job)| job).collect()
    }

    /// True when it started.
    pub(crate) fn start_or_reserve_anew(&mut self, job: JobId, now: Time) -> bool {
        self.reservations.withdraw(job, &mut self.fleet);
        self.views.forget_ahead();
        match self.find(job, Horizon::Ever, now) {
            Some(fit) if fit.at <= now => {
                self.start(job, &fit.nodes, now, StartReason::InOrder);
                true
            }
            Some(fit) => {
                self.reserve(job, &fit);
                false
            }
            None => false,
        }
    }

    /// Starts gangs whose own reservations are all that stands between them and the freed nodes: those whose
    /// time has come, and the next one on every node.
    pub(crate) fn start_reserved(&mut self, now: Time) {
        let mut touched: BTreeSet<(Rank, JobId)> = BTreeSet::new();
        for node in self.news.freed() {
            for (start, job) in self.reservations.on_node(*node) {
                touched.insert((self.jobs[job].rank, job));
                if start > now {
                    break;
                }
            }
        }
        for (_, job) in touched {
            self.start_on_reserved(job, now);
        }
    }

    fn start_on_reserved(&mut self, job: JobId, now: Time) {
        let Some(reservation) = self.reservations.get(job) else {
            return;
        };
        // An elastic gang may have reserved more or less than it asked for.
        let gpus = self.reserved_gpus(reservation);
        let waits = self.outlasts(job, now);
        if waits || !self.is_free_until_reserved(reservation, now) || self.limited_by(job, gpus).is_some() {
            return;
        }
        let nodes = reservation.nodes_by_role(self.jobs[job].classes.len());
        let as_asked = if self.jobs.queue().first() == Some(job) {
            StartReason::InOrder
        } else {
            StartReason::Backfilled { past: self.reservations.of_others(job) }
        };
        let why = self.why_with(job, reservation.nodes.len() as u32, as_asked);
        self.start(job, &nodes, now, why);
    }

    fn reserved_gpus(&self, reservation: &Reservation) -> u64 {
        let roles = &self.jobs[reservation.job].request.roles;
        let gpus = |role: u16| u64::from(roles[usize::from(role)].per_node.gpus);
        reservation.nodes.iter().map(|reserved| gpus(reserved.role)).sum()
    }

    /// Whether the reserved nodes are free from now on, so that the gang can simply begin earlier.
    fn is_free_until_reserved(&self, reservation: &Reservation, now: Time) -> bool {
        let gap = reservation.start.since(now).min(reservation.length());
        reservation.amounts().into_iter().all(|(node, amount)| {
            if gap > Span::ZERO {
                self.fleet.plan(node).window_at(now, amount, gap).is_some()
            } else {
                self.fleet.booked(node).window_at(now, amount, Span(1)).is_some()
            }
        })
    }

    /// Nothing was freed: only gangs that just came can start.
    fn try_arrivals(&mut self, now: Time) {
        let mut arrivals: Vec<(Rank, JobId)> = Vec::new();
        for job in self.news.take_arrivals() {
            if let Some(entry) = self.jobs.get(job).filter(|entry| entry.is_queued()) {
                arrivals.push((entry.rank, job));
            }
        }
        arrivals.sort_unstable();
        for (_, job) in arrivals {
            self.try_now(job, now);
        }
    }

    /// Tries the classes for which nodes opened, best rank first. Gangs of one class are equal: when one
    /// finds no place, none does, and when one is limited, none is tried that shares its limits.
    fn try_gained(&mut self, now: Time) {
        let mut heads: BTreeSet<(Rank, JobId)> = BTreeSet::new();
        let mut gained: Option<(RequestClass, bool)> = None;
        for (class, head) in self.jobs.queue().heads() {
            let known = gained.filter(|(of, _)| of == class);
            let has_gained =
                known.map_or_else(|| self.views.has_gained(class, &self.fleet, now), |(_, has)| has);
            gained = Some((*class, has_gained));
            heads.extend(has_gained.then_some(head));
        }
        heads.extend(self.jobs.queue().mixed());
        let mut full: BTreeSet<RequestClass> = BTreeSet::new();
        while let Some((rank, job)) = heads.pop_first() {
            let entry = &self.jobs[job];
            let (group, class) = (entry.limit_group(), (entry.classes.len() == 1).then(|| entry.classes[0]));
            if class.is_some_and(|class| full.contains(&class)) {
                continue;
            }
            let outcome = self.try_now(job, now);
            let Some(class) = class else { continue };
            match outcome {
                Tried::NoRoom => drop(full.insert(class)),
                // What limits one limits all of its group, unless quota is kept for some of them.
                Tried::Limited if !self.accounting.has_claims() => {}
                Tried::Limited | Tried::Started => {
                    heads.extend(self.jobs.queue().next(&class, group, (rank, job)))
                }
            }
        }
    }

    fn try_now(&mut self, job: JobId, now: Time) -> Tried {
        if let Some(wait) = self.limited_by(job, self.jobs[job].request.gpus()) {
            self.jobs.set_wait(job, wait);
            return Tried::Limited;
        }
        if self.outlasts(job, now) {
            return Tried::NoRoom;
        }
        let Some(fit) = self.find_now(job, now) else {
            let passes = self.pass_guarded(job, now);
            return if passes { Tried::Started } else { Tried::NoRoom };
        };
        let past = self.reservations.of_others(job);
        let is_first = self.jobs.queue().first() == Some(job);
        let why = if is_first || past == 0 { StartReason::InOrder } else { StartReason::Backfilled { past } };
        self.start(job, &fit.nodes, now, why);
        Tried::Started
    }

    fn find_now(&mut self, job: JobId, now: Time) -> Option<Fit> {
        let entry = &self.jobs[job];
        let is_plain = entry.classes.len() == 1 && entry.request.roles[0].gpu_share.is_none();
        let waits_for_better = self.reservations.get(job).is_some()
            && entry.request.expected.is_some()
            && entry.classes[0].rule == NodeSetRule::Anywhere;
        if waits_for_better {
            return None;
        }
        if !is_plain {
            self.views.forget_ahead();
            return self.find(job, Horizon::Now, now);
        }
        let class = entry.classes[0];
        self.views.find_now(&class, &self.fleet, now)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tried {
    Started,
    NoRoom,
    /// A limit of its own; another gang of the class may start.
    Limited,
}
