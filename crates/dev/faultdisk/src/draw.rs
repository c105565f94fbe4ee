//! Random choices from a seed.

/// The same seed gives the same choices.
#[derive(Debug, Clone)]
pub struct Draw(bedplate_random::Random);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(bedplate_random::Random::new(seed))
    }

    pub fn number(&mut self) -> u64 {
        self.0.number()
    }

    /// A number below `limit`, which is not zero.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit as u64) as usize
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}
