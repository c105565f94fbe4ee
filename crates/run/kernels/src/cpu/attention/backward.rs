//! Attention backward: scores are computed anew, block by block, from the logarithms of their sums.
//!
//! Here a query is a row and a key a lane, so that strips of weights and of gradients of scores are right sides of the
//! products that give the gradients of values and keys. Work is cut by sequence, key head and *part*: some of the blocks
//! of queries of the heads that share the key head. Each part adds up gradients of keys and values of its own; these are
//! added together in the order of the parts at the end.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::lines::{StripQuery, bend_with_slopes, dot, weigh};
use super::{ScratchParts, Setting};
use crate::cpu::multiply::{Operand, Panels, Scratch, Side};
use crate::cpu::share::SharedRows;
use crate::cpu::{Cpu, Level};
use crate::device::AttentionBackward;
use crate::{Accumulate, Element, Qkv, Rows};

/// Queries and keys of a block, about.
const BLOCK: usize = 64;
/// Chunks of work that there are at least, where there are as many blocks.
const CHUNKS: usize = 16;

impl Cpu {
    pub(crate) fn attention_backward<E: Element>(&self, attention: AttentionBackward<'_, E>) {
        let AttentionBackward { shape, qkv, seen, out, log_sums, d_out, d_qkv } = attention;
        let setting = self.setting::<E>(shape, seen);
        let (qkv, out, d_out) = (self.qkv(qkv), self.rows(out), self.rows(d_out));
        let log_sums = self.slice(log_sums);
        let backward = Backward { setting, qkv, out, d_out, log_sums, level: self.level };
        let d_queries = self.rows_mut(d_qkv.queries);
        let d_keys_and_values = [self.rows_mut(d_qkv.keys), self.rows_mut(d_qkv.values)];
        let Scratch { panels, sums, .. } = &mut *self.scratch.borrow_mut();
        let (block_cells, part_cells) = (backward.block_cells().iter().sum(), backward.part_cells());
        let packed_cells = backward.blocks() * block_cells;
        let panels = panels.first(packed_cells + backward.chunks() * part_cells);
        let (packed, gradients) = panels.split_at_mut(packed_cells);
        let to = SharedRows::new(packed, block_cells, block_cells);
        self.with_scratch(backward.blocks(), to, &mut [], |block, to, _| backward.pack(block, to));
        let packed = &*packed;
        let sums = sums.first(backward.member_cells() * self.threads());
        let of_parts = SharedRows::new(gradients, part_cells, part_cells);
        self.with_scratch(backward.chunks(), of_parts, sums, |chunk, gradients, scratch| {
            backward.chunk(chunk, packed, gradients, scratch, &d_queries);
        });
        let gradients = &*gradients;
        self.with_scratch(backward.key_panels(), (), sums, |panel, (), scratch| {
            backward.add_parts(panel, gradients, scratch, &d_keys_and_values);
        });
    }
}

struct Backward<'a, E> {
    setting: Setting<'a>,
    qkv: Qkv<Rows<&'a [E]>>,
    out: Rows<&'a [E]>,
    d_out: Rows<&'a [E]>,
    log_sums: &'a [f32],
    level: Level,
}

/// Some queries of one head.
struct Queries {
    sequence: usize,
    head: usize,
    range: Range<usize>,
}

/// What a member keeps for one block of queries.
struct Block<'a> {
    /// Queries and gradients of outputs as left panels: a lane per query, and a lane per dimension.
    queries: &'a mut [f32],
    queries_turned: &'a mut [f32],
    d_out: &'a mut [f32],
    d_out_turned: &'a mut [f32],
    /// Strips of a query per row and a key per lane.
    scores: &'a mut [f32],
    gradients: &'a mut [f32],
    /// A strip as a right panel.
    packed: &'a mut [f32],
    /// Gradients of scores as left panels, for all keys of a block.
    d_scores: &'a mut [f32],
    /// Strips of a query per row and a dimension per lane.
    d_queries: &'a mut [f32],
}

impl<E: Element> Backward<'_, E> {
    /// Queries of a block: whole left panels.
    fn block_queries(&self) -> usize {
        BLOCK / self.setting.tile.rows * self.setting.tile.rows
    }

    fn query_blocks(&self) -> usize {
        self.setting.shape.queries.div_ceil(self.block_queries())
    }

    fn key_blocks(&self) -> usize {
        self.setting.shape.keys.div_ceil(BLOCK)
    }

    fn kv_heads(&self) -> usize {
        self.setting.sequences() * self.setting.shape.kv_heads
    }

    /// Parts of the work of a key head, by shape alone.
    fn parts(&self) -> usize {
        let most = self.setting.shape.group() * self.query_blocks();
        CHUNKS.div_ceil(self.kv_heads().max(1)).clamp(1, most.max(1))
    }

    fn chunks(&self) -> usize {
        self.kv_heads() * self.parts()
    }

    fn blocks(&self) -> usize {
        self.kv_heads() * self.key_blocks()
    }

    /// Panels of a block of keys.
    fn panels_of_block(&self) -> usize {
        BLOCK / self.setting.tile.columns
    }

    /// Packed cells of a block of keys: the keys and the values with a lane per key, the keys with one per dimension.
    fn block_cells(&self) -> [usize; 3] {
        let Setting { tile, shape, .. } = self.setting;
        let by_key = self.panels_of_block() * tile.panel_cells(Side::Right, shape.head_dim);
        let by_dim = tile.panels(Side::Right, shape.head_dim) * tile.panel_cells(Side::Right, BLOCK);
        [by_key, by_key, by_dim]
    }

    /// A strip of a dimension per row and a key per lane.
    fn strip_cells(&self) -> usize {
        self.setting.head_rows() * self.setting.tile.columns
    }

    /// Gradients that a part adds up: of all keys, then of all values.
    fn part_cells(&self) -> usize {
        2 * self.key_blocks() * self.panels_of_block() * self.strip_cells()
    }

    fn gradients_of(&self, chunk: usize) -> Range<usize> {
        chunk * self.part_cells()..(chunk + 1) * self.part_cells()
    }

    fn pack(&self, block: usize, to: &mut [f32]) {
        let Setting { tile, shape, multiplier, .. } = self.setting;
        let (of_head, number) = (block / self.key_blocks(), block % self.key_blocks());
        let (sequence, kv_head) = (of_head / shape.kv_heads, of_head % shape.kv_heads);
        let rows = number * BLOCK..((number + 1) * BLOCK).min(shape.keys);
        let keys = shape.kv_head(self.qkv.keys, sequence, kv_head).rows(rows.clone());
        let values = shape.kv_head(self.qkv.values, sequence, kv_head).rows(rows);
        let (cells, mut parts) = (self.block_cells(), ScratchParts(to));
        let operands = [
            (Operand::rows_of(keys), shape.head_dim),
            (Operand::rows_of(values), shape.head_dim),
            (Operand::columns_of(keys), BLOCK),
        ];
        for ((operand, depth), cells) in operands.into_iter().zip(cells) {
            let panels = parts.take(cells).chunks_exact_mut(tile.panel_cells(Side::Right, depth)).enumerate();
            for (panel, to) in panels.take(tile.panels(Side::Right, operand.lanes())) {
                multiplier.pack(Side::Right, &operand, panel * tile.columns, to);
            }
        }
    }

    fn member_cells(&self) -> usize {
        let Setting { tile, shape, .. } = self.setting;
        let rows = self.block_queries();
        2 * rows / tile.rows * tile.panel_cells(Side::Left, shape.head_dim)
            + 2 * tile.panels(Side::Left, shape.head_dim) * tile.panel_cells(Side::Left, rows)
            + 2 * rows * tile.columns
            + tile.panel_cells(Side::Right, rows)
            + rows / tile.rows * tile.panel_cells(Side::Left, BLOCK)
            + tile.panels(Side::Right, shape.head_dim) * rows * tile.columns
            + tile.columns * tile.columns
    }

    fn scratch<'s>(&self, scratch: &'s mut [f32]) -> Block<'s> {
        let Setting { tile, shape, .. } = self.setting;
        let rows = self.block_queries();
        let by_query = rows / tile.rows * tile.panel_cells(Side::Left, shape.head_dim);
        let by_dim = tile.panels(Side::Left, shape.head_dim) * tile.panel_cells(Side::Left, rows);
        let mut parts = ScratchParts(scratch);
        Block {
            queries: parts.take(by_query),
            queries_turned: parts.take(by_dim),
            d_out: parts.take(by_query),
            d_out_turned: parts.take(by_dim),
            scores: parts.take(rows * tile.columns),
            gradients: parts.take(rows * tile.columns),
            packed: parts.take(tile.panel_cells(Side::Right, rows)),
            d_scores: parts.take(rows / tile.rows * tile.panel_cells(Side::Left, BLOCK)),
            d_queries: parts.take(tile.panels(Side::Right, shape.head_dim) * rows * tile.columns),
        }
    }

    /// The blocks of queries of one part. They are dealt out in turn, since later ones see more keys.
    fn chunk(
        &self,
        chunk: usize,
        packed: &[f32],
        gradients: &mut [f32],
        scratch: &mut [f32],
        d_queries: &SharedRows<'_, E>,
    ) {
        let shape = self.setting.shape;
        let (of_head, part) = (chunk / self.parts(), chunk % self.parts());
        let (sequence, kv_head) = (of_head / shape.kv_heads, of_head % shape.kv_heads);
        let total: usize = self.block_cells().iter().sum();
        let packed = &packed[of_head * self.key_blocks() * total..][..self.key_blocks() * total];
        gradients.fill(0.0);
        let mut block = self.scratch(scratch);
        for index in (part..shape.group() * self.query_blocks()).step_by(self.parts()) {
            let start = index % self.query_blocks() * self.block_queries();
            let queries = Queries {
                sequence,
                head: kv_head * shape.group() + index / self.query_blocks(),
                range: start..(start + self.block_queries()).min(shape.queries),
            };
            let first_row = sequence * shape.queries;
            let rows = first_row + queries.range.start..first_row + queries.range.end;
            d_queries.fetch(rows, queries.head * shape.head_dim, shape.head_dim);
            match self.setting.tile.columns {
                8 => self.queries::<8, false>(&queries, packed, gradients, &mut block),
                16 => self.queries::<16, true>(&queries, packed, gradients, &mut block),
                32 => self.queries::<32, true>(&queries, packed, gradients, &mut block),
                other => unreachable!("no unit has tiles of {other} columns"),
            }
            self.write_queries(&queries, block.d_queries, d_queries);
        }
    }

    /// One block of queries against all blocks of keys that it sees.
    fn queries<const COLUMNS: usize, const FUSED: bool>(
        &self,
        queries: &Queries,
        packed: &[f32],
        gradients: &mut [f32],
        block: &mut Block<'_>,
    ) {
        self.pack_queries(queries, block);
        let statistics = self.statistics(queries);
        block.d_queries.fill(0.0);
        let first_keys = self.setting.first_keys(queries.sequence, queries.range.clone());
        let first_block = first_keys[0] as usize / BLOCK;
        let total: usize = self.block_cells().iter().sum();
        let end = self.setting.end_of_keys(queries.sequence, &queries.range);
        for number in first_block..end.div_ceil(BLOCK) {
            let keys = number * BLOCK..((number + 1) * BLOCK).min(end);
            let packed = &packed[number * total..][..total];
            for panel in 0..keys.len().div_ceil(COLUMNS) {
                self.weigh::<COLUMNS, FUSED>(queries, &statistics, packed, (&keys, panel), block);
                let position = number * self.panels_of_block() + panel;
                self.add_keys_and_values(queries, gradients, position, block);
                self.pack_d_scores(queries, panel, block);
            }
            self.add_queries(queries, &keys, packed, block);
        }
    }

    fn pack_queries(&self, queries: &Queries, block: &mut Block<'_>) {
        let Setting { tile, shape, multiplier, .. } = self.setting;
        let q = shape.head(self.qkv.queries, queries.sequence, queries.head).rows(queries.range.clone());
        let d = shape.head(self.d_out, queries.sequence, queries.head).rows(queries.range.clone());
        let operands = [
            (Operand::rows_of(q), shape.head_dim, &mut *block.queries),
            (Operand::columns_of(q), self.block_queries(), &mut *block.queries_turned),
            (Operand::rows_of(d), shape.head_dim, &mut *block.d_out),
            (Operand::columns_of(d), self.block_queries(), &mut *block.d_out_turned),
        ];
        for (operand, depth, to) in operands {
            let panels = to.chunks_exact_mut(tile.panel_cells(Side::Left, depth)).enumerate();
            for (panel, to) in panels.take(tile.panels(Side::Left, operand.lanes())) {
                multiplier.pack(Side::Left, &operand, panel * tile.rows, to);
            }
        }
    }

    fn statistics(&self, queries: &Queries) -> [StripQuery; BLOCK] {
        let shape = self.setting.shape;
        let out = shape.head(self.out, queries.sequence, queries.head).rows(queries.range.clone());
        let d_out = shape.head(self.d_out, queries.sequence, queries.head).rows(queries.range.clone());
        let mut statistics = [StripQuery::default(); BLOCK];
        for (row, query) in statistics.iter_mut().enumerate().take(queries.range.len()) {
            let at = (queries.sequence * shape.queries + queries.range.start + row) * shape.heads;
            query.log_sum = self.log_sums[at + queries.head] * LOG2_E;
            query.delta = inlined!(self.level.vectorized(|| dot(out.row(row), d_out.row(row))));
        }
        statistics
    }

    /// Weights and gradients of scores of one panel of keys.
    fn weigh<const COLUMNS: usize, const FUSED: bool>(
        &self,
        queries: &Queries,
        statistics: &[StripQuery; BLOCK],
        packed: &[f32],
        (keys, panel): (&Range<usize>, usize),
        block: &mut Block<'_>,
    ) {
        let Setting { tile, shape, multiplier, .. } = self.setting;
        let count = tile.panels(Side::Left, queries.range.len());
        let stride = tile.panel_cells(Side::Left, shape.head_dim);
        let cells = tile.panel_cells(Side::Right, shape.head_dim);
        let [by_key, ..] = self.block_cells();
        let (key_panel, value_panel) =
            (&packed[panel * cells..][..cells], &packed[by_key + panel * cells..][..cells]);
        let left = Panels { cells: block.queries, stride, count };
        multiplier.multiply(shape.head_dim, left, key_panel.into(), Accumulate::Replace, block.scores);
        let left = Panels { cells: block.d_out, stride, count };
        multiplier.multiply(shape.head_dim, left, value_panel.into(), Accumulate::Replace, block.gradients);
        let first_key = keys.start + panel * COLUMNS;
        let position = self.setting.position(queries.sequence, queries.range.start);
        let first_keys = self.setting.first_keys(queries.sequence, queries.range.clone());
        let scores = block.scores.as_chunks_mut::<COLUMNS>().0;
        let gradients = block.gradients.as_chunks_mut::<COLUMNS>().0;
        inlined!(self.level.vectorized(|| {
            for row in 0..queries.range.len() {
                let (scores, gradients) = (&mut scores[row], &mut gradients[row]);
                let mut slopes = [1.0; COLUMNS];
                if shape.cap > 0.0 {
                    bend_with_slopes(scores, (shape.scale, shape.cap), &mut slopes);
                }
                weigh::<COLUMNS, FUSED>(
                    statistics[row],
                    (shape.scale * LOG2_E, shape.scale),
                    scores,
                    gradients,
                );
                if shape.cap > 0.0 {
                    gradients.iter_mut().zip(&slopes).for_each(|(gradient, slope)| *gradient *= slope);
                }
                let unseen = (first_keys[row] as usize).saturating_sub(first_key).min(COLUMNS);
                let end = (position + row + 1).min(keys.end).saturating_sub(first_key);
                if unseen > 0 || end < COLUMNS {
                    for hidden in [0..unseen, end.min(COLUMNS)..COLUMNS] {
                        scores[hidden.clone()].fill(0.0);
                        gradients[hidden].fill(0.0);
                    }
                }
            }
        }));
    }

    /// `d_values += d_out^T weights` and `d_keys += queries^T d_scores`, turned around, for one panel of keys.
    fn add_keys_and_values(
        &self,
        queries: &Queries,
        gradients: &mut [f32],
        position: usize,
        block: &mut Block<'_>,
    ) {
        let Setting { tile, shape, multiplier, .. } = self.setting;
        let rows = queries.range.len();
        let stride = tile.panel_cells(Side::Left, self.block_queries());
        let count = tile.panels(Side::Left, shape.head_dim);
        let (d_keys, d_values) = gradients.split_at_mut(self.part_cells() / 2);
        let strip = position * self.strip_cells()..(position + 1) * self.strip_cells();
        for (turned, weights, sums) in [
            (&*block.d_out_turned, &*block.scores, d_values),
            (&*block.queries_turned, &*block.gradients, d_keys),
        ] {
            let right = multiplier.strip_as_right(weights, rows, block.packed);
            let left = Panels { cells: turned, stride, count };
            multiplier.multiply(rows, left, right.into(), Accumulate::Add, &mut sums[strip.clone()]);
        }
    }

    /// Packs the gradients of scores of one panel of keys beside those of the block's other panels.
    fn pack_d_scores(&self, queries: &Queries, panel: usize, block: &mut Block<'_>) {
        let Setting { tile, multiplier, .. } = self.setting;
        let strip = self.setting.strip_rows(block.gradients, queries.range.len());
        let (before, cells) = (panel * tile.columns, tile.panel_cells(Side::Left, tile.columns));
        let panels = block.d_scores.chunks_exact_mut(tile.panel_cells(Side::Left, BLOCK)).enumerate();
        for (left, to) in panels.take(tile.panels(Side::Left, queries.range.len())) {
            let start = tile.panel_cells(Side::Left, before);
            multiplier.pack(Side::Left, &strip, left * tile.rows, &mut to[start..start + cells]);
        }
    }

    /// `d_queries += d_scores keys` for one block of keys.
    fn add_queries(&self, queries: &Queries, keys: &Range<usize>, packed: &[f32], block: &mut Block<'_>) {
        let Setting { tile, multiplier, .. } = self.setting;
        let [by_key, by_value, _] = self.block_cells();
        let left = Panels {
            cells: block.d_scores,
            stride: tile.panel_cells(Side::Left, BLOCK),
            count: tile.panels(Side::Left, queries.range.len()),
        };
        let panels = packed[by_key + by_value..].chunks_exact(tile.panel_cells(Side::Right, BLOCK));
        let strips = block.d_queries.chunks_exact_mut(self.block_queries() * tile.columns);
        for (right, strip) in panels.zip(strips) {
            multiplier.multiply(keys.len(), left, right.into(), Accumulate::Add, strip);
        }
    }

    fn write_queries(&self, queries: &Queries, strips: &[f32], d_queries: &SharedRows<'_, E>) {
        let Setting { tile, shape, .. } = self.setting;
        let first_row = queries.sequence * shape.queries + queries.range.start;
        for (panel, strip) in strips.chunks_exact(self.block_queries() * tile.columns).enumerate() {
            let dim = panel * tile.columns;
            let dims = tile.columns.min(shape.head_dim - dim);
            for (row, values) in strip.chunks_exact(tile.columns).enumerate().take(queries.range.len()) {
                let column = queries.head * shape.head_dim + dim;
                #[expect(unsafe_code, reason = "results are shared out by queries and heads")]
                // SAFETY: each chunk is done once, and no query of a head is in two of them.
                let to = unsafe { d_queries.part_of_row(first_row + row, column, dims) };
                inlined!(self.level.vectorized(|| Accumulate::Replace.apply_all(&values[..dims], to)));
            }
        }
    }

    fn key_panels(&self) -> usize {
        self.blocks() * self.panels_of_block()
    }

    /// Adds up what the parts have for one panel of keys, and writes its gradients of keys and values.
    fn add_parts(&self, panel: usize, gradients: &[f32], scratch: &mut [f32], to: &[SharedRows<'_, E>; 2]) {
        let Setting { tile, shape, .. } = self.setting;
        let per_head = self.key_blocks() * self.panels_of_block();
        let (of_head, panel) = (panel / per_head, panel % per_head);
        let (sequence, kv_head) = (of_head / shape.kv_heads, of_head % shape.kv_heads);
        let (sums, buffer) = scratch.split_at_mut(self.strip_cells());
        let first = panel * tile.columns;
        let keys = first.min(shape.keys)..(first + tile.columns).min(shape.keys);
        let rows = sequence * shape.keys + keys.start..sequence * shape.keys + keys.end;
        for to in to {
            to.fetch(rows.clone(), kv_head * shape.head_dim, shape.head_dim);
        }
        for (half, to) in to.iter().enumerate() {
            let strip = |part: usize| {
                let of_part = &gradients[self.gradients_of(of_head * self.parts() + part)];
                &of_part[half * self.part_cells() / 2 + panel * self.strip_cells()..][..self.strip_cells()]
            };
            sums.copy_from_slice(strip(0));
            for part in 1..self.parts() {
                sums.iter_mut().zip(strip(part)).for_each(|(sum, more)| *sum += more);
            }
            self.setting.turn(sums, &mut buffer[..tile.columns * tile.columns], |lane, dim, values| {
                let key = panel * tile.columns + lane;
                if key < shape.keys {
                    let (row, column) = (sequence * shape.keys + key, kv_head * shape.head_dim + dim);
                    #[expect(unsafe_code, reason = "results are shared out by keys and heads")]
                    // SAFETY: each panel is done once, and no key or value of a head is in two of them.
                    let to = unsafe { to.part_of_row(row, column, values.len()) };
                    inlined!(self.level.vectorized(|| Accumulate::Replace.apply_all(values, to)));
                }
            });
        }
    }
}
