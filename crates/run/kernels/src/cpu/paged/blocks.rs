//! How keys and values lie in a block.
//!
//! A block holds one key head after the other, of each the keys and then the values. In plain order a head's keys lie dimension by
//! dimension, the tokens side by side, and its values token by token. In the order of the tile unit (bf16, where sixteen tokens and
//! 32 dimensions fit) sixteen tokens follow each other: of their keys pairs of dimensions, in these the tokens with two elements each;
//! of their values sixteen dimensions at a time, of these pairs of tokens, in these the dimensions with two elements each.

use crate::device::Elements;
use crate::{Element, KvFormat, PagedRows, PagedShape};

use crate::cpu::Cpu;

/// Tokens that lie together in the order of the tile unit, and dimensions of a value.
pub(super) const GROUP: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockOrder {
    Plain,
    Tiles,
    /// Token by token, and keys are values.
    Rows,
}

impl BlockOrder {
    /// Where number `dim` of a key is, among the keys of a head.
    #[inline(always)]
    fn key(self, shape: &PagedShape, slot: usize, dim: usize) -> usize {
        match self {
            BlockOrder::Plain => dim * shape.block_tokens + slot,
            BlockOrder::Tiles => {
                let group = slot / GROUP * GROUP * shape.head_dim;
                group + dim / 2 * 2 * GROUP + 2 * (slot % GROUP) + dim % 2
            }
            BlockOrder::Rows => slot * shape.head_dim + dim,
        }
    }

    /// Where number `dim` of a value is, among the values of a head.
    #[inline(always)]
    fn value(self, shape: &PagedShape, slot: usize, dim: usize) -> usize {
        match self {
            BlockOrder::Plain | BlockOrder::Rows => slot * shape.head_dim + dim,
            BlockOrder::Tiles => {
                let (group, slot) = (slot / GROUP * GROUP * shape.head_dim, slot % GROUP);
                group + dim / GROUP * GROUP * GROUP + slot / 2 * 2 * GROUP + 2 * (dim % GROUP) + slot % 2
            }
        }
    }

    /// Puts a key into a slot of a head's keys.
    #[inline(always)]
    pub(super) fn put_key<E: Copy>(self, shape: &PagedShape, slot: usize, key: &[E], to: &mut [E]) {
        for (dim, number) in key.iter().enumerate() {
            to[self.key(shape, slot, dim)] = *number;
        }
    }

    /// Puts a value into a slot of a head's values.
    #[inline(always)]
    pub(super) fn put_value<E: Copy>(self, shape: &PagedShape, slot: usize, value: &[E], to: &mut [E]) {
        for (dim, number) in value.iter().enumerate() {
            to[self.value(shape, slot, dim)] = *number;
        }
    }
}

impl Cpu {
    /// The order of blocks of this shape.
    pub(super) fn block_order<E: Element>(&self, shape: &PagedShape) -> BlockOrder {
        if shape.format == KvFormat::Latent {
            return BlockOrder::Rows;
        }
        let is_narrow = matches!(E::elements(&[]), Elements::Bf16(_));
        let fits = shape.block_tokens.is_multiple_of(GROUP) && shape.head_dim.is_multiple_of(2 * GROUP);
        if is_narrow && fits && self.has_tiles { BlockOrder::Tiles } else { BlockOrder::Plain }
    }
}

/// The rows of a step on the processor.
#[derive(Clone, Copy)]
pub(super) struct Steps<'a> {
    starts: &'a [u32],
    contexts: &'a [u32],
    table_starts: &'a [u32],
    tables: &'a [u32],
}

impl<'a> Steps<'a> {
    /// Panics unless sequences follow each other from the first row to the last.
    pub(super) fn new(cpu: &Cpu, rows: PagedRows<'a>, count: usize) -> Self {
        let starts = cpu.slice(rows.starts);
        assert!(starts.is_sorted() && starts.first() == Some(&0), "rows of sequences ascend from zero");
        assert_eq!(starts.last().map(|end| *end as usize), Some(count), "sequences have all rows");
        Self {
            starts,
            contexts: cpu.slice(rows.contexts),
            table_starts: cpu.slice(rows.table_starts),
            tables: cpu.slice(rows.tables),
        }
    }

    pub(super) fn sequences(&self) -> usize {
        self.contexts.len()
    }

    pub(super) fn rows(&self, sequence: usize) -> std::ops::Range<usize> {
        self.starts[sequence] as usize..self.starts[sequence + 1] as usize
    }

    /// The position of a sequence's first row.
    pub(super) fn context(&self, sequence: usize) -> usize {
        self.contexts[sequence] as usize
    }

    pub(super) fn table(&self, sequence: usize) -> &'a [u32] {
        &self.tables[self.table_starts[sequence] as usize..self.table_starts[sequence + 1] as usize]
    }
}
