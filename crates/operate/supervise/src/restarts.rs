//! When a process that has died is started again: after a delay that doubles, until it has been well for a while.

use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Before the first new start. Each delay is twice the one before it, up to the longest.
    pub first_delay: Duration,
    pub longest_delay: Duration,
    /// A process that has been well for this long has recovered: its deaths are forgotten.
    pub recovered_after: Duration,
    /// New starts at most; `None` for any number.
    pub most: Option<u32>,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            first_delay: Duration::from_secs(1),
            longest_delay: Duration::from_secs(60),
            recovered_after: Duration::from_secs(60),
            most: None,
        }
    }
}

impl RestartPolicy {
    /// Starts again at once, and at most so often.
    pub fn at_once(most: u32) -> Self {
        Self {
            first_delay: Duration::ZERO,
            longest_delay: Duration::ZERO,
            recovered_after: Duration::MAX,
            most: Some(most),
        }
    }
}

/// The deaths of one process, or of several that share a budget.
#[derive(Debug, Clone)]
pub struct RestartBackoff {
    policy: RestartPolicy,
    /// Since it was last well for long.
    deaths: u32,
    /// The next start.
    due: Option<Instant>,
    well_since: Option<Instant>,
}

impl RestartBackoff {
    pub fn new(policy: RestartPolicy) -> Self {
        Self { policy, deaths: 0, due: None, well_since: None }
    }

    /// Notes a death, and returns how long to wait before the next start; `None` where there is none.
    pub fn dies(&mut self, now: Instant) -> Option<Duration> {
        self.well_since = None;
        if self.policy.most.is_some_and(|most| self.deaths >= most) {
            return None;
        }
        let doubled = self.policy.first_delay.saturating_mul(1 << self.deaths.min(16));
        let delay = doubled.min(self.policy.longest_delay);
        self.deaths += 1;
        self.due = Some(now + delay);
        Some(delay)
    }

    /// Whether the wait after the last death is over.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| now >= due)
    }

    /// For a process that is only seen to be gone, and not to die: whether it may be started now. The first call counts
    /// as its death, the one that is answered with true as its start.
    pub fn may_start(&mut self, now: Instant) -> bool {
        if self.due.is_none() && self.dies(now).is_none() {
            return false;
        }
        let is_due = self.is_due(now);
        if is_due {
            self.due = None;
        }
        is_due
    }

    pub fn is_well(&mut self, now: Instant) {
        let since = *self.well_since.get_or_insert(now);
        if now.saturating_duration_since(since) >= self.policy.recovered_after {
            self.deaths = 0;
        }
    }

    /// It lives, but is of no use at the moment.
    pub fn is_unwell(&mut self) {
        self.well_since = None;
    }

    /// Whether it has died since it was last well for long.
    pub fn has_died(&self) -> bool {
        self.deaths > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn what_dies_again_and_again_is_started_ever_later_until_it_has_been_well() {
        let mut restarts = RestartBackoff::new(RestartPolicy::default());
        let mut now = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..8 {
            let began = now;
            while !restarts.may_start(now) {
                now += Duration::from_millis(500);
            }
            waits.push(now.duration_since(began).as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        restarts.is_well(now);
        restarts.is_unwell();
        restarts.is_well(now + MINUTE);
        assert!(restarts.has_died());
        restarts.is_well(now + 2 * MINUTE);
        assert!(!restarts.has_died());
        assert!(!restarts.may_start(now) && restarts.may_start(now + SECOND));
    }

    #[test]
    fn the_first_start_waits_for_nothing_and_each_later_one_for_its_delay() {
        let mut restarts = RestartBackoff::new(RestartPolicy::default());
        let now = Instant::now();
        assert!(restarts.is_due(now));
        assert_eq!(restarts.dies(now), Some(SECOND));
        assert!(!restarts.is_due(now) && restarts.is_due(now + SECOND));
        assert_eq!(restarts.dies(now), Some(2 * SECOND));
    }

    #[test]
    fn a_budget_ends() {
        let mut restarts = RestartBackoff::new(RestartPolicy::at_once(2));
        let now = Instant::now();
        let delays = [restarts.dies(now), restarts.dies(now), restarts.dies(now)];
        assert_eq!(delays, [Some(Duration::ZERO), Some(Duration::ZERO), None]);
        assert!(!RestartBackoff::new(RestartPolicy::at_once(0)).may_start(now));
    }
}
