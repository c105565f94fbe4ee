//! What is known of a key under a parent: a node of a prefix tree, or replicas.
//!
//! One open-addressing table: a look-up touches one or two cache lines, and nothing is allocated per entry. Only single entries
//! are looked up, so the order of slots cannot affect a decision.

use bedplate_random::mix;

use crate::request::BlockKey;

#[derive(Debug, Clone, Copy)]
struct Slot<V> {
    key: BlockKey,
    parent: u32,
    value: V,
}

#[derive(Debug, Clone)]
pub(crate) struct KeyIndex<V> {
    /// A power of two, at most half full.
    slots: Vec<Slot<V>>,
    len: usize,
    /// A slot without an entry; no entry has its value.
    vacant: Slot<V>,
}

impl<V: Copy + PartialEq> KeyIndex<V> {
    /// An empty index whose entries never have the value `nothing`.
    pub(crate) fn new(nothing: V) -> Self {
        let vacant = Slot { key: BlockKey(0), parent: 0, value: nothing };
        Self { slots: vec![vacant; 64], len: 0, vacant }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, parent: u32, key: BlockKey) -> Option<V> {
        let slot = &self.slots[self.position(parent, key)];
        (!self.is_vacant(slot)).then_some(slot.value)
    }

    /// Adds or replaces the entry.
    pub(crate) fn set(&mut self, parent: u32, key: BlockKey, value: V) {
        if (self.len + 1) * 2 > self.slots.len() {
            self.grow();
        }
        let at = self.position(parent, key);
        self.len += usize::from(self.is_vacant(&self.slots[at]));
        self.slots[at] = Slot { key, parent, value };
    }

    pub(crate) fn remove(&mut self, parent: u32, key: BlockKey) {
        let mut hole = self.position(parent, key);
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
            let home = self.home(slot.parent, slot.key);
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

    fn home(&self, parent: u32, key: BlockKey) -> usize {
        mix(key.0 ^ (u64::from(parent) << 32)) as usize & (self.slots.len() - 1)
    }

    /// Where the entry is, or the vacant slot where it would be.
    fn position(&self, parent: u32, key: BlockKey) -> usize {
        let mut at = self.home(parent, key);
        loop {
            let slot = &self.slots[at];
            if self.is_vacant(slot) || (slot.parent == parent && slot.key == key) {
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
            let at = self.position(slot.parent, slot.key);
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
            operations in prop::collection::vec((any::<bool>(), 0u32..8, 0u64..40, 0u32..1000), 0..400),
        ) {
            let mut index = KeyIndex::new(u32::MAX);
            let mut model = BTreeMap::new();
            for (adds, parent, key, child) in operations {
                let key = BlockKey(key);
                if adds {
                    index.set(parent, key, child);
                    model.insert((parent, key), child);
                } else if model.remove(&(parent, key)).is_some() {
                    index.remove(parent, key);
                }
                for parent in 0..8 {
                    for key in (0..40).map(BlockKey) {
                        prop_assert_eq!(index.get(parent, key), model.get(&(parent, key)).copied());
                    }
                }
            }
        }
    }
}
