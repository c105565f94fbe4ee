//! The quick pass: what an event lets start at once, with every promise kept as it is.
//!
//! Only classes for which something opened are tried, and gangs whose own promised nodes came free. Where
//! few gangs hold reservations (EASY), those are brought forward too.

use std::collections::BTreeSet;

use crate::cycle::{Fit, Horizon};
use crate::entry::Reservation;
use crate::opening::{NowView, is_spread_enough};
use crate::place::choose;
use crate::priority::Rank;
use crate::scheduler::Scheduler;
use crate::view::{Class, Rule};
use crate::{JobId, Span, StartReason, Time};

/// With at most so many reservations, all are brought forward at every event.
const FEW: usize = 8;

impl Scheduler {
    pub(crate) fn pass(&mut self, now: Time) {
        self.bound_changes();
        if self.settings.backfill.reserved <= FEW {
            self.bring_forward(now);
        } else if !self.freed.is_empty() {
            self.start_promised(now);
        }
        if !self.settings.backfill.overtakes {
            return;
        }
        if self.freed.is_empty() {
            self.try_arrivals(now);
        } else {
            self.try_gained(now);
        }
    }

    /// Keeps the list of changes short; views that lag behind are made anew.
    fn bound_changes(&mut self) {
        let most = 8 * self.fleet.count() as usize + 65_536;
        if self.fleet.changes.len() > most {
            self.fleet.forget_changes();
            self.forget_now_views();
        }
    }

    /// Gives the first gangs the earliest start there is now, and starts those whose turn has come.
    fn bring_forward(&mut self, now: Time) {
        let mut held = 0;
        let first: Vec<JobId> = self.queue.iter().take(2 * FEW).collect();
        for job in first {
            if held == self.settings.backfill.reserved {
                break;
            }
            if self.limited_by(job, self.jobs[&job].request.gpus()).is_some() {
                continue;
            }
            if self.freed.is_empty() && self.reservations.contains_key(&job) {
                held += 1;
                continue;
            }
            if !self.start_or_reserve_anew(job, now) {
                held += 1;
            }
        }
    }

    /// True when it started.
    fn start_or_reserve_anew(&mut self, job: JobId, now: Time) -> bool {
        self.unreserve(job);
        self.views.clear();
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
    pub(crate) fn start_promised(&mut self, now: Time) {
        let mut touched: BTreeSet<(Rank, JobId)> = BTreeSet::new();
        for node in &self.freed {
            let promised = self.reserved_on.range((*node, Time::ZERO, JobId(0))..);
            for (_, start, job) in promised.take_while(|(at, ..)| at == node) {
                touched.insert((self.jobs[job].rank, *job));
                if *start > now {
                    break;
                }
            }
        }
        for (_, job) in touched {
            self.start_on_promised(job, now);
        }
    }

    fn start_on_promised(&mut self, job: JobId, now: Time) {
        let Some(reservation) = self.reservations.get(&job) else {
            return;
        };
        let gpus = self.jobs[&job].request.gpus();
        if !self.is_free_until_promised(reservation, now) || self.limited_by(job, gpus).is_some() {
            return;
        }
        let nodes = reservation.nodes_by_role(self.jobs[&job].classes.len());
        let why = if self.queue.first() == Some(job) {
            StartReason::InOrder
        } else {
            StartReason::Backfilled { past: self.reservations.len() - 1 }
        };
        self.start(job, &nodes, now, why);
    }

    /// Whether the promised nodes are free from now on, so that the promise can simply begin earlier.
    fn is_free_until_promised(&self, reservation: &Reservation, now: Time) -> bool {
        let gap = reservation.start.since(now).min(reservation.length());
        reservation.amounts().into_iter().all(|(node, amount)| {
            if gap > Span::ZERO {
                self.fleet.plan[node as usize].window_at(now, amount, gap).is_some()
            } else {
                self.fleet.booked[node as usize].window_at(now, amount, Span(1)).is_some()
            }
        })
    }

    /// Nothing was freed: only gangs that just came can start.
    fn try_arrivals(&mut self, now: Time) {
        let mut arrivals: Vec<(Rank, JobId)> = Vec::new();
        for job in std::mem::take(&mut self.arrivals) {
            if let Some(entry) = self.jobs.get(&job).filter(|entry| entry.is_queued()) {
                arrivals.push((entry.rank, job));
            }
        }
        arrivals.sort_unstable();
        for (_, job) in arrivals {
            self.try_now(job, now);
        }
    }

    /// Tries the classes for which nodes opened, best rank first. Gangs of one class are equal: when one
    /// finds no place, none does.
    fn try_gained(&mut self, now: Time) {
        let mut heads: BTreeSet<(Rank, JobId)> = BTreeSet::new();
        let classes: Vec<Class> = self.queue.classes().copied().collect();
        for class in classes {
            if self.has_gained(&class, now) {
                heads.extend(self.queue.of_class(&class).next());
            }
        }
        heads.extend(self.queue.mixed());
        while let Some((rank, job)) = heads.pop_first() {
            let classes = &self.jobs[&job].classes;
            let class = (classes.len() == 1).then(|| classes[0]);
            let outcome = self.try_now(job, now);
            let Some(class) = class.filter(|_| outcome != Tried::NoRoom) else {
                continue;
            };
            heads.extend(self.queue.of_class(&class).find(|next| *next > (rank, job)));
        }
    }

    fn has_gained(&mut self, class: &Class, now: Time) -> bool {
        let view = self.now_view(class, now);
        let (gains, open) = (view.gains, view.open());
        let has_gained = self.tried.insert(*class, gains).is_none_or(|before| before < gains);
        has_gained && open >= class.nodes || class.need.gpus == 1 && class.nodes == 1
    }

    /// What was open is to be found out anew.
    pub(crate) fn forget_now_views(&mut self) {
        self.now_views.clear();
        self.tried.clear();
    }

    fn now_view(&mut self, class: &Class, now: Time) -> &mut NowView {
        let fleet = &self.fleet;
        let eligible = self.eligible.get(class.eligible);
        let shape = class.shape();
        let view = self.now_views.entry(shape).or_insert_with(|| NowView::new(shape, fleet, eligible, now));
        view.follow(fleet, eligible, now);
        view
    }

    fn try_now(&mut self, job: JobId, now: Time) -> Tried {
        if let Some(wait) = self.limited_by(job, self.jobs[&job].request.gpus()) {
            self.entry_mut(job).wait = wait;
            return Tried::Limited;
        }
        let Some(fit) = self.find_now(job, now) else {
            return Tried::NoRoom;
        };
        let past = self.reservations.len() - usize::from(self.reservations.contains_key(&job));
        let is_first = self.queue.first() == Some(job);
        let why = if is_first || past == 0 { StartReason::InOrder } else { StartReason::Backfilled { past } };
        self.start(job, &fit.nodes, now, why);
        Tried::Started
    }

    fn find_now(&mut self, job: JobId, now: Time) -> Option<Fit> {
        let entry = &self.jobs[&job];
        let is_plain = entry.classes.len() == 1 && entry.request.roles[0].gpu_share.is_none();
        let waits_for_better = self.reservations.contains_key(&job)
            && entry.request.expected.is_some()
            && entry.classes[0].rule == Rule::Anywhere;
        if waits_for_better {
            return None;
        }
        if !is_plain {
            self.views.clear();
            return self.find(job, Horizon::Now, now);
        }
        let class = entry.classes[0];
        self.find_class_now(&class, now)
    }

    /// Nodes on which a class can start at once.
    pub(crate) fn find_class_now(&mut self, class: &Class, now: Time) -> Option<Fit> {
        if self.now_view(class, now).open() < class.nodes {
            return None;
        }
        let openings = self.now_views[&class.shape()].openings(now);
        if !is_spread_enough(class, &self.fleet, self.eligible.get(class.eligible), &openings) {
            return None;
        }
        let nodes = choose(&self.fleet, class, &openings, self.settings.packing)?;
        Some(Fit { at: now, nodes: vec![nodes] })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tried {
    Started,
    NoRoom,
    /// A limit of its own; another gang of the class may start.
    Limited,
}
