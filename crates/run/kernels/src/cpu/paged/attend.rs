//! Which rows, heads and spans of tokens make an item of work, and what a member does with one.
//!
//! A *lane* is a row of a sequence with one of the query heads that share a key head. Lanes go in tiles of up to sixteen, and many tiles through
//! the same piece of tokens while it is in a near cache.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::blocks::{BlockOrder, Steps};
use super::softmax::SoftmaxSeen;
#[cfg(target_arch = "x86_64")]
use super::tiles;
use super::{lanes, softmax};
use crate::cpu::attention::{ScratchParts, bend};
use crate::cpu::multiply::Scratch;
use crate::cpu::share::SharedRows;
use crate::cpu::{Cpu, Level};
use crate::{Accumulate, Element, PagedShape, Rows, Sight};

/// Tokens of a piece: their scores for a tile stay in the nearest cache, their keys and values in the second one.
pub(super) const PIECE: usize = 256;
/// Tokens of a span: enough for a member to stream, few enough to share out one long sequence.
const SPAN: usize = 8 * PIECE;
/// Lanes of a tile.
pub(super) const TILE: usize = 16;
/// Lanes of an item: a piece of tokens is read once for them.
const LANES: usize = 256;
/// Rows of a sequence up to which its spans go to several members.
const FEW_ROWS: usize = 4;

/// A sequence, and where its items and partial sums are among those of all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SequenceJob {
    /// Lanes of an item, at most.
    lanes: usize,
    /// The spans that any row sees.
    first_span: usize,
    end_span: usize,
    /// Whether a span is an item of its own.
    is_split: bool,
    first_item: usize,
    end_item: usize,
    first_cell: usize,
    end_cell: usize,
}

/// What is the same for all items.
#[derive(Clone, Copy)]
struct Setting<'a, E> {
    shape: &'a PagedShape,
    queries: Rows<&'a [E]>,
    steps: Steps<'a>,
    sight: Sight,
    pool: &'a [E],
    /// One for each head, where they have any.
    sinks: Option<&'a [E]>,
    order: BlockOrder,
    level: Level,
}

/// Some lanes of a key head of a sequence.
struct Lanes {
    sequence: usize,
    kv_head: usize,
    range: Range<usize>,
}

/// What a member keeps of its lanes: what each has seen, and the sums of its values.
struct State<'s> {
    seen: &'s mut [f32],
    out: &'s mut [f32],
}

/// The memory of a member.
struct Workspace<'s> {
    /// The queries of all tiles as the unit wants them.
    queries: &'s mut [f32],
    scores: &'s mut [f32],
    /// Weights as the tile unit wants them, and values of a group that has tokens to hide; or what was widened.
    weights: &'s mut [f32],
    total: State<'s>,
    part: State<'s>,
}

/// Queries, where they are, what they see, and the pool.
pub(super) type Input<'a, E> = (Rows<&'a [E]>, Steps<'a>, Sight, &'a [E]);

impl Cpu {
    pub(super) fn attend<E: Element>(
        &self,
        shape: &PagedShape,
        (queries, steps, sight, pool): Input<'_, E>,
        sinks: Option<&[E]>,
        out: &SharedRows<'_, E>,
    ) {
        let (order, level) = (self.block_order::<E>(shape), self.level);
        let setting = Setting { shape, queries, steps, sight, pool, sinks, order, level };
        let Scratch { panels, sums, sequences, .. } = &mut *self.scratch.borrow_mut();
        sequences.clear();
        for sequence in 0..steps.sequences() {
            sequences.push(setting.job(sequences.last(), sequence));
        }
        let Some(last) = sequences.last().copied() else { return };
        let (jobs, partial) = (&*sequences, panels.first(last.end_cell));
        let most = jobs.iter().map(|job| job.lanes).max().unwrap_or_default();
        let sums = sums.first(setting.member_cells(most) * self.pool.size());
        let cells = SharedRows::new(partial, 1, 1);
        self.with_scratch(last.end_item, (), sums, |item, (), scratch| {
            setting.item(jobs, item, most, scratch, &cells, out);
        });
        if last.end_cell > 0 {
            let partial = &*partial;
            let merges = jobs.len() * shape.kv_heads;
            self.with_scratch(merges, (), sums, |index, (), scratch| {
                setting.merge(jobs, index, most, scratch, partial, out);
            });
        }
    }
}

impl<E: Element> Setting<'_, E> {
    fn group(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    fn job(&self, before: Option<&SequenceJob>, sequence: usize) -> SequenceJob {
        let (item, cell) = before.map_or((0, 0), |job| (job.end_item, job.end_cell));
        let (rows, context) = (self.steps.rows(sequence).len(), self.steps.context(sequence));
        let lanes = rows * self.group();
        let groups = lanes.div_ceil(LANES);
        let first_span = self.sight.first(context) / SPAN;
        let end_span = (context + rows).div_ceil(SPAN);
        let spans = end_span - first_span;
        let is_split = rows > 0 && rows <= FEW_ROWS && groups == 1 && spans > 1;
        let items = self.shape.kv_heads * if is_split { spans } else { groups };
        let cells = if is_split { items * lanes * (self.shape.head_dim + 2) } else { 0 };
        let (end_item, end_cell) = (item + items, cell + cells);
        SequenceJob {
            lanes: lanes.min(LANES),
            first_span,
            end_span,
            is_split,
            first_item: item,
            end_item,
            first_cell: cell,
            end_cell,
        }
    }

    /// Cells of one lane of packed queries.
    fn query_cells(&self) -> usize {
        match self.order {
            BlockOrder::Plain | BlockOrder::Rows => self.shape.head_dim,
            BlockOrder::Tiles => self.shape.head_dim / 2,
        }
    }

    fn member_cells(&self, lanes: usize) -> usize {
        let lanes = lanes.next_multiple_of(TILE);
        let dim = self.shape.head_dim;
        let cells = lanes * self.query_cells() + TILE * PIECE + TILE * PIECE / 2 + dim * TILE;
        (cells + 2 * lanes * (dim + 2)).next_multiple_of(16)
    }

    fn workspace<'s>(&self, lanes: usize, scratch: &'s mut [f32]) -> Workspace<'s> {
        let (lanes, dim, mut parts) =
            (lanes.next_multiple_of(TILE), self.shape.head_dim, ScratchParts(scratch));
        Workspace {
            queries: parts.take(lanes * self.query_cells()),
            scores: parts.take(TILE * PIECE),
            weights: parts.take(TILE * PIECE / 2 + dim * TILE),
            total: State { seen: parts.take(2 * lanes), out: parts.take(lanes * dim) },
            part: State { seen: parts.take(2 * lanes), out: parts.take(lanes * dim) },
        }
    }

    fn lanes(&self, sequence: usize, kv_head: usize, group: usize) -> Lanes {
        let count = self.steps.rows(sequence).len() * self.group();
        Lanes { sequence, kv_head, range: group * LANES..((group + 1) * LANES).min(count) }
    }

    fn item(
        &self,
        jobs: &[SequenceJob],
        item: usize,
        most: usize,
        scratch: &mut [f32],
        partial: &SharedRows<'_, f32>,
        out: &SharedRows<'_, E>,
    ) {
        let sequence = jobs.partition_point(|job| job.end_item <= item);
        let job = &jobs[sequence];
        let each = (job.end_item - job.first_item) / self.shape.kv_heads;
        let (kv_head, index) = ((item - job.first_item) / each, (item - job.first_item) % each);
        let mut workspace = self.workspace(most, scratch);
        if job.is_split {
            let lanes = self.lanes(sequence, kv_head, 0);
            self.pack_queries(&lanes, workspace.queries);
            self.span(
                &lanes,
                job.first_span + index,
                (workspace.queries, workspace.scores, workspace.weights),
                &mut workspace.total,
            );
            let cells = lanes.range.len() * (self.shape.head_dim + 2);
            let start = job.first_cell + (item - job.first_item) * cells;
            #[expect(unsafe_code, reason = "partial sums are shared out by items")]
            // SAFETY: each item is done once, and no two of them have the same place.
            let to = unsafe { partial.range(start..start + cells) };
            let (seen, sums) = to.split_at_mut(2 * lanes.range.len());
            seen.copy_from_slice(&workspace.total.seen[..2 * lanes.range.len()]);
            sums.copy_from_slice(&workspace.total.out[..sums.len()]);
            return;
        }
        // Later rows see more, so they come first.
        let lanes = self.lanes(sequence, kv_head, each - 1 - index);
        self.pack_queries(&lanes, workspace.queries);
        self.all_spans(&lanes, &mut workspace);
        self.finish(&lanes, &mut workspace.total, out);
    }

    /// Goes through all spans that some lanes see, one after the other.
    fn all_spans(&self, lanes: &Lanes, workspace: &mut Workspace<'_>) {
        let (first, last) =
            (self.seen_by(lanes, lanes.range.start), self.seen_by(lanes, lanes.range.end - 1));
        let spans = first.start / SPAN..last.end.div_ceil(SPAN);
        for span in spans.clone() {
            let near = (&mut *workspace.queries, &mut *workspace.scores, &mut *workspace.weights);
            if span == spans.start {
                self.span(lanes, span, near, &mut workspace.total);
            } else {
                self.span(lanes, span, near, &mut workspace.part);
                self.merge_lanes(
                    lanes.range.len(),
                    &mut workspace.total,
                    workspace.part.seen,
                    workspace.part.out,
                );
            }
        }
    }

    /// Merges the spans of a key head of a sequence whose spans were items of their own.
    fn merge(
        &self,
        jobs: &[SequenceJob],
        index: usize,
        most: usize,
        scratch: &mut [f32],
        partial: &[f32],
        out: &SharedRows<'_, E>,
    ) {
        let (sequence, kv_head) = (index / self.shape.kv_heads, index % self.shape.kv_heads);
        let job = &jobs[sequence];
        if !job.is_split {
            return;
        }
        let (lanes, mut total) = (self.lanes(sequence, kv_head, 0), self.workspace(most, scratch).total);
        let (count, spans) = (lanes.range.len(), job.end_span - job.first_span);
        let cells = count * (self.shape.head_dim + 2);
        let parts = &partial[job.first_cell + kv_head * spans * cells..][..spans * cells];
        for (span, part) in parts.chunks_exact(cells).enumerate() {
            let (seen, sums) = part.split_at(2 * count);
            if span == 0 {
                total.seen[..2 * count].copy_from_slice(seen);
                total.out[..sums.len()].copy_from_slice(sums);
            } else {
                self.merge_lanes(count, &mut total, seen, sums);
            }
        }
        self.finish(&lanes, &mut total, out);
    }

    fn merge_lanes(&self, lanes: usize, total: &mut State<'_>, seen: &[f32], more: &[f32]) {
        let dim = self.shape.head_dim;
        let all = total.seen.as_chunks_mut::<2>().0.iter_mut().zip(total.out.chunks_exact_mut(dim));
        let more = seen.as_chunks::<2>().0.iter().zip(more.chunks_exact(dim));
        for ((seen, out), ([most, sum], more)) in all.zip(more).take(lanes) {
            // What saw nothing of the span stays as it is.
            if *sum == 0.0 {
                continue;
            }
            let mut total = SoftmaxSeen { most: seen[0], sum: seen[1] };
            let later = SoftmaxSeen { most: *most, sum: *sum };
            match self.level {
                Level::Portable => total.merge::<false>(out, later, more),
                level => inlined!(level.vectorized(|| total.merge::<true>(out, later, more))),
            }
            *seen = [total.most, total.sum];
        }
    }

    /// The row of a lane in its sequence.
    fn row(&self, lane: usize) -> usize {
        lane / self.group()
    }

    /// The positions that a lane sees.
    fn seen_by(&self, lanes: &Lanes, lane: usize) -> Range<usize> {
        let position = self.steps.context(lanes.sequence) + self.row(lane);
        self.sight.first(position)..position + 1
    }

    /// The elements of a lane's query.
    fn query(&self, lanes: &Lanes, lane: usize) -> &[E] {
        let row = self.queries.row(self.steps.rows(lanes.sequence).start + self.row(lane));
        let head = lanes.kv_head * self.group() + lane % self.group();
        &row[head * self.shape.head_dim..][..self.shape.head_dim]
    }

    fn tiles(&self, lanes: &Lanes) -> impl Iterator<Item = Range<usize>> + use<E> {
        let end = lanes.range.end;
        lanes.range.clone().step_by(TILE).map(move |start| start..(start + TILE).min(end))
    }

    fn pack_queries(&self, lanes: &Lanes, to: &mut [f32]) {
        let cells = TILE * self.query_cells();
        for (tile, to) in self.tiles(lanes).zip(to.chunks_exact_mut(cells)) {
            for (index, lane) in tile.clone().enumerate() {
                let query = self.query(lanes, lane);
                match self.order {
                    BlockOrder::Plain | BlockOrder::Rows => lanes::pack_query(self.level, query, index, to),
                    #[cfg(target_arch = "x86_64")]
                    BlockOrder::Tiles => tiles::pack_query(query, (index, tile.len()), to),
                    #[cfg(not(target_arch = "x86_64"))]
                    BlockOrder::Tiles => unreachable!("no tiles here"),
                }
            }
        }
    }

    /// Sums one span for all tiles, from nothing.
    fn span(
        &self,
        lanes: &Lanes,
        span: usize,
        (queries, scores, weights): (&mut [f32], &mut [f32], &mut [f32]),
        state: &mut State<'_>,
    ) {
        let (dim, cells) = (self.shape.head_dim, TILE * self.query_cells());
        let nothing = [SoftmaxSeen::NOTHING.most, SoftmaxSeen::NOTHING.sum];
        state.seen.as_chunks_mut().0[..lanes.range.len()].fill(nothing);
        state.out[..lanes.range.len() * dim].fill(0.0);
        let all = self.seen_by(lanes, lanes.range.start).start..self.seen_by(lanes, lanes.range.end - 1).end;
        let span = (span * SPAN).max(all.start / PIECE * PIECE)..((span + 1) * SPAN).min(all.end);
        for start in span.clone().step_by(PIECE) {
            let piece = start..(start + PIECE).min(span.end);
            for (index, tile) in self.tiles(lanes).enumerate() {
                let first = self.seen_by(lanes, tile.start).start;
                let end = self.seen_by(lanes, tile.end - 1).end;
                if first >= piece.end || end <= piece.start {
                    continue;
                }
                let at = index * TILE;
                let state = State {
                    seen: &mut state.seen[2 * at..][..2 * tile.len()],
                    out: &mut state.out[at * dim..][..tile.len() * dim],
                };
                let tokens = piece.start..piece.end.min(end);
                self.piece(lanes, tile, tokens, (&queries[index * cells..][..cells], scores, weights), state);
            }
        }
    }

    /// One tile with the tokens of one piece.
    fn piece(
        &self,
        lanes: &Lanes,
        tile: Range<usize>,
        tokens: Range<usize>,
        (queries, scores, weights): (&[f32], &mut [f32], &mut [f32]),
        state: State<'_>,
    ) {
        let half = self.shape.head_dim * self.shape.block_tokens;
        let (table, start) = (self.steps.table(lanes.sequence), 2 * lanes.kv_head * half);
        let block = |index: usize| {
            let at = table[index] as usize * self.shape.block_len() + start;
            match self.order {
                BlockOrder::Rows => (&self.pool[at..at + half], &self.pool[at..at + half]),
                _ => self.pool[at..at + 2 * half].split_at(half),
            }
        };
        let columns = tokens.len().next_multiple_of(softmax::LANES);
        match self.order {
            BlockOrder::Plain => {
                lanes::score(self.level, self.shape, &tokens, &block, (tile.len(), queries), weights, scores)
            }
            BlockOrder::Rows => lanes::score_rows(
                self.level,
                self.shape,
                &tokens,
                &block,
                (tile.len(), queries),
                weights,
                scores,
            ),
            #[cfg(target_arch = "x86_64")]
            BlockOrder::Tiles => tiles::score(self.shape, &tokens, &block, (tile.len(), queries), scores),
            #[cfg(not(target_arch = "x86_64"))]
            BlockOrder::Tiles => unreachable!("no tiles here"),
        }
        let State { seen, out } = state;
        let factor = self.shape.scale * LOG2_E;
        for (index, lane) in tile.clone().enumerate() {
            let row = &mut scores[index * PIECE..][..columns];
            if self.shape.cap > 0.0 {
                inlined!(self.level.vectorized(|| bend(row, self.shape.scale, self.shape.cap)));
            }
            hide(row, &tokens, self.seen_by(lanes, lane));
            let seen = &mut seen.as_chunks_mut::<2>().0[index];
            let out = &mut out[index * self.shape.head_dim..][..self.shape.head_dim];
            let mut now = SoftmaxSeen { most: seen[0], sum: seen[1] };
            match self.level {
                Level::Portable => now.absorb::<false>(row, factor, out),
                level => inlined!(level.vectorized(|| now.absorb::<true>(row, factor, out))),
            }
            *seen = [now.most, now.sum];
        }
        match self.order {
            BlockOrder::Plain | BlockOrder::Rows => {
                lanes::add_values(self.level, self.shape, &tokens, &block, (tile.len(), scores), weights, out)
            }
            #[cfg(target_arch = "x86_64")]
            BlockOrder::Tiles => {
                tiles::add_values(self.shape, &tokens, &block, (tile.len(), scores), weights, out);
            }
            #[cfg(not(target_arch = "x86_64"))]
            BlockOrder::Tiles => unreachable!("no tiles here"),
        }
    }

    /// Divides by the sums of weights and writes what belongs to the lanes.
    fn finish(&self, lanes: &Lanes, state: &mut State<'_>, out: &SharedRows<'_, E>) {
        let dim = self.shape.head_dim;
        let first_row = self.steps.rows(lanes.sequence).start;
        for (index, lane) in lanes.range.clone().enumerate() {
            let head = lanes.kv_head * self.group() + lane % self.group();
            let most = state.seen[2 * index];
            let sink = self.sinks.map_or(0.0, |sinks| (sinks[head].widen() * LOG2_E - most).exp2());
            let inverse = 1.0 / (state.seen[2 * index + 1] + sink);
            let sums = &mut state.out[index * dim..][..dim];
            #[expect(unsafe_code, reason = "the output is shared out by rows and heads")]
            // SAFETY: each lane is finished once, and no two of them have the same row and head.
            let to = unsafe { out.part_of_row(first_row + self.row(lane), head * dim, dim) };
            inlined!(self.level.vectorized(|| {
                sums.iter_mut().for_each(|sum| *sum *= inverse);
                Accumulate::Replace.apply_all(sums, to);
            }));
        }
    }
}

/// Scores of tokens that a lane does not see become minus infinity, and so does what lies behind the tokens.
fn hide(row: &mut [f32], tokens: &Range<usize>, seen: Range<usize>) {
    let first = seen.start.saturating_sub(tokens.start).min(row.len());
    let end = (seen.end.max(tokens.start) - tokens.start).min(row.len());
    row[..first].fill(f32::NEG_INFINITY);
    row[end.max(first)..].fill(f32::NEG_INFINITY);
}
