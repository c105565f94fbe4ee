//! Durations, counted in fixed buckets as Prometheus does.

use std::time::Duration;

/// Upper bounds of the buckets in microseconds; one more bucket takes longer times.
const BOUNDS_US: [u64; 14] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000,
];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommitHistogram {
    counts: [u64; BOUNDS_US.len() + 1],
    sum: Duration,
}

impl CommitHistogram {
    pub(crate) fn add(&mut self, took: Duration) {
        let class = BOUNDS_US.partition_point(|bound| Duration::from_micros(*bound) < took);
        self.counts[class] += 1;
        self.sum += took;
    }

    /// Each upper bound in seconds with the number of values up to it; the last bound is infinite.
    pub fn cumulative(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS_US.iter().map(|bound| *bound as f64 / 1e6).chain([f64::INFINITY]);
        let sums = self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        bounds.zip(sums).collect()
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn sum(&self) -> Duration {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_in_its_class_and_in_all_above() {
        let mut histogram = CommitHistogram::default();
        for micros in [100, 101, 9_000_000] {
            histogram.add(Duration::from_micros(micros));
        }
        let cumulative = histogram.cumulative();
        assert_eq!(cumulative[..3], [(0.0001, 1), (0.00025, 2), (0.0005, 2)]);
        assert_eq!(cumulative.last(), Some(&(f64::INFINITY, 3)));
        assert_eq!((histogram.count(), histogram.sum()), (3, Duration::from_micros(9_000_201)));
    }
}
