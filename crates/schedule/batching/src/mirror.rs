//! A router's estimate of what a replica has cached, from what it sent there.
//!
//! For a router that cannot query the replicas: it remembers the prompts it routed, evicting the oldest as the
//! replica would, and is told when a replica restarts. It does not know what the replica generated.

use crate::blocks::CountedBlocks;
use crate::keys::BlockKeys;
use crate::prefix::PrefixTree;

/// The estimated prefix tree of one replica.
#[derive(Debug, Clone)]
pub struct PrefixMirror {
    tree: PrefixTree<CountedBlocks>,
    capacity: u32,
}

impl PrefixMirror {
    /// `capacity` is the number of blocks that the replica has.
    pub fn new(capacity: u32) -> Self {
        Self { tree: PrefixTree::new(), capacity }
    }

    /// Remembers a prompt that was sent to the replica.
    pub fn observe(&mut self, keys: &BlockKeys) {
        let held = self.tree.hold(keys);
        let (mut table, mut gone) = (CountedBlocks(keys.len()), CountedBlocks::default());
        let held = self.tree.extend(held, keys, &mut table, keys.len(), &mut gone);
        self.tree.release(held);
        let excess = self.tree.idle_blocks().saturating_sub(self.capacity);
        self.tree.evict(excess, &mut gone, None);
    }

    /// Blocks of a prompt that the replica probably has.
    pub fn cached_blocks(&self, keys: &BlockKeys) -> u32 {
        self.tree.known(keys, keys.len())
    }
}
