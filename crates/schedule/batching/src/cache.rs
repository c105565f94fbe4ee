//! The KV blocks of a replica: free ones, those in the prefix tree, and those private to a sequence.
//!
//! A block is in exactly one of the three places. Only the tree shares blocks; a sequence's private blocks
//! are never visible to another. Free blocks run out before idle prefixes are evicted.

use crate::blocks::{BlockId, BlockList};
use crate::keys::BlockKeys;
use crate::prefix::{Cached, Evicted, HeldPrefix, PrefixTree};

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
pub(crate) struct KvCache<B> {
    total: u32,
    free: B,
    tree: PrefixTree<B>,
    keeps_prefixes: bool,
    /// What was evicted since it was last asked for, where anybody asks.
    evicted: Option<Vec<Evicted>>,
}

impl<B: BlockList> KvCache<B> {
    pub(crate) fn new(total: u32, keeps_prefixes: bool) -> Self {
        Self { total, free: B::all(total), tree: PrefixTree::new(), keeps_prefixes, evicted: None }
    }

    pub(crate) fn occupancy(&self) -> Occupancy {
        Occupancy {
            total: self.total,
            free: self.free.len(),
            idle: self.tree.idle_blocks(),
            shared: self.tree.held_blocks(),
        }
    }

    /// Available blocks: free ones and those that may be evicted.
    pub(crate) fn available(&self) -> u32 {
        self.free.len() + self.tree.idle_blocks()
    }

    pub(crate) fn cached(&self, keys: &BlockKeys, most: u32) -> Cached {
        self.tree.cached(keys, most)
    }

    pub(crate) fn known(&self, keys: &BlockKeys, most: u32) -> u32 {
        self.tree.known(keys, most)
    }

    /// Moves `count` blocks to the end of `table`, evicting idle prefixes where free blocks do not suffice. The
    /// caller has checked that this many are available.
    pub(crate) fn allocate(&mut self, count: u32, table: &mut B) {
        self.make_free(count);
        let free = self.free.len();
        let kept = free.checked_sub(count).expect("the caller has checked what is available");
        table.append(&self.free, kept..free);
        self.free.truncate(kept);
    }

    /// Evicts idle prefixes until `count` blocks are free.
    pub(crate) fn make_free(&mut self, count: u32) {
        let missing = count.saturating_sub(self.free.len());
        if missing > 0 {
            self.tree.evict(missing, &mut self.free, self.evicted.as_mut());
        }
    }

    /// Frees the blocks of a sequence behind those that it shares.
    pub(crate) fn free(&mut self, table: &mut B, shared: u32) {
        self.free.append(table, shared..table.len());
        table.truncate(0);
    }

    /// Holds what was found, as long as nothing has changed since, and adds its blocks to a table.
    pub(crate) fn hold(&mut self, cached: &Cached, table: &mut B) -> HeldPrefix {
        let held = self.tree.hold_cached(cached);
        self.tree.list(held, table);
        held
    }

    pub(crate) fn hold_again(&mut self, held: HeldPrefix) {
        self.tree.hold_again(held);
    }

    pub(crate) fn release(&mut self, held: HeldPrefix) {
        self.tree.release(held);
        if !self.keeps_prefixes {
            self.tree.evict(self.tree.idle_blocks(), &mut self.free, None);
        }
    }

    /// Makes more of a sequence's blocks shareable: its first `full` ones.
    pub(crate) fn share(
        &mut self,
        held: HeldPrefix,
        keys: &BlockKeys,
        full: u32,
        table: &mut B,
    ) -> HeldPrefix {
        self.tree.extend(held, keys, table, full, &mut self.free)
    }

    pub(crate) fn tree_mut(&mut self) -> &mut PrefixTree<B> {
        &mut self.tree
    }

    pub(crate) fn watch_evictions(&mut self) {
        self.evicted.get_or_insert_default();
    }

    pub(crate) fn take_evicted(&mut self) -> Vec<Evicted> {
        self.evicted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Gives the tree idle blocks for the keys behind those that it has, at most `most` new ones.
    pub(crate) fn adopt(&mut self, keys: &BlockKeys, most: u32) -> (u32, Vec<BlockId>) {
        let held = self.tree.hold(keys);
        let mut table = B::default();
        self.tree.list(held, &mut table);
        self.allocate((keys.len() - held.blocks).min(most).min(self.available()), &mut table);
        let end = table.len();
        let all = self.tree.extend(held, keys, &mut table, end, &mut self.free);
        self.tree.release(all);
        (held.blocks, table.numbers()[held.blocks as usize..].to_vec())
    }

    /// Adds the blocks of a held prefix to a table.
    #[cfg(test)]
    pub(crate) fn list(&self, held: HeldPrefix, table: &mut B) {
        self.tree.list(held, table);
    }
}
