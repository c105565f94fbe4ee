//! A shuffle of `0..size` that is computed entry by entry, so that no shuffled list is kept.
//!
//! A Feistel network permutes the smallest set of numbers with an even count of bits that holds `size`; a number
//! that falls outside is sent through again until it falls inside (cycle walking: Black and Rogaway 2002).
//! The set is less than four times as large, so that takes fewer than four passes on average.

use bedplate_random::{key, mix};

const ROUNDS: usize = 6;

#[derive(Debug, Clone)]
pub(crate) struct Permutation {
    size: u64,
    half_bits: u32,
    round_keys: [u64; ROUNDS],
}

impl Permutation {
    /// The shuffle of `0..size` that belongs to this key.
    pub(crate) fn new(size: u64, seed: u64) -> Self {
        let bits = u64::BITS - size.saturating_sub(1).leading_zeros();
        Self {
            size,
            half_bits: bits.div_ceil(2).max(1),
            round_keys: std::array::from_fn(|round| key(&[seed, round as u64])),
        }
    }

    /// Where `index`, which is below the size, is sent.
    pub(crate) fn at(&self, index: u64) -> u64 {
        debug_assert!(index < self.size);
        let mut place = self.pass(index);
        while place >= self.size {
            place = self.pass(place);
        }
        place
    }

    fn pass(&self, number: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for round_key in self.round_keys {
            (left, right) = (right, left ^ (mix(right ^ round_key) & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_number_comes_exactly_once(size in 1u64..3000, seed: u64) {
            let permutation = Permutation::new(size, seed);
            let mut seen: Vec<u64> = (0..size).map(|index| permutation.at(index)).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..size).collect::<Vec<_>>());
        }

        #[test]
        fn large_sizes_stay_in_range_and_do_not_collide(size in 1u64 << 40..1 << 50, seed: u64, index in 0u64..1 << 39) {
            let permutation = Permutation::new(size, seed);
            let (here, next) = (permutation.at(index), permutation.at(index + 1));
            prop_assert!(here < size && next < size && here != next);
        }
    }

    /// How often each number is sent to each tenth of the range: 20 seeds' worth must be near a fair share.
    #[test]
    fn all_places_are_about_equally_likely() {
        let mut counts = [0u32; 10];
        for seed in 0..2000 {
            counts[Permutation::new(10, seed).at(3) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (140..=260).contains(count)), "{counts:?}");
    }

    #[test]
    fn neighbours_are_torn_apart() {
        let permutation = Permutation::new(100_000, 7);
        let near =
            (0..99_999).filter(|index| permutation.at(*index).abs_diff(permutation.at(index + 1)) < 100);
        // By chance two places lie that near in one case of 500.
        assert!(near.count() < 300);
    }
}
