//! Time limits for traces that have none: prescribed, and the same for every policy.
//!
//! Backfill lives on limits, and users overstate them. `Factor` draws for every job a factor from 1 to 5,
//! evenly in its logarithm, and rounds the product up to a limit that people write. `Exact` knows the run
//! time, to the minute. Both are of the run time in the worst placement that the cluster has, so
//! that no limit is broken by where a scheduler put a job.

use bedplate_gangs::Span;

use bedplate_random::Random;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Estimates {
    #[default]
    Factor,
    Exact,
}

impl Estimates {
    pub const ALL: [(&'static str, Estimates); 2] =
        [("factor", Estimates::Factor), ("exact", Estimates::Exact)];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    /// The limit of the job at `index` that runs for `longest` in its worst placement.
    pub fn limit(self, longest: Span, seed: u64, index: usize) -> Span {
        match self {
            Estimates::Exact => longest.round_up(Span::minutes(1)),
            Estimates::Factor => {
                let factor = LARGEST.powf(Random::stream(seed ^ STREAM, index as u64).unit());
                usual(longest.times(factor))
            }
        }
    }
}

/// Studies of logs find limits several times the run time; the largest factor drawn here is this.
const LARGEST: f64 = 5.0;
/// Keeps these draws apart from others of the same seed.
const STREAM: u64 = 0x6573_7469_6d61_7465;

/// Limits that people write.
const USUAL: [Span; 13] = [
    Span::minutes(15),
    Span::minutes(30),
    Span::hours(1),
    Span::hours(2),
    Span::hours(4),
    Span::hours(8),
    Span::hours(12),
    Span::days(1),
    Span::days(2),
    Span::days(3),
    Span::days(7),
    Span::days(14),
    Span::days(30),
];

/// The next usual limit; beyond the longest, whole months of 30 days.
fn usual(span: Span) -> Span {
    USUAL.into_iter().find(|usual| *usual >= span).unwrap_or(span.round_up(Span::days(30)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_usual_ones_and_never_too_short() {
        for (index, seconds) in [1, 600, 3599, 7201, 100_000, 1_000_000, 9_000_000].into_iter().enumerate() {
            let run = Span::seconds(seconds);
            let limit = Estimates::Factor.limit(run, 7, index);
            assert!(limit >= run && limit <= usual(run.times(LARGEST)), "{run}: {limit}");
            assert_eq!(usual(limit), limit);
            assert_eq!(Estimates::Factor.limit(run, 7, index), limit, "equal seeds, equal limits");
        }
        assert_eq!(Estimates::Exact.limit(Span::seconds(61), 7, 0), Span::minutes(2));
        assert_eq!(usual(Span::days(31)), Span::days(60));
    }
}
