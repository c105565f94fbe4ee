//! Patterns that memory must give back, and digests of results that must be the same every time.

use crate::{BufferValue, Device, View, ViewMut};

/// What memory is filled with: each word follows from the seed and its own place, so that a word that ends up elsewhere is wrong there as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    pub seed: u64,
    /// Every bit the other way round: a cell that is stuck is right in one of the two.
    pub is_inverted: bool,
}

/// Words that are not those of the pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongWords {
    pub count: u64,
    /// The place of the first one.
    pub first: u64,
}

impl Pattern {
    pub(crate) fn word(self, place: u64) -> u64 {
        bedplate_random::nth(self.seed, place) ^ self.mask()
    }

    pub(crate) fn mask(self) -> u64 {
        if self.is_inverted { u64::MAX } else { 0 }
    }
}

impl Device {
    pub fn fill_pattern(&self, to: ViewMut<'_, u64>, pattern: Pattern) {
        on_backend!(self, Memory, fill_pattern(to, pattern));
    }

    /// Words that [`fill_pattern`](Self::fill_pattern) did not put there; none when all are right.
    pub fn find_wrong_words(&self, of: View<'_, u64>, pattern: Pattern) -> Option<WrongWords> {
        on_backend!(self, Memory, find_wrong_words(of, pattern))
    }

    /// A number that follows from every bit and its place, the same on every device. One wrong word always changes it; any number of them, but for one
    /// chance in 2^64. Panics when the elements are not a whole number of four-byte words.
    pub fn digest<E: BufferValue>(&self, of: View<'_, E>) -> u64 {
        assert_eq!(of.bytes().len() % 4, 0, "bytes of four-byte words");
        on_backend!(self, Memory, digest(of.bytes()))
    }
}

/// What one word adds to a digest.
pub(crate) fn share_of_digest(word: u32, place: u64) -> u64 {
    bedplate_random::nth(u64::from(word), place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::on_any_processor;

    const PATTERN: Pattern = Pattern { seed: 7, is_inverted: false };

    #[test]
    fn wrong_words_are_counted_and_the_first_is_named() {
        for (len, is_inverted) in [(1, false), (70_001, true), (200_000, false)] {
            let pattern = Pattern { is_inverted, ..PATTERN };
            let found = on_any_processor(|device| {
                let mut words = device.zeros::<u64>(len);
                device.fill_pattern(words.view_mut(), pattern);
                let clean = device.find_wrong_words(words.view(), pattern);
                let other = device.find_wrong_words(words.view(), PATTERN);
                for place in [len / 2, len - 1] {
                    let mut word = [0];
                    device.read(words.range(place..place + 1), &mut word);
                    device.write(words.range_mut(place..place + 1), &[word[0] ^ 1 << 40]);
                }
                (clean, other.map(|wrong| wrong.count), device.find_wrong_words(words.view(), pattern))
            });
            let planted = WrongWords { count: if len == 1 { 0 } else { 2 }, first: (len / 2) as u64 };
            let all = is_inverted.then_some(len as u64);
            // Two changes of the same bit of one word undo each other.
            assert_eq!(found, (None, all, Some(planted).filter(|wrong| wrong.count > 0)), "{len}");
        }
    }

    #[test]
    fn a_digest_changes_with_every_bit_and_with_the_order() {
        let digest = |words: &[u32]| {
            on_any_processor(|device| {
                let mut buffer = device.zeros::<u32>(words.len());
                device.write(buffer.view_mut(), words);
                device.digest(buffer.view())
            })
        };
        let words: Vec<u32> = (0..70_003).map(|place| place % 11).collect();
        let whole = digest(&words);
        for (place, bit) in [(0, 0), (40_000, 31), (70_002, 7)] {
            let mut changed = words.clone();
            changed[place] ^= 1 << bit;
            assert_ne!(digest(&changed), whole);
        }
        let mut swapped = words.clone();
        swapped.swap(3, 4);
        assert_ne!(digest(&swapped), whole);
    }
}
