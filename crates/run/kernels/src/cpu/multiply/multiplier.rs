//! What multiplies: a unit of the processor that takes packed panels and gives tiles of sums.
//!
//! A *panel* holds as many lanes of an operand as a tile has rows (left) or columns (right), reordered so that the unit
//! reads it from front to back; lanes and depth that the operand lacks are zero. A product of panels fills a *strip*: the
//! rows of one or more tiles below each other, each row as wide as a tile, all in `f32`.

use crate::cpu::{Cpu, Level};
use crate::{Accumulate, Element};

use super::fetch;
use super::operand::{Elements, Operand};
use super::vectors::{Portable, Vectors};
#[cfg(target_arch = "x86_64")]
use super::{
    split::{self, SplitTiles},
    tiles::Tiles,
    vectors::{Avx2, Avx512},
};

/// What a tile measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Depth comes in multiples of this.
    pub(crate) step: usize,
    /// Cells (of four bytes) that one lane takes for one step.
    pub(crate) cells_per_step: usize,
    /// How deep a right panel may be and still stay in the nearest cache while it is reused.
    pub(crate) block_depth: usize,
    /// Rows for which a right panel is reused, at most.
    pub(crate) block_rows: usize,
    /// Columns that are summed at a time over all blocks of the depth.
    pub(crate) block_columns: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

impl Tile {
    pub(crate) fn lanes(self, side: Side) -> usize {
        match side {
            Side::Left => self.rows,
            Side::Right => self.columns,
        }
    }

    /// Panels that this many lanes fill.
    pub(crate) fn panels(self, side: Side, lanes: usize) -> usize {
        lanes.div_ceil(self.lanes(side))
    }

    /// Cells of one lane of a panel that is at least this deep.
    pub(crate) fn lane_cells(self, depth: usize) -> usize {
        depth.div_ceil(self.step) * self.cells_per_step
    }

    /// Cells of a panel.
    pub(crate) fn panel_cells(self, side: Side, depth: usize) -> usize {
        self.lanes(side) * self.lane_cells(depth)
    }
}

/// Left panels below each other, `stride` cells apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panels<'a> {
    pub(crate) cells: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) count: usize,
}

/// One right panel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Right<'a> {
    pub(crate) cells: &'a [f32],
    /// What is multiplied next, to be fetched meanwhile.
    pub(crate) next: &'a [f32],
}

impl<'a> From<&'a [f32]> for Right<'a> {
    fn from(cells: &'a [f32]) -> Self {
        Self { cells, next: &[] }
    }
}

impl Right<'_> {
    /// Asks for the share of tile `tile` of `tiles` of what comes next.
    #[inline(always)]
    pub(crate) fn fetch_next(&self, tile: usize, tiles: usize) {
        let share = self.next.len().div_ceil(tiles);
        let start = (tile * share).min(self.next.len());
        let end = (start + share).min(self.next.len());
        self.next[start..end].chunks(16).for_each(|line| fetch::to_read(line.as_ptr()));
    }
}

/// A unit of the processor that multiplies. Cells are four bytes, whatever the unit keeps in them.
pub(crate) trait Multiplier: Sync {
    fn tile(&self) -> Tile;

    /// Packs the lanes from `first_lane` on, as many as a panel has.
    fn pack(&self, side: Side, from: &Operand<'_>, first_lane: usize, panel: &mut [f32]);

    /// A strip of `rows` rows as a right panel: its columns are lanes. May need `buffer` for it.
    fn strip_as_right<'a>(&self, strip: &'a [f32], rows: usize, buffer: &'a mut [f32]) -> &'a [f32] {
        let lanes = self.tile().columns;
        let columns = Operand::new(Elements::F32(strip), (lanes, 1), (rows, lanes));
        self.pack(Side::Right, &columns, 0, buffer);
        buffer
    }

    /// Multiplies left panels by one right panel, `depth` deep, into a strip of sums that has `left.count` tiles.
    fn multiply(&self, depth: usize, left: Panels<'_>, right: Right<'_>, mode: Accumulate, sums: &mut [f32]);
}

impl Cpu {
    /// What multiplies operands of these formats: tiles once one of them is bf16 and the processor has them.
    pub(crate) fn multiplier<A: Element, B: Element>(&self) -> &'static dyn Multiplier {
        let formats = [A::elements(&[]), B::elements(&[])];
        let is_narrow = formats.iter().any(|elements| matches!(elements, Elements::Bf16(_)));
        match self.level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if is_narrow && self.has_tiles => &Tiles,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => &Vectors::<Avx512, 8>::NEW,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => &Vectors::<Avx2, 6>::NEW,
            _ => &Vectors::<Portable, 4>::NEW,
        }
    }

    /// The same for linear layers with results of so many rows: `f32` is split for tiles where that is worth its packing.
    pub(crate) fn linear_multiplier<A: Element, B: Element>(&self, rows: usize) -> &'static dyn Multiplier {
        let formats = [A::elements(&[]), B::elements(&[])];
        let is_wide = formats.iter().all(|elements| matches!(elements, Elements::F32(_)));
        match self.level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if is_wide && self.has_tiles && rows >= split::LEAST_ROWS => &SplitTiles,
            _ => self.multiplier::<A, B>(),
        }
    }
}
