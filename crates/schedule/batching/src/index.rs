//! What is known of runs of keys, by their origins.
//!
//! One open-addressing table: a look-up touches one or two cache lines, and nothing is allocated per entry. Only single entries
//! are looked up, so the order of slots cannot affect a decision.

use bedplate_random::mix;

#[derive(Debug, Clone, Copy)]
struct Slot<V> {
    origin: u64,
    value: V,
}

#[derive(Debug, Clone)]
pub(crate) struct RunIndex<V> {
    /// A power of two, at most half full.
    slots: Vec<Slot<V>>,
    len: usize,
    /// A slot without an entry; no entry has its value.
    vacant: Slot<V>,
}

impl<V: Copy + PartialEq> RunIndex<V> {
    /// An empty index whose entries never have the value `nothing`.
    pub(crate) fn new(nothing: V) -> Self {
        let vacant = Slot { origin: 0, value: nothing };
        Self { slots: vec![vacant; 64], len: 0, vacant }
    }

    pub(crate) fn get(&self, origin: u64) -> Option<V> {
        let slot = &self.slots[self.position(origin)];
        (!self.is_vacant(slot)).then_some(slot.value)
    }

    /// Adds or replaces the entry.
    pub(crate) fn set(&mut self, origin: u64, value: V) {
        if (self.len + 1) * 2 > self.slots.len() {
            self.grow();
        }
        let at = self.position(origin);
        self.len += usize::from(self.is_vacant(&self.slots[at]));
        self.slots[at] = Slot { origin, value };
    }

    pub(crate) fn remove(&mut self, origin: u64) {
        let mut hole = self.position(origin);
        assert!(!self.is_vacant(&self.slots[hole]), "only entries that exist are removed");
        self.len -= 1;
        let mask = self.slots.len() - 1;
        let mut at = hole;
        // Entries after the hole move up unless that would put them before their home slot.
        loop {
            at = (at + 1) & mask;
            let slot = self.slots[at];
            if self.is_vacant(&slot) {
                break;
            }
            let home = self.home(slot.origin);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = self.vacant;
    }

    fn is_vacant(&self, slot: &Slot<V>) -> bool {
        slot.value == self.vacant.value
    }

    fn home(&self, origin: u64) -> usize {
        mix(origin) as usize & (self.slots.len() - 1)
    }

    /// Where the entry is, or the vacant slot where it would be.
    fn position(&self, origin: u64) -> usize {
        let mut at = self.home(origin);
        loop {
            let slot = &self.slots[at];
            if self.is_vacant(slot) || slot.origin == origin {
                return at;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    fn grow(&mut self) {
        let larger = vec![self.vacant; self.slots.len() * 2];
        let slots = std::mem::replace(&mut self.slots, larger);
        let vacant = self.vacant.value;
        for slot in slots.into_iter().filter(|slot| slot.value != vacant) {
            let at = self.position(slot.origin);
            self.slots[at] = slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_answers_like_an_ordered_map(
            operations in prop::collection::vec((any::<bool>(), 0u64..300, 0u32..1000), 0..400),
        ) {
            let mut index = RunIndex::new(u32::MAX);
            let mut model = BTreeMap::new();
            for (adds, origin, value) in operations {
                if adds {
                    index.set(origin, value);
                    model.insert(origin, value);
                } else if model.remove(&origin).is_some() {
                    index.remove(origin);
                }
                for origin in 0..300 {
                    prop_assert_eq!(index.get(origin), model.get(&origin).copied());
                }
            }
        }
    }
}
