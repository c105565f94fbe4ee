//! What a storm draws from its seed.

#[derive(Debug, Clone)]
pub(crate) struct Random(bedplate_random::Random);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(bedplate_random::Random::new(seed.wrapping_mul(bedplate_random::STEP) ^ 0x5DEE_CE66))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.number()
    }

    /// From `low` up to but not including `high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low).max(1)
    }

    /// True in `percent` of a hundred cases.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}
