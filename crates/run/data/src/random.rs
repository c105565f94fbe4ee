//! Numbers that look random and depend on a seed alone: SplitMix64 (Steele, Lea, Flood 2014).

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads a number over all its bits; a bijection.
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// One key from several parts; their order matters.
pub(crate) fn key(parts: &[u64]) -> u64 {
    parts.iter().fold(STEP, |key, part| mix(key.wrapping_add(STEP) ^ mix(part.wrapping_add(STEP))))
}

/// A sequence of numbers that depends only on the seed.
#[derive(Debug, Clone)]
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix(seed.wrapping_add(STEP)))
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.number()) * bound as u128) >> 64) as usize
    }

    /// True with this probability, in percent.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}
