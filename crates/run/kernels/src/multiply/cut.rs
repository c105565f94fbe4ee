//! How products are cut into chunks: by their shapes alone, so that the number of threads changes no result.

use std::ops::Range;

use super::engine::{Side, Tile};

/// Rows and columns of a chunk of the result. Its left panels, `ROWS x block_depth`, stay in the second-level cache.
const ROWS: usize = 128;
const COLUMNS: usize = 256;
/// Chunks that a result is cut into where it is large enough, so that a small team shares them out evenly.
const CHUNKS: usize = 16;
/// Cells that one chunk of packing writes, about.
const PACKED_CELLS: usize = 1 << 14;

/// What one product measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) depth: usize,
}

/// Where one of several products lies in the packed cells and in the lists of chunks.
///
/// Packed cells are ordered by block of the depth, then by panel: what is multiplied together lies together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) shape: Shape,
    /// Its first cell of either side, left then right.
    pub(crate) cells: [usize; 2],
    pub(crate) end_cell: usize,
    pub(crate) first_pack: usize,
    pub(crate) end_pack: usize,
    pub(crate) first_chunk: usize,
    pub(crate) end_chunk: usize,
    /// Panels of a chunk of packing, left and right.
    pub(crate) pack_panels: [usize; 2],
    /// Left and right panels of a chunk of the result.
    pub(crate) chunk_panels: [usize; 2],
}

const SIDES: [Side; 2] = [Side::Left, Side::Right];

impl Cut {
    /// The cut of the product that follows `before`.
    pub(crate) fn after(before: Option<&Cut>, shape: Shape, tile: Tile) -> Self {
        let (cell, pack, chunk) = before.map_or((0, 0, 0), |cut| (cut.end_cell, cut.end_pack, cut.end_chunk));
        let lanes = [shape.rows, shape.columns];
        let panels = [0, 1].map(|side| tile.panels(SIDES[side], lanes[side]));
        let panel_cells = [0, 1].map(|side| tile.panel_cells(SIDES[side], shape.depth));
        let pack_panels = panel_cells.map(|cells| (PACKED_CELLS / cells.max(1)).max(1));
        let chunk_panels = chunk_panels(panels, tile);
        // An expert without rows needs no weights.
        let packs = match panels {
            [0, _] | [_, 0] => 0,
            _ => (0..2).map(|side| panels[side].div_ceil(pack_panels[side])).sum(),
        };
        let chunks = panels[0].div_ceil(chunk_panels[0]) * panels[1].div_ceil(chunk_panels[1]);
        let right = cell + panels[0] * panel_cells[0];
        Self {
            shape,
            cells: [cell, right],
            end_cell: right + panels[1] * panel_cells[1],
            first_pack: pack,
            end_pack: pack + packs,
            first_chunk: chunk,
            end_chunk: chunk + chunks,
            pack_panels,
            chunk_panels,
        }
    }

    /// Where a panel lies, for a block of the depth that starts at `block`.
    pub(crate) fn panel(&self, side: Side, panel: usize, block: usize, tile: Tile) -> Range<usize> {
        let (start, lanes) = match side {
            Side::Left => (self.cells[0], self.shape.rows),
            Side::Right => (self.cells[1], self.shape.columns),
        };
        let cells = tile.panel_cells(side, self.deep(block, tile));
        let before = tile.panels(side, lanes) * tile.panel_cells(side, block) + panel * cells;
        start + before..start + before + cells
    }

    /// How deep the block is that starts at `block`.
    pub(crate) fn deep(&self, block: usize, tile: Tile) -> usize {
        (self.shape.depth - block).min(tile.block_depth)
    }

    /// Where the blocks of the depth start; at least one, if only an empty one.
    pub(crate) fn blocks(&self, tile: Tile) -> impl Iterator<Item = usize> {
        (0..self.shape.depth.max(1)).step_by(tile.block_depth)
    }

    /// The side and the first panel of a chunk of packing.
    pub(crate) fn pack(&self, index: usize, tile: Tile) -> (Side, usize) {
        let index = index - self.first_pack;
        let left = tile.panels(Side::Left, self.shape.rows).div_ceil(self.pack_panels[0]);
        if index < left {
            (Side::Left, index * self.pack_panels[0])
        } else {
            (Side::Right, (index - left) * self.pack_panels[1])
        }
    }

    /// The first left and right panel of a chunk of the result.
    pub(crate) fn chunk(&self, index: usize, tile: Tile) -> [usize; 2] {
        let index = index - self.first_chunk;
        let across = tile.panels(Side::Right, self.shape.columns).div_ceil(self.chunk_panels[1]);
        [index / across * self.chunk_panels[0], index % across * self.chunk_panels[1]]
    }
}

/// Sums that a member keeps for a chunk, at most.
pub(crate) fn sums_of_a_chunk(tile: Tile) -> usize {
    ROWS.next_multiple_of(tile.rows) * COLUMNS.next_multiple_of(tile.columns)
}

/// Panels of a chunk: full size, or halved until there are enough chunks.
fn chunk_panels(panels: [usize; 2], tile: Tile) -> [usize; 2] {
    let mut of_chunk = [ROWS / tile.rows, COLUMNS / tile.columns].map(|count| count.max(1));
    while (0..2).map(|side| panels[side].div_ceil(of_chunk[side])).product::<usize>() < CHUNKS {
        match of_chunk {
            [left, right] if right > 1 && right * tile.columns >= left * tile.rows => {
                of_chunk[1] = right.div_ceil(2)
            }
            [left, _] if left > 1 => of_chunk[0] = left.div_ceil(2),
            [_, right] if right > 1 => of_chunk[1] = right.div_ceil(2),
            _ => break,
        }
    }
    of_chunk
}
