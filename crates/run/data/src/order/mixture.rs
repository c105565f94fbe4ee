//! Which source the n-th sample of a mixture comes from, and which of that source's samples it is.
//!
//! Sources are the leaves of a binary tree. At a fork whose left side has the share `w`, the first `n` samples
//! hold exactly `round(n w)` of the left side: sample `n` goes left where that number grows. Rounding errs by at
//! most a half at each fork, so in any prefix every source has its share to within half a sample per tree level.

use std::ops::Range;

#[derive(Debug, Clone)]
pub(crate) struct Mixture {
    /// Running sums of the weights, from 0 to their total.
    sums: Vec<f64>,
}

/// A source, and the number of one of its own samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pick {
    pub(crate) source: usize,
    pub(crate) index: u64,
}

impl Mixture {
    /// Weights are positive and finite; only their ratios count.
    pub(crate) fn new(weights: &[f64]) -> Self {
        let mut sum = 0.0;
        let running = weights.iter().map(|weight| {
            sum += weight;
            sum
        });
        Self { sums: std::iter::once(0.0).chain(running.collect::<Vec<_>>()).collect() }
    }

    pub(crate) fn pick(&self, sample: u64) -> Pick {
        let mut sources: Range<usize> = 0..self.sums.len() - 1;
        let mut index = sample;
        while sources.len() > 1 {
            let middle = sources.start + sources.len() / 2;
            let share = self.left_share(&sources, middle);
            let left = share_of(index, share);
            if share_of(index + 1, share) > left {
                (sources, index) = (sources.start..middle, left);
            } else {
                (sources, index) = (middle..sources.end, index - left);
            }
        }
        Pick { source: sources.start, index }
    }

    /// The share of the sources before `middle`, in units of 2^-64.
    fn left_share(&self, sources: &Range<usize>, middle: usize) -> u64 {
        let whole = self.sums[sources.end] - self.sums[sources.start];
        let left = self.sums[middle] - self.sums[sources.start];
        (left / whole * 2f64.powi(64)) as u64
    }
}

fn share_of(count: u64, share: u64) -> u64 {
    ((u128::from(count) * u128::from(share) + (1 << 63)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_prefix_has_the_proportions(weights in prop::collection::vec(0.01f64..10.0, 1..9)) {
            let mixture = Mixture::new(&weights);
            let total: f64 = weights.iter().sum();
            let levels = f64::from(weights.len().next_power_of_two().ilog2());
            let mut counts = vec![0u64; weights.len()];
            for sample in 0..2000 {
                let pick = mixture.pick(sample);
                prop_assert_eq!(pick.index, counts[pick.source], "own samples come in order, none left out");
                counts[pick.source] += 1;
                for (count, weight) in counts.iter().zip(&weights) {
                    let fair = (sample + 1) as f64 * weight / total;
                    prop_assert!((*count as f64 - fair).abs() <= 0.5 * levels + 1e-6);
                }
            }
        }
    }

    #[test]
    fn two_equal_sources_alternate() {
        let mixture = Mixture::new(&[1.0, 1.0]);
        let sources: Vec<usize> = (0..6).map(|sample| mixture.pick(sample).source).collect();
        assert_eq!(sources, [0, 1, 0, 1, 0, 1]);
    }
}
