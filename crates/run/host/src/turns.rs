//! Work that waits, owner by owner: each owner's in the order in which it came, the owners in turn, so that however much one
//! of them asks for, the others wait for one piece of it and not for all.

use std::collections::{BTreeMap, VecDeque};

#[derive(Debug, Clone)]
pub struct FairQueue<K, T> {
    waiting: BTreeMap<K, VecDeque<T>>,
    /// Owners that have something waiting, the next first.
    order: VecDeque<K>,
    len: usize,
}

impl<K, T> Default for FairQueue<K, T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), order: VecDeque::new(), len: 0 }
    }
}

impl<K: Ord + Clone, T> FairQueue<K, T> {
    pub fn push(&mut self, owner: K, piece: T) {
        let waiting = self.waiting.entry(owner.clone()).or_default();
        if waiting.is_empty() {
            self.order.push_back(owner);
        }
        waiting.push_back(piece);
        self.len += 1;
    }

    /// The next piece of the owner whose turn it is.
    pub fn pop(&mut self) -> Option<T> {
        self.take(|_, _| true).map(|(_, piece)| piece)
    }

    /// What waits of an owner.
    pub fn of(&self, owner: &K) -> impl Iterator<Item = &T> {
        self.waiting.get(owner).into_iter().flatten()
    }

    /// The first piece that may be taken, of the first owner who has one; that owner is the last from then on.
    pub fn take(&mut self, may: impl Fn(&K, &T) -> bool) -> Option<(K, T)> {
        for turn in 0..self.order.len() {
            let owner = &self.order[turn];
            let waiting = self.waiting.get_mut(owner)?;
            let Some(at) = waiting.iter().position(|piece| may(owner, piece)) else { continue };
            let piece = waiting.remove(at)?;
            let owner = self.order.remove(turn)?;
            self.len -= 1;
            if self.waiting.get(&owner).is_some_and(VecDeque::is_empty) {
                self.waiting.remove(&owner);
            } else {
                self.order.push_back(owner.clone());
            }
            return Some((owner, piece));
        }
        None
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_owner_delays_others_by_one_piece() {
        let mut turns = FairQueue::default();
        (0..10_000).for_each(|piece| turns.push("mallory", piece));
        turns.push("ada", -1);
        turns.push("bob", -2);
        turns.push("ada", -3);
        let taken: Vec<i32> = std::iter::from_fn(|| turns.pop()).take(6).collect();
        assert_eq!(taken, [0, -1, -2, 1, -3, 2]);
        assert_eq!(turns.len(), 9_997);
    }

    #[test]
    fn what_may_not_be_taken_yet_stays_where_it_is() {
        let mut turns = FairQueue::default();
        for piece in [3, 4, 5] {
            turns.push("ada", piece);
        }
        turns.push("bob", 7);
        assert_eq!(turns.take(|_, piece| piece % 2 == 0), Some(("ada", 4)));
        assert_eq!(turns.take(|owner, _| *owner == "carol"), None);
        assert_eq!(std::iter::from_fn(|| turns.pop()).collect::<Vec<i32>>(), [7, 3, 5]);
        assert!(turns.is_empty());
    }
}
