//! Attention over grouped heads, without a matrix of scores in memory.
//!
//! Scores exist only as a strip of one block of keys for one panel of queries at a time; blocks that no query of the panel
//! sees are skipped. Keys and values are packed once and serve all heads that share them.

mod backward;
mod forward;
mod lines;

use std::ops::Range;

use crate::cpu::Cpu;
use crate::cpu::multiply::{Multiplier, Numbers, Operand, Tile};
use crate::{AttentionShape, Element, Rows, View};

impl AttentionShape {
    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The numbers of one head in the rows of one sequence.
    fn head<'a, E: Element>(&self, of: Rows<&'a [E]>, sequence: usize, head: usize) -> Rows<&'a [E]> {
        of.rows(sequence * self.sequence..(sequence + 1) * self.sequence)
            .columns(head * self.head_dim..(head + 1) * self.head_dim)
    }

    fn keys<'a, E: Element>(&self, qkv: Rows<&'a [E]>, sequence: usize, kv_head: usize) -> Rows<&'a [E]> {
        self.head(qkv, sequence, self.heads + kv_head)
    }

    fn values<'a, E: Element>(&self, qkv: Rows<&'a [E]>, sequence: usize, kv_head: usize) -> Rows<&'a [E]> {
        self.head(qkv, sequence, self.heads + self.kv_heads + kv_head)
    }
}

/// What forward and backward share: the shape, and what multiplies.
#[derive(Clone, Copy)]
struct Setting<'a> {
    shape: AttentionShape,
    first_keys: &'a [u32],
    multiplier: &'a dyn Multiplier,
    /// Packs `f32` as `f32`, which turns strips around.
    turner: &'a dyn Multiplier,
    tile: Tile,
}

impl Cpu {
    fn setting<'a, E: Element>(&self, shape: &AttentionShape, first_keys: View<'a, u32>) -> Setting<'a> {
        let multiplier = self.multiplier::<E, E>();
        let (turner, tile) = (self.multiplier::<f32, f32>(), multiplier.tile());
        Setting { shape: *shape, first_keys: self.slice(first_keys), multiplier, turner, tile }
    }
}

impl Setting<'_> {
    fn sequences(&self) -> usize {
        self.first_keys.len() / self.shape.sequence
    }

    /// The first keys of some queries of a sequence.
    fn first_keys(&self, sequence: usize, queries: Range<usize>) -> &[u32] {
        &self.first_keys[sequence * self.shape.sequence..][queries]
    }

    /// Rows of a strip that holds a dimension of heads per row.
    fn head_rows(&self) -> usize {
        self.shape.head_dim.next_multiple_of(self.tile.rows)
    }

    /// The rows of a strip as lanes.
    fn strip_rows<'s>(&self, strip: &'s [f32], rows: usize) -> Operand<'s> {
        Operand::new(Numbers::F32(strip), (rows, self.tile.columns), (self.tile.columns, 1))
    }

    /// Calls `write(column, first_dim, dims)` for each column of a strip that has a dimension of a head per row.
    fn turn(&self, strip: &[f32], buffer: &mut [f32], mut write: impl FnMut(usize, usize, &[f32])) {
        let (columns, head_dim) = (self.tile.columns, self.shape.head_dim);
        let rows = self.strip_rows(strip, head_dim);
        for first in (0..head_dim).step_by(columns) {
            self.turner.pack(crate::cpu::multiply::Side::Right, &rows, first, buffer);
            for (column, dims) in buffer.chunks_exact(columns).enumerate().take(columns) {
                write(column, first, &dims[..columns.min(head_dim - first)]);
            }
        }
    }
}

/// Cuts scratch memory into parts.
struct Parts<'a>(&'a mut [f32]);

impl<'a> Parts<'a> {
    fn take(&mut self, len: usize) -> &'a mut [f32] {
        let (part, rest) = std::mem::take(&mut self.0).split_at_mut(len);
        self.0 = rest;
        part
    }
}
