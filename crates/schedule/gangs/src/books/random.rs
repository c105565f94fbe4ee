//! What a storm draws from its seed.

#[derive(Debug, Clone)]
pub(super) struct Random(bedplate_random::Random);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(bedplate_random::Random::new(seed))
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0.remainder(bound)
    }

    /// A small count.
    pub(super) fn few(&mut self, bound: u32) -> u32 {
        self.below(bound.into()) as u32
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize].clone()
    }
}
