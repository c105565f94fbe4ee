//! Attention forward: per panel of queries over blocks of keys, with the softmax brought up to date block by block.
//!
//! Scores are computed turned around, a key per row and a query per lane: maxima and sums are then taken lane by lane,
//! and a strip of weights is already the right side of its product with the values.

use std::f32::consts::{LN_2, LOG2_E};
use std::ops::Range;

use super::lines::{Softmax, bend, scale_lanes};
use super::{ScratchParts, Setting};
use crate::cpu::multiply::{Operand, Panels, Scratch, Side};
use crate::cpu::share::SharedRows;
use crate::cpu::{Cpu, Level};
use crate::device::AttentionForward;
use crate::{Accumulate, Element, Qkv, Rows};

/// Keys of a block, about: a strip of scores for them stays in the nearest cache.
const KEYS: usize = 128;

impl Cpu {
    pub(crate) fn attention<E: Element>(&self, attention: AttentionForward<'_, E>) {
        let AttentionForward { shape, qkv, seen, out, log_sums } = attention;
        let setting = self.setting::<E>(shape, seen);
        let forward = Forward { setting, qkv: self.qkv(qkv), level: self.level };
        let results = Results { out: self.rows_mut(out), log_sums: self.shared(log_sums, 1) };
        let Scratch { panels, sums, .. } = &mut *self.scratch.borrow_mut();
        let cells = forward.block_cells().iter().sum();
        let panels = panels.first(forward.blocks() * cells);
        let to = SharedRows::new(panels, cells, cells);
        self.with_scratch(forward.blocks(), to, &mut [], |block, to, _| forward.pack(block, to));
        let panels = &*panels;
        let sums = sums.first(forward.member_cells() * self.threads());
        self.with_scratch(forward.chunks(), (), sums, |chunk, (), scratch| {
            forward.chunk(chunk, panels, scratch, &results);
        });
    }
}

struct Forward<'a, E> {
    setting: Setting<'a>,
    qkv: Qkv<Rows<&'a [E]>>,
    level: Level,
}

struct Results<'a, E> {
    out: SharedRows<'a, E>,
    log_sums: SharedRows<'a, f32>,
}

/// A panel of queries of one head.
struct Queries {
    sequence: usize,
    head: usize,
    range: Range<usize>,
}

impl<E: Element> Forward<'_, E> {
    /// Keys of a block: whole left panels.
    fn block_keys(&self) -> usize {
        KEYS / self.setting.tile.rows * self.setting.tile.rows
    }

    fn blocks_per_sequence(&self) -> usize {
        self.setting.shape.keys.div_ceil(self.block_keys())
    }

    /// Packed cells of a block: of its keys, and of its values.
    fn block_cells(&self) -> [usize; 2] {
        let Setting { tile, shape, .. } = self.setting;
        let keys = self.block_keys() / tile.rows * tile.panel_cells(Side::Left, shape.head_dim);
        let values =
            tile.panels(Side::Left, shape.head_dim) * tile.panel_cells(Side::Left, self.block_keys());
        [keys, values]
    }

    fn blocks(&self) -> usize {
        self.setting.sequences() * self.setting.shape.kv_heads * self.blocks_per_sequence()
    }

    /// Packs the keys (a lane each) and the values (a lane per dimension) of one block.
    fn pack(&self, block: usize, to: &mut [f32]) {
        let Setting { tile, shape, multiplier, .. } = self.setting;
        let (of_head, number) = (block / self.blocks_per_sequence(), block % self.blocks_per_sequence());
        let (sequence, kv_head) = (of_head / shape.kv_heads, of_head % shape.kv_heads);
        let start = number * self.block_keys();
        let rows = start..(start + self.block_keys()).min(shape.keys);
        let keys = Operand::rows_of(shape.kv_head(self.qkv.keys, sequence, kv_head).rows(rows.clone()));
        let values = Operand::columns_of(shape.kv_head(self.qkv.values, sequence, kv_head).rows(rows));
        let (to_keys, to_values) = to.split_at_mut(self.block_cells()[0]);
        for (operand, depth, to) in [(keys, shape.head_dim, to_keys), (values, self.block_keys(), to_values)]
        {
            let panels = to.chunks_exact_mut(tile.panel_cells(Side::Left, depth)).enumerate();
            for (panel, to) in panels.take(tile.panels(Side::Left, operand.lanes())) {
                multiplier.pack(Side::Left, &operand, panel * tile.rows, to);
            }
        }
    }

    fn panels_per_sequence(&self) -> usize {
        self.setting.shape.queries.div_ceil(self.setting.tile.columns)
    }

    fn chunks(&self) -> usize {
        self.setting.sequences() * self.setting.shape.heads * self.panels_per_sequence()
    }

    /// The last panels of a head, which see most keys, come first.
    fn queries(&self, chunk: usize) -> Queries {
        let Setting { tile, shape, .. } = self.setting;
        let of_head = chunk / self.panels_per_sequence();
        let panel = self.panels_per_sequence() - 1 - chunk % self.panels_per_sequence();
        let start = panel * tile.columns;
        let range = start..(start + tile.columns).min(shape.queries);
        Queries { sequence: of_head / shape.heads, head: of_head % shape.heads, range }
    }

    /// The rows of the queries.
    fn rows(&self, queries: &Queries) -> Range<usize> {
        let start = queries.sequence * self.setting.shape.queries;
        start + queries.range.start..start + queries.range.end
    }

    fn member_cells(&self) -> usize {
        let Setting { tile, shape, .. } = self.setting;
        tile.panel_cells(Side::Right, shape.head_dim)
            + tile.panel_cells(Side::Right, self.block_keys())
            + self.block_keys() * tile.columns
            + self.setting.head_rows() * tile.columns
            + tile.columns * tile.columns
    }

    fn chunk(&self, chunk: usize, panels: &[f32], scratch: &mut [f32], results: &Results<'_, E>) {
        match self.setting.tile.columns {
            8 => self.attend::<8, false>(&self.queries(chunk), panels, scratch, results),
            16 => self.attend::<16, true>(&self.queries(chunk), panels, scratch, results),
            32 => self.attend::<32, true>(&self.queries(chunk), panels, scratch, results),
            other => unreachable!("no unit has tiles of {other} columns"),
        }
    }

    fn attend<const COLUMNS: usize, const FUSED: bool>(
        &self,
        queries: &Queries,
        panels: &[f32],
        scratch: &mut [f32],
        results: &Results<'_, E>,
    ) {
        let Setting { tile, shape, multiplier, .. } = self.setting;
        let mut parts = ScratchParts(scratch);
        let query_panel = parts.take(tile.panel_cells(Side::Right, shape.head_dim));
        let weight_panel = parts.take(tile.panel_cells(Side::Right, self.block_keys()));
        let scores = parts.take(self.block_keys() * COLUMNS);
        let out = parts.take(self.setting.head_rows() * COLUMNS);
        let head = shape.head(self.qkv.queries, queries.sequence, queries.head);
        multiplier.pack(Side::Right, &Operand::rows_of(head), queries.range.start, query_panel);
        let rows = self.rows(queries);
        results.out.fetch(rows, queries.head * shape.head_dim, shape.head_dim);
        out.fill(0.0);
        let mut softmax = Softmax::<COLUMNS>::NEW;
        let first_keys = self.setting.first_keys(queries.sequence, queries.range.clone());
        let first_block = first_keys[0] as usize / self.block_keys();
        let position = self.setting.position(queries.sequence, queries.range.start);
        let end = self.setting.end_of_keys(queries.sequence, &queries.range);
        for start in (first_block * self.block_keys()..end).step_by(self.block_keys()) {
            let keys = start..(start + self.block_keys()).min(end);
            let [key_panels, value_panels] = self.block(panels, queries, &keys);
            multiplier.multiply(
                shape.head_dim,
                key_panels,
                (&*query_panel).into(),
                Accumulate::Replace,
                scores,
            );
            let scores = &mut scores[..keys.len() * COLUMNS];
            if shape.cap > 0.0 {
                inlined!(self.level.vectorized(|| bend(scores, shape.scale, shape.cap)));
            }
            hide::<COLUMNS>(scores, &keys, position, first_keys);
            inlined!(self.level.vectorized(|| softmax.absorb::<FUSED>(scores, shape.scale * LOG2_E, out)));
            let weights = multiplier.strip_as_right(scores, keys.len(), weight_panel);
            multiplier.multiply(keys.len(), value_panels, weights.into(), Accumulate::Add, out);
        }
        self.finish(queries, &softmax, out, parts.take(COLUMNS * COLUMNS), results);
    }

    /// The packed keys and values of a block.
    fn block<'p>(&self, panels: &'p [f32], queries: &Queries, keys: &Range<usize>) -> [Panels<'p>; 2] {
        let Setting { tile, shape, .. } = self.setting;
        let of_head = queries.sequence * shape.kv_heads + queries.head / shape.group();
        let block = of_head * self.blocks_per_sequence() + keys.start / self.block_keys();
        let [key_cells, value_cells] = self.block_cells();
        let cells = &panels[block * (key_cells + value_cells)..];
        let stride = tile.panel_cells(Side::Left, shape.head_dim);
        let count = tile.panels(Side::Left, keys.len());
        let keys = Panels { cells: &cells[..count * stride], stride, count };
        let stride = tile.panel_cells(Side::Left, self.block_keys());
        let count = tile.panels(Side::Left, shape.head_dim);
        [keys, Panels { cells: &cells[key_cells..][..count * stride], stride, count }]
    }

    fn finish<const COLUMNS: usize>(
        &self,
        queries: &Queries,
        softmax: &Softmax<COLUMNS>,
        out: &mut [f32],
        buffer: &mut [f32],
        results: &Results<'_, E>,
    ) {
        let shape = self.setting.shape;
        let first_row = self.rows(queries).start;
        for lane in 0..queries.range.len() {
            let at = (first_row + lane) * shape.heads + queries.head;
            #[expect(unsafe_code, reason = "results are shared out by queries and heads")]
            // SAFETY: each chunk is done once, and no query of a head is in two of them.
            let log_sum = unsafe { results.log_sums.range(at..at + 1) };
            // Minus infinity where no key was seen.
            log_sum[0] = softmax.most[lane] * LN_2 + softmax.sum[lane].ln();
        }
        // What saw no key stays zero.
        let inverses = softmax.sum.map(|sum| if sum == 0.0 { 0.0 } else { 1.0 / sum });
        inlined!(self.level.vectorized(|| scale_lanes(out, &inverses)));
        self.setting.turn(out, buffer, |lane, dim, values| {
            if lane < queries.range.len() {
                let (row, column) = (first_row + lane, queries.head * shape.head_dim + dim);
                #[expect(unsafe_code, reason = "results are shared out by queries and heads")]
                // SAFETY: as above.
                let out = unsafe { results.out.part_of_row(row, column, values.len()) };
                inlined!(self.level.vectorized(|| Accumulate::Replace.apply_all(values, out)));
            }
        });
    }
}

/// Scores of keys that a query does not see become minus infinity; a key per row, a query per lane, the first of them at
/// `position`.
fn hide<const COLUMNS: usize>(scores: &mut [f32], keys: &Range<usize>, position: usize, first_keys: &[u32]) {
    let latest = first_keys[first_keys.len() - 1] as usize;
    if keys.end <= position + 1 && latest <= keys.start {
        return;
    }
    for (row, key) in scores.as_chunks_mut::<COLUMNS>().0.iter_mut().zip(keys.clone()) {
        row[..key.saturating_sub(position)].fill(f32::NEG_INFINITY);
        if key < latest {
            let seen = first_keys.partition_point(|first| *first as usize <= key);
            row[seen..].fill(f32::NEG_INFINITY);
        }
    }
}
