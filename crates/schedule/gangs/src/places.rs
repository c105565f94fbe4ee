//! How many gangs stand before one in the queue, without counting them one by one.
//!
//! A search tree whose nodes know how many entries are below them. It is balanced by weights that follow from the numbers
//! of the jobs, so equal queues have equal trees.

use crate::JobId;
use crate::counted::look;
use crate::priority::Rank;

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone)]
pub(crate) struct Places {
    nodes: Vec<Node>,
    root: u32,
    unused: Vec<u32>,
}

#[derive(Debug, Clone)]
struct Node {
    key: (Rank, JobId),
    /// Below a node none is heavier.
    weight: u64,
    /// Entries of the tree of which it is the root.
    size: u32,
    left: u32,
    right: u32,
}

impl Default for Places {
    fn default() -> Self {
        Self { nodes: Vec::new(), root: NONE, unused: Vec::new() }
    }
}

impl Places {
    pub(crate) fn insert(&mut self, key: (Rank, JobId)) {
        let weight = (key.1.0 ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let weight = (weight ^ weight >> 29).wrapping_mul(0x94d0_49bb_1331_11eb);
        let node = Node { key, weight: weight ^ weight >> 32, size: 1, left: NONE, right: NONE };
        let new = match self.unused.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        let (before, after) = self.split(self.root, &key);
        let before = self.join(before, new);
        self.root = self.join(before, after);
    }

    pub(crate) fn remove(&mut self, key: &(Rank, JobId)) {
        let (before, rest) = self.split(self.root, key);
        let after = self.without_first(rest, key);
        self.root = self.join(before, after);
    }

    /// Forgets all, and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
        self.unused.clear();
        self.root = NONE;
    }

    /// How many entries are smaller.
    pub(crate) fn before(&self, key: &(Rank, JobId)) -> usize {
        let (mut at, mut before) = (self.root, 0);
        while at != NONE {
            let node = look(&self.nodes[at as usize]);
            if node.key < *key {
                before += self.size(node.left) + 1;
                at = node.right;
            } else {
                at = node.left;
            }
        }
        before as usize
    }

    fn size(&self, at: u32) -> u32 {
        if at == NONE { 0 } else { self.nodes[at as usize].size }
    }

    fn set(&mut self, at: u32, left: u32, right: u32) -> u32 {
        let size = self.size(left) + self.size(right) + 1;
        let node = look(&mut self.nodes[at as usize]);
        (node.left, node.right, node.size) = (left, right, size);
        at
    }

    /// What is smaller than a key, and the rest.
    fn split(&mut self, at: u32, key: &(Rank, JobId)) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        let Node { key: own, left, right, .. } = self.nodes[at as usize];
        if own < *key {
            let (smaller, rest) = self.split(right, key);
            (self.set(at, left, smaller), rest)
        } else {
            let (smaller, rest) = self.split(left, key);
            (smaller, self.set(at, rest, right))
        }
    }

    /// Two trees of which all of the first is smaller.
    fn join(&mut self, first: u32, second: u32) -> u32 {
        if first == NONE || second == NONE {
            return if first == NONE { second } else { first };
        }
        let (a, b) = (&self.nodes[first as usize], &self.nodes[second as usize]);
        if a.weight >= b.weight {
            let (left, right) = (a.left, a.right);
            let right = self.join(right, second);
            self.set(first, left, right)
        } else {
            let (left, right) = (b.left, b.right);
            let left = self.join(first, left);
            self.set(second, left, right)
        }
    }

    /// A tree without its first entry, where that is this one.
    fn without_first(&mut self, at: u32, key: &(Rank, JobId)) -> u32 {
        if at == NONE {
            return NONE;
        }
        let Node { key: own, left, right, .. } = self.nodes[at as usize];
        if left != NONE {
            let left = self.without_first(left, key);
            return self.set(at, left, right);
        }
        if own != *key {
            return at;
        }
        self.unused.push(at);
        right
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::{GangRequest, RoleRequest, Settings, Span, Time};

    fn key(points: i64, job: u64) -> (Rank, JobId) {
        let request = GangRequest::new(JobId(job), RoleRequest::new(1, 1));
        let prospect = crate::priority::Prospect {
            run: Span::ZERO,
            longest_wait: Span::ZERO,
            bounds: crate::experience::Bounds::default(),
        };
        (Rank::new(&request, &Settings::default(), points, prospect, Time::ZERO, Time::ZERO), JobId(job))
    }

    proptest! {
        #[test]
        fn places_are_those_of_a_sorted_list(steps in prop::collection::vec((any::<bool>(), 0i64..4, 0u64..30), 0..200)) {
            let (mut places, mut sorted) = (Places::default(), BTreeSet::new());
            for (comes, points, job) in steps {
                let key = key(points, job);
                if comes && sorted.insert(key) {
                    places.insert(key);
                } else if !comes {
                    sorted.remove(&key);
                    places.remove(&key);
                }
                for other in &sorted {
                    prop_assert_eq!(places.before(other), sorted.range(..other).count());
                }
            }
        }
    }
}
