//! Matrix products: the one routine under linear layers, experts and attention.
//!
//! An operator describes its products by their [`Operand`]s and says what becomes of finished sums. Right sides are
//! packed into panels once, by the whole thread pool, and then read by all. Chunks of the result are claimed one by one; a
//! member packs the left panels of its chunk where only that member reads them. Sums are `f32` and are made in one order that depends on
//! the shape alone.

mod chunks;
pub(crate) mod fetch;
mod multiplier;
mod operand;
#[cfg(target_arch = "x86_64")]
mod split;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod transpose;
mod vectors;

pub(crate) use multiplier::{Multiplier, Panels, Right, Side, Tile};
pub(crate) use operand::{Elements, Operand};
#[cfg(target_arch = "x86_64")]
pub(crate) use tiles::{Configuration, EACH, set_up_tiles};
#[cfg(target_arch = "x86_64")]
pub(crate) use transpose::transpose;
#[cfg(target_arch = "x86_64")]
pub(crate) use vectors::{Avx2, Avx512};
pub(crate) use vectors::{Portable, Vector};

use std::ops::Range;

use super::Cpu;
use super::packed::RowsJob;
use super::scratch::Grown;
use super::share::SharedRows;
use crate::Accumulate;
use chunks::{ProductShape, ProductSpan, ResultChunk, chunks_of_each};

/// Memory that products need for the time of one operator.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Packed panels, shared by the thread pool.
    pub(crate) panels: Grown,
    /// Sums of tiles and the like, a part for each member.
    pub(crate) sums: Grown,
    spans: Vec<ProductSpan>,
    /// Products with packed weights.
    pub(crate) jobs: Vec<RowsJob>,
    /// Sequences of attention over blocks.
    pub(crate) sequences: Vec<super::paged::SequenceJob>,
}

/// `sums[i, j]`: the sum over the depth of lane `i` of the left side times lane `j` of the right side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product<'a> {
    pub(crate) left: Operand<'a>,
    pub(crate) right: Operand<'a>,
}

/// Finished sums of a part of a result; its rows lie `stride` apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finished<'a> {
    /// Which of the products.
    pub(crate) product: usize,
    pub(crate) row: usize,
    pub(crate) column: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) stride: usize,
    pub(crate) sums: &'a [f32],
}

impl Finished<'_> {
    /// No multiplier has wider tiles.
    pub(crate) const MAX_COLUMNS: usize = 32;
}

impl Product<'_> {
    fn shape(&self) -> ProductShape {
        let (rows, columns, depth) = (self.left.lanes(), self.right.lanes(), self.left.depth());
        assert_eq!(self.right.depth(), depth, "the depth of both sides of a product");
        ProductShape { rows, columns, depth }
    }
}

/// Depth that is packed at a time where an operand lies by depth; a multiple of every multiplier's step.
const PIECE: usize = 32;

impl Cpu {
    /// Multiplies `count` pairs of operands and hands the sums to `finish`, part by part, from all members.
    pub(crate) fn multiply<'a>(
        &self,
        multiplier: &dyn Multiplier,
        count: usize,
        product: &(dyn Fn(usize) -> Product<'a> + Sync),
        finish: &(dyn Fn(Finished<'_>) + Sync),
    ) {
        let tile = multiplier.tile();
        let Scratch { panels, sums, spans, .. } = &mut *self.scratch.borrow_mut();
        spans.clear();
        let chunks = chunks_of_each(count, self.pool.size());
        for index in 0..count {
            spans.push(ProductSpan::after(spans.last(), product(index).shape(), tile, chunks));
        }
        let Some(last) = spans.last().copied() else { return };
        let work = Work { multiplier, tile, spans, product };
        let panels = panels.first(last.end_cell);
        let to = SharedRows::new(panels, 1, 1);
        self.pool.run(last.end_pack, &|index, _| work.pack(index, &to));
        let panels = &*panels;
        let sums = sums.first(work.member_cells() * self.pool.size());
        self.with_scratch(last.end_chunk, (), sums, |index, (), sums| {
            work.multiply(index, panels, sums, finish);
        });
    }
}

/// What the members of the thread pool share while they multiply.
struct Work<'a, 'b> {
    multiplier: &'a dyn Multiplier,
    tile: Tile,
    spans: &'a [ProductSpan],
    product: &'a (dyn Fn(usize) -> Product<'b> + Sync),
}

impl Work<'_, '_> {
    /// Cells that any chunk needs; whole cache lines, so that members do not share any.
    fn member_cells(&self) -> usize {
        let cells = self.spans.iter().map(|span| span.member_cells(self.tile).iter().sum::<usize>());
        cells.max().unwrap_or_default().next_multiple_of(16)
    }

    fn pack(&self, index: usize, to: &SharedRows<'_, f32>) {
        let number = self.spans.partition_point(|span| span.end_pack <= index);
        let span = &self.spans[number];
        let right = (self.product)(number).right;
        // Where neighbours belong to several panels, all of them are packed while a piece of the depth is near.
        let piece = if right.depth_stride() == 1 { self.tile.block_depth } else { PIECE };
        for block in span.blocks(self.tile) {
            let deep = span.deep(block, self.tile);
            for start in (0..deep).step_by(piece) {
                let part = right.some_depth(block + start..block + deep.min(start + piece));
                for panel in span.pack(index, self.tile) {
                    let cells = span.right_panel(panel, block, self.tile);
                    let skipped = self.tile.panel_cells(Side::Right, start);
                    #[expect(unsafe_code, reason = "panels of a chunk lie apart")]
                    // SAFETY: each chunk of packing is done once, and no panel is in two of them.
                    let to = unsafe { to.range(cells.start + skipped..cells.end) };
                    self.multiplier.pack(Side::Right, &part, panel * self.tile.columns, to);
                }
            }
        }
    }

    /// One chunk of a result: packs its rows, then goes through its columns some at a time.
    fn multiply(
        &self,
        index: usize,
        panels: &[f32],
        scratch: &mut [f32],
        finish: &(dyn Fn(Finished<'_>) + Sync),
    ) {
        let number = self.spans.partition_point(|span| span.end_chunk <= index);
        let span = &self.spans[number];
        let chunk = span.chunk(index, self.tile);
        let (left, sums) = scratch.split_at_mut(span.member_cells(self.tile)[0]);
        self.pack_left(&(self.product)(number).left, span, &chunk.left, left);
        let columns = self.tile.block_columns / self.tile.columns;
        for start in chunk.right.clone().step_by(columns) {
            let right = start..(start + columns).min(chunk.right.end);
            self.sum(span, &ResultChunk { right, ..chunk.clone() }, [&*left, panels], sums, &|part| {
                finish(Finished { product: number, ..part });
            });
        }
    }

    /// Packs the left panels of a chunk, block by block of the depth.
    fn pack_left(&self, left: &Operand<'_>, span: &ProductSpan, panels: &Range<usize>, to: &mut [f32]) {
        let tile = self.tile;
        for block in span.blocks(tile) {
            let deep = span.deep(block, tile);
            let cells = tile.panel_cells(Side::Left, deep);
            let to = &mut to[panels.len() * tile.panel_cells(Side::Left, block)..];
            let piece = if left.depth_stride() == 1 { tile.block_depth } else { PIECE };
            for start in (0..deep).step_by(piece) {
                let part = left.some_depth(block + start..block + deep.min(start + piece));
                let skipped = tile.panel_cells(Side::Left, start);
                for (panel, to) in panels.clone().zip(to.chunks_exact_mut(cells.max(1))) {
                    self.multiplier.pack(Side::Left, &part, panel * tile.rows, &mut to[skipped..]);
                }
            }
        }
    }

    /// Sums all blocks of the depth for a few columns, strip by strip.
    fn sum(
        &self,
        span: &ProductSpan,
        chunk: &ResultChunk,
        [left, right]: [&[f32]; 2],
        sums: &mut [f32],
        finish: &dyn Fn(Finished<'_>),
    ) {
        let tile = self.tile;
        let ProductShape { rows, columns, depth } = span.shape;
        let count = chunk.left.len();
        let strip_len = count * tile.rows * tile.columns;
        for block in span.blocks(tile) {
            let deep = span.deep(block, tile);
            let mode = if block == 0 { Accumulate::Replace } else { Accumulate::Add };
            let stride = tile.panel_cells(Side::Left, deep);
            let cells = &left[count * tile.panel_cells(Side::Left, block)..][..count * stride];
            for panel in chunk.right.clone() {
                // With a single block no sums wait for the next one, so one strip in the nearest cache serves all.
                let slot = if depth == deep { 0 } else { panel - chunk.right.start };
                let strip = &mut sums[slot * strip_len..][..strip_len];
                let at = span.right_panel(panel, block, tile);
                let next = &right[at.end..(at.end + at.len()).min(right.len())];
                let left = Panels { cells, stride, count };
                self.multiplier.multiply(deep, left, Right { cells: &right[at], next }, mode, strip);
                if block + deep == depth {
                    finish(Finished {
                        product: 0,
                        row: chunk.left.start * tile.rows,
                        column: panel * tile.columns,
                        rows: (count * tile.rows).min(rows - chunk.left.start * tile.rows),
                        columns: tile.columns.min(columns - panel * tile.columns),
                        stride: tile.columns,
                        sums: strip,
                    });
                }
            }
        }
    }
}
