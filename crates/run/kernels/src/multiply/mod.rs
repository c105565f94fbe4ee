//! Matrix products: the one engine under linear layers, experts and attention.
//!
//! An operator describes its products by their [`Operand`]s and says what becomes of finished sums. Both sides are
//! packed into panels once, by the whole team, and then read by all; chunks of the result are claimed one by one. Sums are
//! `f32` and are made in one order that depends on the shape alone.

mod cut;
mod engine;
mod operand;
mod scratch;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod transpose;
mod vectors;

pub(crate) use engine::{Engine, Panels, Side, Tile};
pub(crate) use operand::{Numbers, Operand};
pub(crate) use scratch::Scratch;

use crate::stream::SharedMut;
use crate::{Device, Into};
use cut::{Cut, Shape, sums_of_a_chunk};

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
    /// No engine has wider tiles.
    pub(crate) const MAX_COLUMNS: usize = 32;
}

impl Product<'_> {
    fn shape(&self) -> Shape {
        let (rows, columns, depth) = (self.left.lanes(), self.right.lanes(), self.left.depth());
        assert_eq!(self.right.depth(), depth, "the depth of both sides of a product");
        Shape { rows, columns, depth }
    }
}

impl Device {
    /// Multiplies `count` pairs of operands and hands the sums to `finish`, part by part, from all members.
    pub(crate) fn multiply<'a>(
        &self,
        engine: &dyn Engine,
        count: usize,
        product: &(dyn Fn(usize) -> Product<'a> + Sync),
        finish: &(dyn Fn(Finished<'_>) + Sync),
    ) {
        let tile = engine.tile();
        let Scratch { panels, sums, cuts } = &mut *self.scratch.borrow_mut();
        cuts.clear();
        for index in 0..count {
            cuts.push(Cut::after(cuts.last(), product(index).shape(), tile));
        }
        let Some(last) = cuts.last().copied() else { return };
        let work = Work { engine, tile, cuts };
        let panels = panels.first(last.end_cell);
        let to = SharedMut::new(panels);
        self.team.run(last.end_pack, &|index, _| work.pack(index, product, &to));
        let panels = &*panels;
        let share = sums_of_a_chunk(tile);
        let sums = SharedMut::new(sums.first(share * self.team.size()));
        self.team.run(last.end_chunk, &|index, member| {
            work.multiply(index, panels, sums.range(member * share..(member + 1) * share), finish);
        });
    }
}

/// What the members of the team share while they multiply.
struct Work<'a> {
    engine: &'a dyn Engine,
    tile: Tile,
    cuts: &'a [Cut],
}

impl Work<'_> {
    fn pack<'b>(
        &self,
        index: usize,
        product: &(dyn Fn(usize) -> Product<'b> + Sync),
        panels: &SharedMut<'_, f32>,
    ) {
        let number = self.cuts.partition_point(|cut| cut.end_pack <= index);
        let cut = &self.cuts[number];
        let (side, first) = cut.pack(index, self.tile);
        let (operand, position) = match side {
            Side::Left => (product(number).left, 0),
            Side::Right => (product(number).right, 1),
        };
        let count = self.tile.panels(side, operand.lanes());
        for panel in first..(first + cut.pack_panels[position]).min(count) {
            for block in cut.blocks(self.tile) {
                let part = operand.some_depth(block..block + cut.deep(block, self.tile));
                let to = panels.range(cut.panel(side, panel, block, self.tile));
                self.engine.pack(side, &part, panel * self.tile.lanes(side), to);
            }
        }
    }

    /// One chunk of a result: block by block of the depth, strip by strip.
    fn multiply(
        &self,
        index: usize,
        panels: &[f32],
        sums: &mut [f32],
        finish: &(dyn Fn(Finished<'_>) + Sync),
    ) {
        let tile = self.tile;
        let number = self.cuts.partition_point(|cut| cut.end_chunk <= index);
        let cut = &self.cuts[number];
        let Shape { rows, columns, depth } = cut.shape;
        let [left, first] = cut.chunk(index, tile);
        let left_count = (tile.panels(Side::Left, rows) - left).min(cut.chunk_panels[0]);
        let end = tile.panels(Side::Right, columns).min(first + cut.chunk_panels[1]);
        let strip_len = left_count * tile.rows * tile.columns;
        for block in cut.blocks(tile) {
            let deep = cut.deep(block, tile);
            let into = if block == 0 { Into::Replace } else { Into::Add };
            let cells = cut.panel(Side::Left, left, block, tile);
            let (start, stride) = (cells.start, cells.len());
            let left_panels =
                Panels { cells: &panels[start..start + left_count * stride], stride, count: left_count };
            for right in first..end {
                // With a single block no sums wait for the next one, so one strip in the nearest cache serves all.
                let slot = if depth == deep { 0 } else { right - first };
                let strip = &mut sums[slot * strip_len..][..strip_len];
                let right_panel = &panels[cut.panel(Side::Right, right, block, tile)];
                self.engine.multiply(deep, left_panels, right_panel, into, strip);
                if block + deep == depth {
                    finish(Finished {
                        product: number,
                        row: left * tile.rows,
                        column: right * tile.columns,
                        rows: (left_count * tile.rows).min(rows - left * tile.rows),
                        columns: tile.columns.min(columns - right * tile.columns),
                        stride: tile.columns,
                        sums: strip,
                    });
                }
            }
        }
    }
}
