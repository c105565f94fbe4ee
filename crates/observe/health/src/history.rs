//! How much a counter has grown lately, in bounded memory.

use std::collections::VecDeque;

/// Points that are kept for a window: enough to be right within two per cent of it.
const POINTS: u64 = 64;

/// A counter over a window. Counters that start again from zero are followed.
#[derive(Debug, Clone)]
pub(crate) struct History {
    window_ms: u64,
    /// The growth since the first reading, as of a time.
    points: VecDeque<(u64, f64)>,
    last: f64,
    total: f64,
    first_ms: u64,
}

impl History {
    pub(crate) fn new(window_ms: u64, value: f64, now_ms: u64) -> Self {
        let points = VecDeque::from([(now_ms, 0.0)]);
        Self { window_ms, points, last: value, total: 0.0, first_ms: now_ms }
    }

    pub(crate) fn window_ms(&self) -> u64 {
        self.window_ms
    }

    pub(crate) fn take(&mut self, value: f64, now_ms: u64) {
        let grown = if value >= self.last { value - self.last } else { value };
        (self.last, self.total) = (value, self.total + grown);
        let spacing = (self.window_ms / POINTS).max(1);
        let is_due = self.points.back().is_none_or(|(at, _)| now_ms.saturating_sub(*at) >= spacing);
        if is_due || grown > 0.0 {
            self.points.push_back((now_ms, self.total));
            self.thin(spacing);
        }
        let oldest = now_ms.saturating_sub(self.window_ms);
        while self.points.len() > 1 && self.points[1].0 <= oldest {
            self.points.pop_front();
        }
    }

    /// Of three points that are close together the middle one goes.
    fn thin(&mut self, spacing: u64) {
        let length = self.points.len();
        if length >= 3 && self.points[length - 1].0 - self.points[length - 3].0 < spacing {
            self.points.remove(length - 2);
        }
    }

    /// The growth within the last part of the window.
    pub(crate) fn increase(&self, within_ms: u64, now_ms: u64) -> f64 {
        let oldest = now_ms.saturating_sub(within_ms);
        let before = self.points.iter().rev().find(|(at, _)| *at <= oldest);
        self.total - before.or(self.points.front()).map_or(0.0, |(_, total)| *total)
    }

    /// How long it has been followed, at most the window.
    pub(crate) fn length_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.first_ms).min(self.window_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_counted_within_its_window_and_across_restarts() {
        let mut history = History::new(60_000, 100.0, 0);
        assert_eq!(history.increase(60_000, 0), 0.0);
        history.take(103.0, 10_000);
        history.take(2.0, 20_000);
        assert_eq!(history.increase(60_000, 20_000), 5.0);
        assert_eq!(history.increase(5_000, 20_000), 2.0);
        history.take(2.0, 75_000);
        assert_eq!(history.increase(60_000, 75_000), 2.0);
        history.take(2.0, 81_000);
        assert_eq!(history.increase(60_000, 81_000), 0.0);
    }

    #[test]
    fn a_day_of_readings_stays_small() {
        let mut history = History::new(86_400_000, 0.0, 0);
        for second in 0..200_000_u64 {
            history.take(second as f64, second * 1000);
        }
        assert!(history.points.len() <= 2 * POINTS as usize + 2, "{}", history.points.len());
        let error = (history.increase(86_400_000, 199_999_000) - 86_400.0).abs();
        assert!(error <= 86_400.0 * 0.04, "{error}");
    }
}
