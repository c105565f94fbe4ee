//! The KV blocks of a replica: free ones, those in the prefix tree, and those private to a sequence.
//!
//! A block is in exactly one of the three places. Only the tree shares blocks; a sequence's private blocks
//! are never visible to another. Free blocks run out before idle prefixes are evicted.

use crate::prefix::{BlockId, Cached, Held, PrefixTree};
use crate::request::BlockKey;

/// Where the blocks of a replica are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Occupancy {
    pub total: u32,
    pub free: u32,
    /// In the prefix tree and held by no sequence.
    pub idle: u32,
    /// In the prefix tree and held by sequences.
    pub shared: u32,
}

impl Occupancy {
    /// Blocks private to one sequence.
    pub fn private(&self) -> u32 {
        self.total - self.free - self.idle - self.shared
    }

    /// Blocks that running sequences need.
    pub fn used(&self) -> u32 {
        self.total - self.free - self.idle
    }
}

#[derive(Debug, Clone)]
pub(crate) struct KvCache {
    total: u32,
    free: Vec<BlockId>,
    tree: PrefixTree,
    keeps_prefixes: bool,
}

impl KvCache {
    pub(crate) fn new(total: u32, keeps_prefixes: bool) -> Self {
        Self { total, free: (0..total).rev().map(BlockId).collect(), tree: PrefixTree::new(), keeps_prefixes }
    }

    pub(crate) fn occupancy(&self) -> Occupancy {
        Occupancy {
            total: self.total,
            free: self.free.len() as u32,
            idle: self.tree.idle_blocks(),
            shared: self.tree.held_blocks(),
        }
    }

    /// Available blocks: free ones and those that may be evicted.
    pub(crate) fn available(&self) -> u32 {
        self.free.len() as u32 + self.tree.idle_blocks()
    }

    pub(crate) fn cached(&self, keys: &[BlockKey]) -> Cached {
        self.tree.cached(keys)
    }

    /// Moves `count` blocks to the end of `table`, evicting idle prefixes where free blocks do not suffice. The
    /// caller has checked that this many are available.
    pub(crate) fn allocate(&mut self, count: u32, table: &mut Vec<BlockId>) {
        let missing = count.saturating_sub(self.free.len() as u32);
        if missing > 0 {
            self.tree.evict(missing, &mut self.free);
        }
        let kept =
            self.free.len().checked_sub(count as usize).expect("the caller has checked what is available");
        table.extend_from_slice(&self.free[kept..]);
        self.free.truncate(kept);
    }

    /// Frees all blocks of a sequence.
    pub(crate) fn free(&mut self, table: &mut Vec<BlockId>) {
        self.free.append(table);
    }

    pub(crate) fn hold(&mut self, keys: &[BlockKey]) -> Held {
        if keys.is_empty() { Held::NOTHING } else { self.tree.hold(keys) }
    }

    pub(crate) fn hold_again(&mut self, held: Held) {
        self.tree.hold_again(held);
    }

    pub(crate) fn release(&mut self, held: Held) {
        self.tree.release(held);
        if !self.keeps_prefixes {
            self.tree.evict(self.tree.idle_blocks(), &mut self.free);
        }
    }

    /// Makes the first of a sequence's private blocks shareable under `keys`.
    pub(crate) fn share(&mut self, held: Held, keys: &[BlockKey], table: &mut Vec<BlockId>) -> Held {
        let held = self.tree.extend(held, keys, &table[..keys.len()], &mut self.free);
        table.drain(..keys.len());
        held
    }

    pub(crate) fn shared_blocks_of(&self, held: Held) -> Vec<BlockId> {
        self.tree.blocks_of(held)
    }
}
