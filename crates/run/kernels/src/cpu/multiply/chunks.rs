//! How products are cut into chunks. In what order a sum is made depends on the shape alone, whatever chunk it is in.

use std::ops::Range;

use super::multiplier::{Side, Tile};

/// Cells of left panels that a member packs at a time, at most: they stay in its second-level cache.
const LEFT_CELLS: usize = 1 << 18;
/// Rows of a chunk of the result, at least, where there are as many: right panels are reused for them.
const LEAST_ROWS: usize = 256;
/// Chunks that results are cut into for each member where they are large enough, so that a thread pool shares them out evenly; and for each
/// result, at least.
const CHUNKS: usize = 4;
const LEAST_CHUNKS: usize = 8;
/// Lanes of a chunk of packing: several cache lines of neighbours where the operand lies by depth.
const PACKED_LANES: usize = 64;

/// What one product measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProductShape {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) depth: usize,
}

/// Where one of several products lies in the packed cells of right sides and in the lists of chunks.
///
/// Packed cells are ordered by block of the depth, then by panel: what is multiplied together lies together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProductSpan {
    pub(crate) shape: ProductShape,
    first_cell: usize,
    pub(crate) end_cell: usize,
    first_pack: usize,
    pub(crate) end_pack: usize,
    first_chunk: usize,
    pub(crate) end_chunk: usize,
    /// Left and right panels of a chunk of the result.
    chunk_panels: [usize; 2],
}

/// A chunk of a result: its left and its right panels.
#[derive(Debug, Clone)]
pub(crate) struct ResultChunk {
    pub(crate) left: Range<usize>,
    pub(crate) right: Range<usize>,
}

/// Chunks of each of `count` results, for a thread pool of so many members.
pub(crate) fn chunks_of_each(count: usize, members: usize) -> usize {
    (CHUNKS * members).div_ceil(count.max(1)).max(LEAST_CHUNKS)
}

impl ProductSpan {
    /// The span of the product that follows `before`.
    pub(crate) fn after(
        before: Option<&ProductSpan>,
        shape: ProductShape,
        tile: Tile,
        chunks: usize,
    ) -> Self {
        let (cell, pack, chunk) =
            before.map_or((0, 0, 0), |span| (span.end_cell, span.end_pack, span.end_chunk));
        let panels = [tile.panels(Side::Left, shape.rows), tile.panels(Side::Right, shape.columns)];
        let chunk_panels = chunk_panels(shape, tile, chunks);
        let chunks = panels[0].div_ceil(chunk_panels[0]) * panels[1].div_ceil(chunk_panels[1]);
        // An expert without rows needs no weights.
        let packs = if chunks == 0 { 0 } else { panels[1].div_ceil(packed_panels(tile)) };
        let cells = if chunks == 0 { 0 } else { panels[1] * tile.panel_cells(Side::Right, shape.depth) };
        Self {
            shape,
            first_cell: cell,
            end_cell: cell + cells,
            first_pack: pack,
            end_pack: pack + packs,
            first_chunk: chunk,
            end_chunk: chunk + chunks,
            chunk_panels,
        }
    }

    /// Where a right panel lies, for a block of the depth that starts at `block`.
    pub(crate) fn right_panel(&self, panel: usize, block: usize, tile: Tile) -> Range<usize> {
        let cells = tile.panel_cells(Side::Right, self.deep(block, tile));
        let panels = tile.panels(Side::Right, self.shape.columns);
        let start = self.first_cell + panels * tile.panel_cells(Side::Right, block) + panel * cells;
        start..start + cells
    }

    /// How deep the block is that starts at `block`.
    pub(crate) fn deep(&self, block: usize, tile: Tile) -> usize {
        (self.shape.depth - block).min(tile.block_depth)
    }

    /// Where the blocks of the depth start; at least one, if only an empty one.
    pub(crate) fn blocks(&self, tile: Tile) -> impl Iterator<Item = usize> + use<> {
        (0..self.shape.depth.max(1)).step_by(tile.block_depth)
    }

    /// The right panels of a chunk of packing.
    pub(crate) fn pack(&self, index: usize, tile: Tile) -> Range<usize> {
        let start = (index - self.first_pack) * packed_panels(tile);
        start..(start + packed_panels(tile)).min(tile.panels(Side::Right, self.shape.columns))
    }

    pub(crate) fn chunk(&self, index: usize, tile: Tile) -> ResultChunk {
        let index = index - self.first_chunk;
        let panels = [tile.panels(Side::Left, self.shape.rows), tile.panels(Side::Right, self.shape.columns)];
        let across = panels[1].div_ceil(self.chunk_panels[1]);
        let starts = [index / across * self.chunk_panels[0], index % across * self.chunk_panels[1]];
        let range = |side: usize| starts[side]..(starts[side] + self.chunk_panels[side]).min(panels[side]);
        ResultChunk { left: range(0), right: range(1) }
    }

    /// Cells that a member needs for a chunk: its left panels, and sums of some columns.
    pub(crate) fn member_cells(&self, tile: Tile) -> [usize; 2] {
        let [left, _] = self.chunk_panels;
        [left * tile.panel_cells(Side::Left, self.shape.depth), left * tile.rows * tile.block_columns]
    }
}

/// Right panels of a chunk of packing.
fn packed_panels(tile: Tile) -> usize {
    (PACKED_LANES / tile.columns).max(1)
}

/// Panels of a chunk: as many rows as fit close to a member and all columns, halved until there are enough chunks.
fn chunk_panels(shape: ProductShape, tile: Tile, chunks: usize) -> [usize; 2] {
    let panels = [tile.panels(Side::Left, shape.rows), tile.panels(Side::Right, shape.columns)];
    let fitting = LEFT_CELLS / tile.lane_cells(shape.depth).max(1);
    let rows = fitting.clamp(LEAST_ROWS, tile.block_rows);
    let mut of_chunk = [rows.div_ceil(tile.rows), panels[1].max(1)];
    while (0..2).map(|side| panels[side].div_ceil(of_chunk[side])).product::<usize>() < chunks {
        match of_chunk {
            [left, _] if left * tile.rows >= 2 * LEAST_ROWS => of_chunk[0] = left.div_ceil(2),
            [_, right] if right > 1 => of_chunk[1] = right.div_ceil(2),
            [left, _] if left > 1 => of_chunk[0] = left.div_ceil(2),
            _ => break,
        }
    }
    of_chunk
}
