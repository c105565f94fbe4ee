//! Lists of KV blocks: by their numbers for an engine, or merely counted.
//!
//! A simulated replica has no memory that blocks could be in, and a router's mirror of a replica does not know them. Both decide
//! as an engine does, on numbers of blocks alone.

use std::fmt;
use std::ops::Range;

/// One KV block of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// A list of blocks.
pub trait BlockList: Clone + fmt::Debug + Default {
    /// All blocks of a replica that has so many.
    fn all(total: u32) -> Self;

    fn len(&self) -> u32;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a part of another list to the end.
    fn append(&mut self, from: &Self, part: Range<u32>);

    fn truncate(&mut self, len: u32);

    /// Puts a part of another list in the place of as many blocks from `at` on.
    fn replace(&mut self, at: u32, from: &Self, part: Range<u32>);

    /// Adds whole lists, which have `total` blocks, to the end.
    fn append_lists<'a>(&mut self, total: u32, lists: impl FnOnce() -> Vec<&'a Self>)
    where
        Self: 'a;

    /// The numbers of the blocks; none where they are only counted.
    fn numbers(&self) -> &[BlockId];
}

impl BlockList for Vec<BlockId> {
    fn all(total: u32) -> Self {
        (0..total).rev().map(BlockId).collect()
    }

    fn len(&self) -> u32 {
        self.as_slice().len() as u32
    }

    fn append(&mut self, from: &Self, part: Range<u32>) {
        self.extend_from_slice(&from[part.start as usize..part.end as usize]);
    }

    fn truncate(&mut self, len: u32) {
        self.truncate(len as usize);
    }

    fn replace(&mut self, at: u32, from: &Self, part: Range<u32>) {
        let from = &from[part.start as usize..part.end as usize];
        self[at as usize..][..from.len()].copy_from_slice(from);
    }

    fn append_lists<'a>(&mut self, total: u32, lists: impl FnOnce() -> Vec<&'a Self>) {
        self.reserve(total as usize);
        lists().into_iter().for_each(|list| self.extend_from_slice(list));
    }

    fn numbers(&self) -> &[BlockId] {
        self
    }
}

/// Blocks that are only counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CountedBlocks(pub(crate) u32);

impl BlockList for CountedBlocks {
    fn all(total: u32) -> Self {
        Self(total)
    }

    fn len(&self) -> u32 {
        self.0
    }

    fn append(&mut self, _from: &Self, part: Range<u32>) {
        self.0 += part.end - part.start;
    }

    fn truncate(&mut self, len: u32) {
        self.0 = self.0.min(len);
    }

    fn replace(&mut self, _at: u32, _from: &Self, _part: Range<u32>) {}

    fn append_lists<'a>(&mut self, total: u32, _lists: impl FnOnce() -> Vec<&'a Self>) {
        self.0 += total;
    }

    fn numbers(&self) -> &[BlockId] {
        &[]
    }
}
