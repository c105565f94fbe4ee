//! What multiplies: a unit of the processor that takes packed panels and gives tiles of sums.
//!
//! A *panel* holds as many lanes of an operand as a tile has rows (left) or columns (right), reordered so that the unit
//! reads it from front to back; lanes and depth that the operand lacks are zero. A product of panels fills a *strip*: the
//! rows of one or more tiles below each other, each row as wide as a tile, all in `f32`.

use crate::level::Level;
use crate::{Device, Element, Into};

use super::operand::Operand;
use super::vectors::{Portable, Vectors};
#[cfg(target_arch = "x86_64")]
use super::{
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
    /// How deep a panel may be and still stay close to the unit while it is reused.
    pub(crate) block_depth: usize,
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

    /// Panels that so many lanes fill.
    pub(crate) fn panels(self, side: Side, lanes: usize) -> usize {
        lanes.div_ceil(self.lanes(side))
    }

    /// Cells of one lane of a panel that is at least so deep.
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

/// A unit of the processor that multiplies. Cells are four bytes, whatever the unit keeps in them.
pub(crate) trait Engine: Sync {
    fn tile(&self) -> Tile;

    /// Packs the lanes from `first_lane` on, as many as a panel has.
    fn pack(&self, side: Side, from: &Operand<'_>, first_lane: usize, panel: &mut [f32]);

    /// Multiplies left panels by one right panel, `depth` deep, into a strip that has `left.count` tiles.
    fn multiply(&self, depth: usize, left: Panels<'_>, right: &[f32], into: Into, strip: &mut [f32]);
}

impl Device {
    /// What multiplies operands of these formats: tiles once one of them is bf16 and the processor has them.
    pub(crate) fn engine<A: Element, B: Element>(&self) -> &'static dyn Engine {
        let is_narrow = A::as_bf16(&[]).is_some() || B::as_bf16(&[]).is_some();
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
}
