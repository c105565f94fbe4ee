//! The children of the prefix tree's nodes, found by parent and first key.
//!
//! One open-addressing table for the whole tree: a look-up touches one or two cache lines, and nothing is
//! allocated per node. It is only ever asked for one entry, so no order of its slots can reach a decision.

use bedplate_random::mix;

use crate::request::BlockKey;

const EMPTY: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Slot {
    key: BlockKey,
    parent: u32,
    child: u32,
}

const VACANT: Slot = Slot { key: BlockKey(0), parent: 0, child: EMPTY };

#[derive(Debug, Clone)]
pub(crate) struct ChildIndex {
    /// A power of two, at most half full.
    slots: Vec<Slot>,
    len: usize,
}

impl ChildIndex {
    pub(crate) fn new() -> Self {
        Self { slots: vec![VACANT; 64], len: 0 }
    }

    pub(crate) fn get(&self, parent: u32, key: BlockKey) -> Option<u32> {
        let slot = self.slots[self.position(parent, key)];
        (slot.child != EMPTY).then_some(slot.child)
    }

    /// Adds the child or puts it in the place of the one that was there.
    pub(crate) fn set(&mut self, parent: u32, key: BlockKey, child: u32) {
        if (self.len + 1) * 2 > self.slots.len() {
            self.grow();
        }
        let at = self.position(parent, key);
        self.len += usize::from(self.slots[at].child == EMPTY);
        self.slots[at] = Slot { key, parent, child };
    }

    pub(crate) fn remove(&mut self, parent: u32, key: BlockKey) {
        let mut hole = self.position(parent, key);
        assert!(self.slots[hole].child != EMPTY, "only children that exist are removed");
        self.len -= 1;
        let mask = self.slots.len() - 1;
        let mut at = hole;
        // Entries behind the hole move up unless that would put them before their own place.
        loop {
            at = (at + 1) & mask;
            let slot = self.slots[at];
            if slot.child == EMPTY {
                break;
            }
            let home = self.home(slot.parent, slot.key);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = VACANT;
    }

    fn home(&self, parent: u32, key: BlockKey) -> usize {
        mix(key.0 ^ (u64::from(parent) << 32)) as usize & (self.slots.len() - 1)
    }

    /// Where the entry is, or the vacant slot where it would be.
    fn position(&self, parent: u32, key: BlockKey) -> usize {
        let mut at = self.home(parent, key);
        loop {
            let slot = &self.slots[at];
            if slot.child == EMPTY || (slot.parent == parent && slot.key == key) {
                return at;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    fn grow(&mut self) {
        let larger = vec![VACANT; self.slots.len() * 2];
        let slots = std::mem::replace(&mut self.slots, larger);
        for slot in slots.into_iter().filter(|slot| slot.child != EMPTY) {
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
            let mut index = ChildIndex::new();
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
