//! A small seeded generator, so that equal seeds give equal replays everywhere.

use bedplate_batching::mix;

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// A stream of its own for every `index` of one seed.
    pub(crate) fn of(seed: u64, index: u64) -> Self {
        let mut mixer = Self(seed ^ index.wrapping_mul(0xd134_2543_de82_ef95));
        Self(mixer.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// In (0, 1].
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// A whole number in `low..=high`.
    pub(crate) fn whole(&mut self, low: u32, high: u32) -> u32 {
        let span = u64::from(high.saturating_sub(low)) + 1;
        low + ((u128::from(self.next()) * u128::from(span)) >> 64) as u32
    }

    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }

    /// Normal with mean 0 and variance 1 (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// One of several values by their weights.
    pub(crate) fn choose<T: Copy>(&mut self, weighted: &[(T, f64)]) -> T {
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
