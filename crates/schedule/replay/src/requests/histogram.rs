//! Durations counted in buckets that are 1/64 to 1/128 of their value wide, so that quantiles are within 1.6 %.

use super::engine::Picoseconds;
use super::stretch::Stretch;

const BITS: u32 = 6;
const PER_OCTAVE: u64 = 1 << BITS;

#[derive(Debug, Clone, Default)]
pub(crate) struct ReplayHistogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    longest: Picoseconds,
}

impl ReplayHistogram {
    pub(crate) fn add(&mut self, value: Picoseconds, weight: u64) {
        if weight == 0 {
            return;
        }
        let bucket = bucket(value);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += weight;
        self.count += weight;
        self.sum += u128::from(value) * u128::from(weight);
        self.longest = self.longest.max(value);
    }

    /// Adds the steps `from..to` of a stretch, one duration per decode each. Steps of one bucket are added at
    /// once.
    pub(crate) fn add_stretch(&mut self, stretch: &Stretch, from: u32, to: u32) {
        let decodes = u64::from(stretch.decodes);
        let mut at = from;
        while at < to {
            let first = stretch.step(at);
            let last = if stretch.growth() == 0 {
                to
            } else {
                let room = upper(bucket(first)).saturating_sub(first) / stretch.growth();
                to.min(at.saturating_add(u32::try_from(room).unwrap_or(u32::MAX)).saturating_add(1))
            };
            let steps = u64::from(last - at);
            self.add(first, decodes * steps);
            let above = u128::from(stretch.growth()) * u128::from(steps * (steps - 1) / 2);
            self.sum += above * u128::from(decodes);
            self.longest = self.longest.max(first + stretch.growth() * (steps - 1));
            at = last;
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn longest(&self) -> Picoseconds {
        self.longest
    }

    pub(crate) fn mean(&self) -> Picoseconds {
        self.sum.checked_div(self.count.into()).unwrap_or(0) as u64
    }

    /// The upper end of the bucket that has the quantile, at most the longest value.
    pub(crate) fn quantile(&self, share: f64) -> Picoseconds {
        let rank = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper(bucket).min(self.longest);
            }
        }
        0
    }
}

fn bucket(value: Picoseconds) -> usize {
    let octave = (u64::BITS - value.leading_zeros()).saturating_sub(BITS + 1);
    (u64::from(octave) * PER_OCTAVE + (value >> octave)) as usize
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> Picoseconds {
    let bucket = bucket as u64;
    let octave = (bucket / PER_OCTAVE).saturating_sub(1);
    let lead = u128::from(bucket - octave * PER_OCTAVE);
    u64::try_from(((lead + 1) << octave) - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::engine::DecodeTime;
    use super::*;

    proptest! {
        #[test]
        fn every_value_lies_in_its_bucket(value in any::<u64>()) {
            let bucket = bucket(value);
            prop_assert!(value <= upper(bucket));
            prop_assert!(bucket == 0 || value > upper(bucket - 1));
            prop_assert!(upper(bucket) as f64 <= value as f64 * 1.016 + 1.0);
        }

        #[test]
        fn a_stretch_counts_like_its_steps(
            base in 1u64..100_000, slope in 0u64..100, decodes in 1u32..50, context in 0u64..1000, steps in 1u32..300,
        ) {
            let stretch = Stretch { began: 0, time: DecodeTime { base, slope }, decodes, context };
            let (mut at_once, mut one_by_one) = (ReplayHistogram::default(), ReplayHistogram::default());
            at_once.add_stretch(&stretch, 0, steps);
            for step in 0..steps {
                one_by_one.add(stretch.step(step), decodes.into());
            }
            prop_assert_eq!(at_once.counts, one_by_one.counts);
            prop_assert_eq!(
                (at_once.count, at_once.sum, at_once.longest),
                (one_by_one.count, one_by_one.sum, one_by_one.longest)
            );
        }
    }
}
