//! Numbers that many threads count and a scrape reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often values lay between bounds.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    counts: Vec<AtomicU64>,
    sum_millionths: AtomicU64,
}

impl Histogram {
    /// Bounds ascend; beyond the last there is one more class.
    pub fn of(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum_millionths: AtomicU64::new(0) }
    }

    pub fn observe(&self, took: Duration) {
        self.observe_number(took.as_secs_f64());
    }

    pub fn observe_number(&self, value: f64) {
        let class = self.bounds.partition_point(|bound| *bound < value);
        self.counts[class].fetch_add(1, Ordering::Relaxed);
        self.sum_millionths.fetch_add((value * 1e6) as u64, Ordering::Relaxed);
    }

    /// Each bound with how many values are at most that; the last bound is infinite.
    pub fn cumulative(&self) -> Vec<(f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let mut sum = 0;
        let mut up_to = |count: &AtomicU64| {
            sum += count.load(Ordering::Relaxed);
            sum
        };
        bounds.zip(&self.counts).map(|(bound, count)| (bound, up_to(count))).collect()
    }

    pub fn sum(&self) -> f64 {
        self.sum_millionths.load(Ordering::Relaxed) as f64 / 1e6
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::Exposition;

    #[test]
    fn a_histogram_is_written_with_its_sums() {
        let histogram = Histogram::of(&[1.0, 2.0]);
        [1.0, 2.0, 2.0, 9.0].into_iter().for_each(|value| histogram.observe_number(value));
        let mut text = Exposition::default();
        text.head("size", "histogram", "How many.");
        text.histogram("size", "path=\"/\"", &histogram.cumulative(), histogram.sum());
        expect![[r#"
            # HELP size How many.
            # TYPE size histogram
            size_bucket{path="/",le="1"} 1
            size_bucket{path="/",le="2"} 3
            size_bucket{path="/",le="+Inf"} 4
            size_sum{path="/"} 14
            size_count{path="/"} 4
        "#]]
        .assert_eq(&text.into_string());
    }
}
