//! Numbers that look random and follow from a seed alone: SplitMix64 (Steele, Lea, Flood 2014).
//!
//! Storms, the order of data, initial weights and generated loads depend on these sequences, so they never
//! change. Not for secrets.
//!
//! ```
//! let mut random = bedplate_random::Random::new(7);
//! let first = random.number();
//! assert_eq!(first, bedplate_random::nth(7, 0));
//! ```

/// What a generator adds to its state for every number.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads a number over all its bits; a bijection.
#[inline]
pub const fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The number that a generator of this seed gives after `place` others.
#[inline]
pub const fn nth(seed: u64, place: u64) -> u64 {
    mix(seed.wrapping_add(place.wrapping_add(1).wrapping_mul(STEP)))
}

/// One key made of several parts, of which the order counts.
pub fn key(parts: &[u64]) -> u64 {
    parts.iter().fold(STEP, |key, part| mix(key.wrapping_add(STEP) ^ nth(*part, 0)))
}

/// Bits as a fraction in [0, 1).
#[inline]
pub fn fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Gives one number after the other; the same seed gives the same ones.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator for seeds that differ in few bits only.
    pub const fn scattered(seed: u64) -> Self {
        Self(nth(seed, 0))
    }

    /// A stream of its own for every `index` of one seed.
    pub const fn stream(seed: u64, index: u64) -> Self {
        Self::scattered(seed ^ index.wrapping_mul(0xd134_2543_de82_ef95))
    }

    #[inline]
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `bound`, which is not zero.
    #[inline]
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.number()) * bound as u128) >> 64) as usize
    }

    /// Likewise, as a remainder. Old seeds of storms depend on it.
    #[inline]
    pub fn remainder(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// True in this share of the cases, given in hundredths.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A whole number in `low..=high`.
    pub fn whole(&mut self, low: u32, high: u32) -> u32 {
        let span = u64::from(high.saturating_sub(low)) + 1;
        low + self.below(span as usize) as u32
    }

    /// In [0, 1).
    #[inline]
    pub fn uniform(&mut self) -> f64 {
        fraction(self.number())
    }

    /// In (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.number() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }

    /// Normal with mean 0 and variance 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// One of several values by their weights.
    pub fn choose<T: Copy>(&mut self, weighted: &[(T, f64)]) -> T {
        let total: f64 = weighted.iter().map(|(_, weight)| weight).sum();
        let mut left = self.unit() * total;
        for (value, weight) in weighted {
            left -= weight;
            if left <= 0.0 {
                return *value;
            }
        }
        weighted.last().expect("there is something to choose from").0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Java's `SplittableRandom` and the reference in C give these.
    #[test]
    fn the_sequences_are_those_of_the_reference() {
        let first = |seed| -> Vec<u64> {
            let mut random = Random::new(seed);
            (0..3).map(|_| random.number()).collect()
        };
        assert_eq!(first(0), [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
        assert_eq!(
            first(1_234_567),
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    /// Data that were ordered and weights that were drawn once must come out the same for ever.
    #[test]
    fn what_is_derived_from_them_stays() {
        assert_eq!(nth(0, 1), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(key(&[1, 2]), 0x8573_9e39_e668_d3f5);
        assert_eq!(Random::scattered(1).number(), nth(nth(1, 0), 0));
        assert_eq!(Random::stream(1, 2).number(), 0xde24_7210_6ae1_f0c5);
        let mut random = Random::new(0);
        assert_eq!((random.below(1000), random.whole(10, 19)), (883, 14));
        assert_eq!(Random::new(0).remainder(1000), 0xe220_a839_7b1d_cdaf % 1000);
        assert_eq!(Random::new(0).uniform(), 0.8833108082136426);
        assert_eq!(Random::new(0).unit(), 0.8833108082136427);
    }
}
