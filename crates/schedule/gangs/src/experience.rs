//! What is known of run times: how much of their limits gangs of one kind used lately.
//!
//! Gangs of the same account and user, of about the same size and limit, tend to use the same share of the time they ask for. The order of
//! the queue counts with that share; reservations still count with limits, so that no reservation depends on a guess.
//!
//! The GPU time of each kind is counted too. It says which gangs are small: those that together take a small share of all GPU time, so that
//! letting them pass delays nobody by much.

use std::collections::BTreeMap;

use crate::{AccountId, GangRequest, PriorityWeights, Span, Time, UserId};

/// Gangs that are taken to be alike: of one user, and equal in GPUs and limit to a factor of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    account: AccountId,
    user: UserId,
    gpus: u32,
    limit: u32,
}

/// What gangs of one kind used of their limits.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Share {
    /// The mean of its logarithm, which recent gangs count most in.
    logarithm: f64,
    learned: Time,
    /// The step of the GPU time that was expected of the newest gang.
    step: u32,
    /// GPU time in milliseconds that the kind took, halved with every week.
    gpu_ms: u64,
}

/// What a gang took, for a scheduler that is made anew.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunRecord {
    kind: Kind,
    share: Share,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Experience {
    shares: BTreeMap<Kind, Share>,
    /// The sum over kinds of the GPU time they took, by step; as of the week in which something was learned last.
    by_step: BTreeMap<u32, u64>,
    week: u64,
}

/// How much GPU time gangs take at most that count as small. Follows from the shares of [`PriorityWeights`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Bounds {
    pub(crate) small: f64,
    pub(crate) tiny: f64,
}

/// What the newest gang counts. Of 0.15, 0.3 and 0.5 this predicts the order of run times in NASA's trace of 1993 best: its rank correlation
/// is 0.80, that of limits 0.70.
const NEWEST: f64 = 0.3;
/// Steps of GPU time to a factor of two.
const STEPS: f64 = 4.0;
/// A run counts at least this long.
const SHORTEST: Span = Span::seconds(10);
/// Kinds that are remembered; of more, the half that was not seen for longest is forgotten.
const MOST_KINDS: usize = 20_000;

impl Experience {
    /// How long a gang will likely run, at most as long as it may.
    pub(crate) fn expected(&self, request: &GangRequest) -> Span {
        match self.shares.get(&Kind::of(request)) {
            Some(share) => {
                request.time_limit.times(share.logarithm.exp()).max(SHORTEST).min(request.time_limit)
            }
            None => request.time_limit,
        }
    }

    /// A gang that was never interrupted has ended after `ran`.
    pub(crate) fn learn(&mut self, request: &GangRequest, ran: Span, now: Time) {
        if week_of(now) > self.week {
            self.count_anew(week_of(now));
        }
        let limit = request.time_limit.max(SHORTEST).as_seconds();
        let logarithm = (ran.max(SHORTEST).as_seconds() / limit).ln().min(0.0);
        let step = step_of(gpu_seconds(request, self.expected(request)));
        let kind = Kind::of(request);
        let new = Share { logarithm, learned: now, step, gpu_ms: 0 };
        let before = self.shares.get(&kind).copied().unwrap_or(new);
        self.count(before, false);
        let gpu_ms = before.gpu_ms_in(self.week).saturating_add(ran.0.saturating_mul(request.gpus().max(1)));
        let logarithm = before.logarithm + NEWEST * (logarithm - before.logarithm);
        let share = Share { logarithm, gpu_ms, ..new };
        self.shares.insert(kind, share);
        self.count(share, true);
        if self.shares.len() > MOST_KINDS {
            self.forget_half();
        }
    }

    /// Up to which GPU time gangs are small: those below together took at most the given shares of all GPU time.
    pub(crate) fn bounds(&self, weights: &PriorityWeights) -> Bounds {
        let all: u128 = self.by_step.values().map(|gpu_ms| u128::from(*gpu_ms)).sum();
        let mut bounds = Bounds::default();
        let mut sum: u128 = 0;
        for (step, gpu_ms) in &self.by_step {
            sum += u128::from(*gpu_ms);
            let share = sum as f64 / (all as f64).max(1.0);
            let bound = ((f64::from(*step) + 1.0) / STEPS).exp2();
            if share <= weights.small_share {
                bounds.small = bound;
            }
            if share <= weights.tiny_share {
                bounds.tiny = bound;
            }
        }
        bounds
    }

    /// Adds what a kind took to the sums, or takes it off.
    fn count(&mut self, share: Share, is_added: bool) {
        let gpu_ms = share.gpu_ms_in(self.week);
        let sum = self.by_step.entry(share.step).or_default();
        *sum = if is_added { sum.saturating_add(gpu_ms) } else { sum.saturating_sub(gpu_ms) };
        if *sum == 0 {
            self.by_step.remove(&share.step);
        }
    }

    fn count_anew(&mut self, week: u64) {
        self.week = week;
        self.by_step.clear();
        let shares: Vec<Share> = self.shares.values().copied().collect();
        shares.into_iter().for_each(|share| self.count(share, true));
    }

    fn forget_half(&mut self) {
        let mut times: Vec<Time> = self.shares.values().map(|share| share.learned).collect();
        let (_, middle, _) = times.select_nth_unstable(MOST_KINDS / 2);
        let middle = *middle;
        self.shares.retain(|_, share| share.learned > middle);
        self.count_anew(self.week);
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = RunRecord> + '_ {
        self.shares.iter().map(|(kind, share)| RunRecord { kind: *kind, share: *share })
    }

    pub(crate) fn restore(&mut self, record: RunRecord) {
        if let Some(before) = self.shares.insert(record.kind, record.share) {
            self.count(before, false);
        }
        match week_of(record.share.learned) {
            later if later > self.week => self.count_anew(later),
            _ => self.count(record.share, true),
        }
    }
}

impl Share {
    fn gpu_ms_in(&self, week: u64) -> u64 {
        let weeks = week.saturating_sub(week_of(self.learned));
        self.gpu_ms.checked_shr(weeks.min(64) as u32).unwrap_or(0)
    }
}

/// The GPU time of a gang that runs this long.
pub(crate) fn gpu_seconds(request: &GangRequest, run: Span) -> f64 {
    run.as_seconds().max(1.0) * request.gpus().max(1) as f64
}

fn step_of(gpu_seconds: f64) -> u32 {
    (gpu_seconds.max(1.0).log2() * STEPS) as u32
}

fn week_of(time: Time) -> u64 {
    time.since(Time::ZERO).0 / Span::days(7).0
}

impl Kind {
    fn of(request: &GangRequest) -> Self {
        Self {
            account: request.account,
            user: request.user,
            gpus: request.gpus().max(1).ilog2(),
            limit: (request.time_limit.0 / 60_000).max(1).ilog2(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{JobId, RoleRequest};

    fn asks(user: u32, gpus: u16, hours: u64) -> GangRequest {
        let role = RoleRequest::new(1, gpus);
        GangRequest { user: UserId(user), time_limit: Span::hours(hours), ..GangRequest::new(JobId(1), role) }
    }

    #[test]
    fn those_are_small_that_took_a_small_share_of_gpu_time() {
        let weights = PriorityWeights { small_share: 0.2, tiny_share: 0.01, ..PriorityWeights::default() };
        let mut experience = Experience::default();
        assert_eq!(experience.bounds(&weights), Bounds::default(), "nothing is known");
        // 80 GPU-hours, 10, and half of one.
        for (user, gpus, hours) in [(1, 8, 10), (2, 2, 5), (3, 1, 1)] {
            let ran = if user == 3 { Span::minutes(30) } else { Span::hours(hours) };
            experience.learn(&asks(user, gpus, hours), ran, Time::ZERO + Span::days(1));
        }
        let bounds = experience.bounds(&weights);
        let within = |bound: f64, gpu_hours: f64| bound > gpu_hours * 3600.0;
        assert!(within(bounds.small, 10.0) && !within(bounds.small, 20.0), "{bounds:?}");
        assert!(within(bounds.tiny, 1.0) && !within(bounds.tiny, 2.0), "{bounds:?}");
    }

    #[test]
    fn what_is_told_to_another_is_all_there_is_to_know() {
        let mut experience = Experience::default();
        for number in 0..200u64 {
            let request = asks((number % 7) as u32, 1 << (number % 4), 1 + number % 5);
            experience.learn(&request, Span::minutes(5 + number), Time::ZERO + Span::hours(9 * number));
        }
        let mut other = Experience::default();
        experience.records().for_each(|record| other.restore(record));
        assert_eq!(experience, other);
    }
}
