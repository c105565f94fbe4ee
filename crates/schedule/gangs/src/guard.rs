//! The guarded gang: the one whose turn came first. Others start only where that keeps what it was promised.
//!
//! A gang's *turn* comes once it has waited as long as it asks for, at most [`Backfill::turn_within`]. Of those with most points, the gang
//! whose turn came first is guarded until it starts: it reserves before all others, others end by the time at which it would itself be over
//! ([`Backfill::beside`]), and no start moves it, save those of small gangs, which may move it by a stated part of that wait
//! ([`Backfill::slack`]) and in all of a stated share of the cluster's GPU time ([`Backfill::passing_share`]).
//!
//! From this follows a bound. Let `R` be how long it takes at a gang's turn until the limits of all that runs, and the latest start of the guarded gang, have
//! passed, and `W` the sum over the gangs whose turns came before of their limits, each at least [`Backfill::turn_within`]. Then it starts at most
//! `(1 + slack) × (R + W)` after its turn, whatever comes later. For let `Y` be how long all that runs when a gang becomes guarded may still take: it starts within `(1 + slack) × Y`,
//! and as what runs beside it ends by its first reserved start and its own time, `Y` of the next is at most what is left of `Y` and that time. Gangs of fixed size
//! that nothing but resources keeps waiting, none with more points, no preemption, no lost nodes.

use crate::find::Horizon;
use crate::jobs::JobEntry;
use crate::priority::Turn;
use crate::scheduler::Scheduler;
use crate::{Backfill, JobId, QueueOrder, Reservation, Span, StartReason, Time};

/// The gang that nothing delays, and what it was promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    pub job: JobId,
    /// Since when it is guarded.
    pub since: Time,
    /// The start that it reserved then.
    pub first: Time,
    /// No gang that passes may move its start beyond this.
    pub latest: Time,
    /// When it would be over had it started then; others end by then.
    pub over: Time,
    turn: Turn,
    /// The earliest start that was expected of it so far, if gangs take the time that they usually do, and what was paid for since.
    aim: Time,
    /// When that was last looked at.
    aimed: Time,
}

/// GPU time by which small gangs may still delay guarded ones. It grows with time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Allowance {
    gpu_ms: f64,
    as_of: Time,
}

/// The guard as one scheduler tells it to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GuardRecord {
    guard: Option<Guard>,
    allowance: Allowance,
}

/// Gangs among which a cycle looks for one to guard. Those before it wait for something other than resources, such as a quota.
pub(crate) const LOOKED_AT: usize = 1_000;
/// Likewise after an event.
const LOOKED_AT_BETWEEN: usize = 32;
/// Small gangs that could not pass before a pass stops asking.
const MOST_IN_VAIN: usize = 4;
/// Small gangs that are asked, at most, before the guarded one starts.
const MOST_ASKED: usize = 256;
/// The expected start is worked out again after this long.
const AIMED_FOR: Span = Span::minutes(1);
/// The allowance of this long is kept at most.
const SAVED_FOR: Span = Span::days(1);

impl Backfill {
    /// How long a gang waits until its turn comes.
    pub fn until_turn(&self, limit: Span) -> Span {
        limit.min(self.turn_within)
    }

    /// How long after its first reserved start others may run on beside a guarded gang.
    pub fn beside(&self, limit: Span) -> Span {
        limit.max(self.turn_within)
    }
}

impl Guard {
    fn new(reservation: &Reservation, entry: &JobEntry, rules: &Backfill, now: Time) -> Self {
        let Reservation { job, start, .. } = *reservation;
        let latest = start + start.since(now).times(rules.slack);
        let (over, turn) = (start + rules.beside(entry.request.time_limit), entry.rank.turn());
        Self { job, since: now, first: start, latest, over, turn, aim: start, aimed: Time::ZERO }
    }

    /// Whether a gang that starts now would run on for too long beside it.
    fn is_outlasted_by(&self, entry: &JobEntry, now: Time) -> bool {
        // Room that was made for it is its own.
        let is_below = !entry.rank.turn().is_above(&self.turn) && entry.victims.is_empty();
        entry.request.id != self.job && is_below && now + entry.request.time_limit > self.over
    }
}

impl Scheduler {
    /// The guarded gang.
    pub fn guarded(&self) -> Option<&Guard> {
        self.guard.as_ref().filter(|guard| self.reservations.get(guard.job).is_some())
    }

    /// When the turn of a waiting gang comes, or came.
    pub fn turn(&self, job: JobId) -> Option<Time> {
        self.jobs.get(job).filter(|entry| entry.is_queued()).map(|entry| entry.rank.turn().comes())
    }

    pub(crate) fn recall_guard(&self) -> GuardRecord {
        GuardRecord { guard: self.guard, allowance: self.allowance }
    }

    pub(crate) fn restore_guard(&mut self, record: GuardRecord) {
        (self.guard, self.allowance) = (record.guard, record.allowance);
    }

    pub(crate) fn has_guard(&self) -> bool {
        self.settings.order == QueueOrder::SmallestFirst && self.settings.backfill.overtakes
    }

    /// The first gangs by tier, points and turn; those that must borrow come after those that need not. One of them is guarded.
    pub(crate) fn by_turn(&self, looked_at: usize) -> Vec<JobId> {
        if !self.has_guard() {
            return Vec::new();
        }
        let mut first: Vec<JobId> = self.jobs.queue().by_turn().take(looked_at).collect();
        if !self.accounting.queues().is_empty() {
            let share = |job: &JobId| self.accounting.borrowed_share(*job);
            first.sort_by(|a, b| share(a).total_cmp(&share(b)));
        }
        first
    }

    /// Whether gangs were stopped so that it can start: what they leave is its own.
    pub(crate) fn has_made_room(&self, job: JobId) -> bool {
        !self.jobs[job].victims.is_empty()
    }

    /// Whether anything but resources keeps a gang waiting.
    pub(crate) fn is_limited(&self, job: JobId) -> bool {
        self.limited_by(job, self.smallest_gpus(&self.jobs[job].request)).is_some()
    }

    pub(crate) fn is_guarded(&self, job: JobId) -> bool {
        self.guard.is_some_and(|guard| guard.job == job)
    }

    /// Remembers who is guarded, and the start that it reserved first. What was promised is void where nodes were lost or a gang with more points came.
    pub(crate) fn guard(&mut self, job: Option<JobId>, now: Time) {
        let reservation = job.and_then(|job| self.reservations.get(job));
        let is_kept = |guard: &Guard| reservation.is_some_and(|own| own.start <= guard.latest);
        if self.guard.map(|guard| guard.job) != job || !self.guard.as_ref().is_some_and(is_kept) {
            let rules = &self.settings.backfill;
            self.guard = reservation.map(|own| Guard::new(own, &self.jobs[own.job], rules, now));
        }
    }

    /// Between cycles: gives the guarded gang the earliest start there is, starts it when that is now, and guards the next.
    pub(crate) fn attend_guarded(&mut self, now: Time) {
        let first = self.jobs.queue().by_turn().next();
        let is_as_before = first.is_some_and(|job| self.guarded().is_some_and(|guard| guard.job == job));
        if is_as_before && self.news.freed().is_empty() && self.accounting.queues().is_empty() {
            return;
        }
        if !self.news.freed().is_empty() {
            let reserved = self.reservations.iter().map(|each| each.job);
            let with_room = reserved.filter(|job| self.has_made_room(*job) && !self.is_limited(*job));
            for job in with_room.collect::<Vec<JobId>>() {
                self.start_or_reserve_anew(job, now);
            }
        }
        let mut in_vain = 0;
        for job in self.by_turn(LOOKED_AT_BETWEEN) {
            let is_guarded = self.is_guarded(job) && self.reservations.get(job).is_some();
            if is_guarded && self.news.freed().is_empty() {
                return;
            }
            if self.is_limited(job) {
                continue;
            }
            if !is_guarded {
                self.withdraw_others();
            }
            if self.start_or_reserve_anew(job, now) {
                continue;
            }
            if self.reservations.get(job).is_some() {
                return self.guard(Some(job), now);
            }
            in_vain += 1;
            if in_vain == MOST_IN_VAIN {
                break;
            }
        }
        self.guard(None, now);
    }

    /// Who is guarded next reserves before all others; they reserve again in the next cycle.
    fn withdraw_others(&mut self) {
        let reserved = self.reservations.iter().map(|each| each.job);
        let others: Vec<JobId> = reserved.filter(|job| !self.has_made_room(*job)).collect();
        for job in others {
            self.reservations.withdraw(job, &mut self.fleet);
        }
        self.views.forget_ahead();
    }

    /// Whether a gang that passes the guarded one would run on for too long beside it: beyond the time at which that would be over.
    pub(crate) fn outlasts(&self, job: JobId, now: Time) -> bool {
        self.guard.is_some_and(|guard| guard.is_outlasted_by(&self.jobs[job], now))
    }

    /// Small gangs that wait go before the guarded one, whose nodes may just have come free.
    pub(crate) fn let_small_pass(&mut self, now: Time) {
        if self.guarded().is_none() || self.news.freed().is_empty() {
            return;
        }
        let queue = self.jobs.queue().iter();
        let small = queue.take_while(|job| self.jobs[*job].rank.is_small()).take(MOST_ASKED);
        let small: Vec<JobId> = small.collect();
        let mut in_vain = 0;
        for job in small {
            let is_limited = self.limited_by(job, self.jobs[job].request.gpus()).is_some();
            if is_limited || self.pass_guarded(job, now) {
                continue;
            }
            in_vain += 1;
            if in_vain == MOST_IN_VAIN {
                break;
            }
        }
    }

    /// Starts a small gang although that moves the guarded one, within what that was promised and what small ones may delay in all.
    pub(crate) fn pass_guarded(&mut self, job: JobId, now: Time) -> bool {
        let entry = &self.jobs[job];
        let [class] = entry.classes[..] else {
            return false;
        };
        let Some(guard) = self.guarded().copied().filter(|guard| guard.job != job) else {
            return false;
        };
        let is_plain = entry.rank.is_small() && entry.request.roles[0].gpu_share.is_none();
        if !is_plain || self.outlasts(job, now) {
            return false;
        }
        let ends = now + self.accounting.expected(&entry.request);
        let Some((aim, price)) = self.price(&guard, ends, now) else {
            return false;
        };
        let Some(own) = self.reservations.get(guard.job).cloned() else {
            return false;
        };
        self.reservations.withdraw(guard.job, &mut self.fleet);
        self.views.forget_ahead();
        let nodes = self.views.choose_now(&class, &self.fleet, |_| true, now);
        let passes = nodes.filter(|nodes| self.reserves_behind(job, nodes, &guard, now));
        let Some(nodes) = passes else {
            self.reservations.make(own, &mut self.fleet);
            self.views.forget_ahead();
            return false;
        };
        self.allowance.gpu_ms -= price;
        if let Some(guard) = &mut self.guard {
            guard.aim = aim;
        }
        let past = self.reservations.of_others(job);
        self.start(job, &[nodes], now, StartReason::Backfilled { past });
        true
    }

    /// What the guarded one would expect if others first ended at a time, and the GPU time that costs it. None where that is more than may be spent.
    fn price(&mut self, guard: &Guard, ends: Time, now: Time) -> Option<(Time, f64)> {
        let gpus = f64::from(self.fleet.cluster().gpu_count());
        let share = self.settings.backfill.passing_share * gpus;
        let earned = share * now.since(self.allowance.as_of).0 as f64;
        let most = share * SAVED_FOR.0 as f64;
        self.allowance = Allowance { gpu_ms: (self.allowance.gpu_ms + earned).min(most), as_of: now };

        let held = self.jobs[guard.job].request.gpus() as f64;
        let price = |aim: Time| ends.since(aim).0 as f64 * held;
        if price(guard.aim) > self.allowance.gpu_ms {
            return None;
        }
        let mut aim = guard.aim;
        if now.since(guard.aimed) >= AIMED_FOR {
            aim = aim.min(self.expected_start(guard.job, now));
            if let Some(guard) = &mut self.guard {
                (guard.aim, guard.aimed) = (aim, now);
            }
        }
        (price(aim) <= self.allowance.gpu_ms).then(|| (aim.max(ends), price(aim)))
    }

    /// Reserves for the guarded gang as if the other ran on these nodes; false, and nothing is reserved, where it would be too late.
    fn reserves_behind(&mut self, passing: JobId, nodes: &[u32], guard: &Guard, now: Time) -> bool {
        let class = self.jobs[passing].classes[0];
        let take = |scheduler: &mut Self| {
            for node in nodes {
                let amount = class.need_on_chosen(&scheduler.fleet, *node);
                scheduler.fleet.reserve(*node, now, now + class.length, amount);
            }
        };
        take(self);
        let fit = self.find(guard.job, Horizon::Ever, now).filter(|fit| fit.at <= guard.latest);
        if let Some(fit) = &fit {
            self.reserve(guard.job, fit);
        }
        for node in nodes {
            let amount = class.need_on_chosen(&self.fleet, *node);
            self.fleet.unreserve(*node, now, now + class.length, amount);
        }
        self.views.forget_ahead();
        fit.is_some()
    }

    /// When a gang would start at the latest on as many nodes as it needs, if all that run end when they are expected to.
    fn expected_start(&self, job: JobId, now: Time) -> Time {
        let [class] = self.jobs[job].classes[..] else {
            return Time::NEVER;
        };
        let eligible = self.views.eligible(&class);
        let nodes = (0..self.fleet.count()).filter(|node| eligible[*node as usize]);
        let mut times: Vec<Time> = nodes
            .filter_map(|node| self.expected_room(node, class.need_on(self.fleet.capacity(node))?.gpus, now))
            .collect();
        times.sort_unstable();
        times.get((class.nodes as usize).saturating_sub(1)).copied().unwrap_or(Time::NEVER)
    }

    /// When a node is expected to have so many GPUs free.
    fn expected_room(&self, node: u32, gpus: u16, now: Time) -> Option<Time> {
        let mut free = self.fleet.free_devices(node).count_ones();
        if free >= u32::from(gpus) {
            return Some(now);
        }
        let bookings = self.fleet.bookings(node).iter();
        let mut ends: Vec<(Time, u16)> =
            bookings.map(|each| (self.expected_end(each.job, now), each.amount.gpus)).collect();
        ends.sort_unstable();
        ends.into_iter().find_map(|(end, given)| {
            free += u32::from(given);
            (free >= u32::from(gpus)).then_some(end)
        })
    }

    /// One that runs for longer than expected takes half as long again.
    fn expected_end(&self, job: JobId, now: Time) -> Time {
        let entry = &self.jobs[job];
        let Some(run) = entry.run() else {
            return now;
        };
        let usual = run.started + self.accounting.expected(&entry.request);
        let overdue = now + now.since(run.started).times(0.5);
        (if usual > now { usual } else { overdue }).min(run.ends())
    }
}
