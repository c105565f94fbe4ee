//! A stretch of decode-only steps, timed as one.
//!
//! With `b` decodes the context grows by `b` a step, so step `i` (from 0) takes
//! `base + slope * (context + i * b)`, and the first `k` take
//! `k * base + slope * (k * context + b * k * (k - 1) / 2)`: whole numbers, the same as adding them one by one.

use super::engine::{DecodeTime, Picoseconds};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch {
    pub(crate) began: Picoseconds,
    pub(crate) time: DecodeTime,
    pub(crate) decodes: u32,
    /// Tokens in the KV of the decodes at the beginning.
    pub(crate) context: u64,
}

impl Stretch {
    /// When the first `steps` steps are done.
    pub(crate) fn end(&self, steps: u32) -> Picoseconds {
        let (steps, decodes) = (u128::from(steps), u128::from(self.decodes));
        let context = steps * u128::from(self.context) + decodes * (steps * steps.saturating_sub(1) / 2);
        let elapsed = steps * u128::from(self.time.base) + u128::from(self.time.slope) * context;
        u64::try_from(u128::from(self.began) + elapsed).unwrap_or(u64::MAX)
    }

    /// How many steps have begun before `now`, of at most `limit`: the least number that is done at `now` or
    /// later.
    pub(crate) fn steps_begun(&self, now: Picoseconds, limit: u32) -> u32 {
        let (mut low, mut high) = (0, limit);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.end(middle) >= now {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    /// How long the step after `steps` steps takes.
    pub(crate) fn step(&self, steps: u32) -> Picoseconds {
        self.end(steps + 1) - self.end(steps)
    }

    /// By how much each step is longer than the one before.
    pub(crate) fn growth(&self) -> Picoseconds {
        self.time.slope.saturating_mul(self.decodes.into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_stretch_takes_as_long_as_its_steps(
            base in 1u64..1_000_000_000, slope in 0u64..100_000, decodes in 1u32..500, context in 0u64..1_000_000,
            steps in 0u32..300, part in 0.0f64..1.2,
        ) {
            let stretch = Stretch { began: 77, time: DecodeTime { base, slope }, decodes, context };
            let mut ends = vec![77];
            for step in 0..u64::from(steps) {
                let duration = base + slope * (context + step * u64::from(decodes));
                prop_assert_eq!(stretch.step(step as u32), duration);
                ends.push(ends.last().unwrap() + duration);
            }
            prop_assert_eq!(stretch.end(steps), *ends.last().unwrap());
            let now = 77 + (part * (stretch.end(steps) - 77) as f64) as u64;
            let begun = ends[..steps as usize].iter().filter(|end| **end < now).count() as u32;
            prop_assert_eq!(stretch.steps_begun(now, steps), begun);
        }
    }
}
