//! Which keys submissions had, in short: most are new, and nothing has to be asked of the journal to know that.
//!
//! A filter of fixed size. It never says that a key is new which was used, and of a million used ones it takes one in some
//! thousand new ones for used; those are looked up. Until the history is read every key is.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// 4 MiB.
const BITS: u64 = 1 << 25;
/// Bits of one key.
const PROBES: u32 = 4;

#[derive(Debug)]
pub(crate) struct SubmissionKeys {
    bits: Vec<AtomicU64>,
    hasher: RandomState,
    is_complete: AtomicBool,
}

impl Default for SubmissionKeys {
    fn default() -> Self {
        let bits = (0..BITS / 64).map(|_| AtomicU64::new(0)).collect();
        Self { bits, hasher: RandomState::new(), is_complete: AtomicBool::new(false) }
    }
}

impl SubmissionKeys {
    /// Notes a key; false when it was certainly never noted before.
    pub(crate) fn note(&self, key: &str) -> bool {
        let hash = self.hasher.hash_one(key);
        // The steps are odd, so the probes differ.
        let (start, step) = (hash & 0xffff_ffff, hash >> 32 | 1);
        let mut was_set = true;
        for probe in 0..u64::from(PROBES) {
            let bit = (start + probe * step) % BITS;
            let mask = 1 << (bit % 64);
            was_set &= self.bits[(bit / 64) as usize].fetch_or(mask, Ordering::Relaxed) & mask != 0;
        }
        was_set || !self.is_complete.load(Ordering::Acquire)
    }

    /// All keys of the history are noted.
    pub(crate) fn complete(&self) {
        self.is_complete.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_used_is_never_new_and_new_ones_seldom_seem_used() {
        let keys = SubmissionKeys::default();
        assert!(keys.note("ada/before the history was read"));
        for number in 0..100_000 {
            keys.note(&format!("ada/{number}"));
        }
        keys.complete();
        assert!((0..100_000).all(|number| keys.note(&format!("ada/{number}"))));
        let seem_used = (0..10_000).filter(|number| keys.note(&format!("bob/{number}"))).count();
        assert!(seem_used < 20, "{seem_used} of 10,000");
    }
}
