//! Attention over grouped heads, without a matrix of scores in memory.
//!
//! Scores exist only as a strip of one block of keys for one panel of queries at a time; blocks that no query of the panel
//! sees are skipped. Keys and values are packed once and serve all heads that share them.

mod backward;
mod forward;
mod lines;
mod merge;

pub(crate) use lines::{NO_SCORE, bend, multiply_add, power_of_two};

use std::ops::Range;

use crate::cpu::Cpu;
use crate::cpu::multiply::{Elements, Multiplier, Operand, Tile};
use crate::{AttentionShape, Element, Matrix, Qkv, Rows, VisibleKeys};

impl AttentionShape {
    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// One head of the queries of one sequence, or of what has their shape.
    fn head<'a, E: Element>(&self, of: Rows<&'a [E]>, sequence: usize, head: usize) -> Rows<&'a [E]> {
        of.rows(sequence * self.queries..(sequence + 1) * self.queries)
            .columns(head * self.head_dim..(head + 1) * self.head_dim)
    }

    /// One head of the keys or values of one sequence.
    fn kv_head<'a, E: Element>(&self, of: Rows<&'a [E]>, sequence: usize, head: usize) -> Rows<&'a [E]> {
        of.rows(sequence * self.keys..(sequence + 1) * self.keys)
            .columns(head * self.head_dim..(head + 1) * self.head_dim)
    }
}

/// What forward and backward share: the shape, and what multiplies.
#[derive(Clone, Copy)]
struct Setting<'a> {
    shape: AttentionShape,
    first_keys: &'a [u32],
    positions: Option<&'a [u32]>,
    multiplier: &'a dyn Multiplier,
    /// Packs `f32` as `f32`, which turns strips around.
    turner: &'a dyn Multiplier,
    tile: Tile,
}

impl Cpu {
    fn setting<'a, E: Element>(&self, shape: &AttentionShape, seen: VisibleKeys<'a>) -> Setting<'a> {
        let multiplier = self.multiplier::<E, E>();
        let (turner, tile) = (self.multiplier::<f32, f32>(), multiplier.tile());
        let first_keys = self.slice(seen.first_keys);
        let positions = seen.positions.map(|positions| self.slice(positions));
        Setting { shape: *shape, first_keys, positions, multiplier, turner, tile }
    }

    fn qkv<'a, E: Element>(&self, of: Qkv<Matrix<'a, E>>) -> Qkv<Rows<&'a [E]>> {
        Qkv { queries: self.rows(of.queries), keys: self.rows(of.keys), values: self.rows(of.values) }
    }
}

impl Setting<'_> {
    fn sequences(&self) -> usize {
        self.first_keys.len() / self.shape.queries
    }

    /// The first keys of some queries of a sequence.
    fn first_keys(&self, sequence: usize, queries: Range<usize>) -> &[u32] {
        &self.first_keys[sequence * self.shape.queries..][queries]
    }

    /// Where a query of a sequence stands among its keys.
    fn position(&self, sequence: usize, query: usize) -> usize {
        let first = self.positions.map(|positions| positions[sequence] as usize);
        first.unwrap_or_else(|| self.shape.keys - self.shape.queries) + query
    }

    /// The end of the keys that some queries of a sequence see.
    fn end_of_keys(&self, sequence: usize, queries: &Range<usize>) -> usize {
        self.position(sequence, queries.end).min(self.shape.keys)
    }

    /// Rows of a strip that holds a dimension of heads per row.
    fn head_rows(&self) -> usize {
        self.shape.head_dim.next_multiple_of(self.tile.rows)
    }

    /// The rows of a strip as lanes.
    fn strip_rows<'s>(&self, strip: &'s [f32], rows: usize) -> Operand<'s> {
        Operand::new(Elements::F32(strip), (rows, self.tile.columns), (self.tile.columns, 1))
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
pub(crate) struct ScratchParts<'a>(pub(crate) &'a mut [f32]);

impl<'a> ScratchParts<'a> {
    pub(crate) fn take(&mut self, len: usize) -> &'a mut [f32] {
        let (part, rest) = std::mem::take(&mut self.0).split_at_mut(len);
        self.0 = rest;
        part
    }
}
