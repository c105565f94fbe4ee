//! Scores and sums of values by vector instructions, in `f32`, for blocks in plain order.
//!
//! A score is summed dimension by dimension, a value token by token; lanes do not meet.

use std::ops::Range;

use super::attend::PIECE;
use crate::cpu::Level;
use crate::cpu::attention::multiply_add;
use crate::{Element, PagedShape};

/// Tokens of a vector of scores.
const TOKENS: usize = 16;
/// Dimensions that are summed at a time.
const DIMS: usize = 32;
/// Lanes that share what is read.
const TOGETHER: usize = 4;

/// A lane's query, widened.
pub(super) fn pack_query<E: Element>(level: Level, query: &[E], index: usize, to: &mut [f32]) {
    let to = &mut to[index * query.len()..][..query.len()];
    inlined!(level.vectorized(|| to.iter_mut().zip(query).for_each(|(to, from)| *to = from.widen())));
}

/// The parts of some tokens that lie in one block: its index, the slots there, and how many tokens lie before.
fn parts(tokens: &Range<usize>, block_tokens: usize) -> impl Iterator<Item = (usize, Range<usize>, usize)> {
    let tokens = tokens.clone();
    (tokens.start / block_tokens..tokens.end.div_ceil(block_tokens)).map(move |block| {
        let first = (block * block_tokens).max(tokens.start);
        let end = ((block + 1) * block_tokens).min(tokens.end);
        let slots = first - block * block_tokens..end - block * block_tokens;
        (block, slots, first - tokens.start)
    })
}

/// The scores of `count` queries, a row of [`PIECE`] for each.
pub(super) fn score<'a, E: Element>(
    level: Level,
    shape: &PagedShape,
    tokens: &Range<usize>,
    block: &dyn Fn(usize) -> (&'a [E], &'a [E]),
    (count, queries): (usize, &[f32]),
    scores: &mut [f32],
) {
    for (index, slots, before) in parts(tokens, shape.block_tokens) {
        let keys = block(index).0;
        for start in slots.clone().step_by(TOKENS) {
            let chunk = start..(start + TOKENS).min(slots.end);
            let column = before + start - slots.start;
            let keys = Keys { keys, stride: shape.block_tokens, chunk };
            match level {
                Level::Portable => keys.score_all::<false>(count, queries, column, scores),
                level => {
                    inlined!(level.vectorized(|| keys.score_all::<true>(count, queries, column, scores)))
                }
            }
        }
    }
}

/// Some neighbouring tokens of a head's keys.
struct Keys<'a, E> {
    keys: &'a [E],
    stride: usize,
    chunk: Range<usize>,
}

impl<E: Element> Keys<'_, E> {
    #[inline(always)]
    fn score_all<const FUSED: bool>(&self, count: usize, queries: &[f32], column: usize, scores: &mut [f32]) {
        let dim = self.keys.len() / self.stride;
        let whole = count / TOGETHER * TOGETHER;
        for lane in (0..whole).step_by(TOGETHER) {
            self.score_some::<TOGETHER, FUSED>(dim, lane, queries, column, scores);
        }
        for lane in whole..count {
            self.score_some::<1, FUSED>(dim, lane, queries, column, scores);
        }
    }

    #[inline(always)]
    fn score_some<const LANES: usize, const FUSED: bool>(
        &self,
        dim: usize,
        first: usize,
        queries: &[f32],
        column: usize,
        scores: &mut [f32],
    ) {
        let queries: [&[f32]; LANES] = std::array::from_fn(|lane| &queries[(first + lane) * dim..][..dim]);
        let mut sums = [[0.0f32; TOKENS]; LANES];
        for at in 0..dim {
            let mut keys = [0.0; TOKENS];
            let row = &self.keys[at * self.stride..][self.chunk.clone()];
            match row.first_chunk::<TOKENS>() {
                Some(row) => keys = row.map(E::widen),
                None => keys.iter_mut().zip(row).for_each(|(to, from)| *to = from.widen()),
            }
            for (sums, query) in sums.iter_mut().zip(queries) {
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = multiply_add::<FUSED>(query[at], key, *sum);
                }
            }
        }
        for (lane, sums) in sums.iter().enumerate() {
            let to = &mut scores[(first + lane) * PIECE + column..][..self.chunk.len()];
            to.copy_from_slice(&sums[..self.chunk.len()]);
        }
    }
}

/// Adds the values of tokens, weighed by the scores, to the sums of `count` lanes.
pub(super) fn add_values<'a, E: Element>(
    level: Level,
    shape: &PagedShape,
    tokens: &Range<usize>,
    block: &dyn Fn(usize) -> (&'a [E], &'a [E]),
    (count, weights): (usize, &[f32]),
    out: &mut [f32],
) {
    let dim = shape.head_dim;
    for (index, slots, before) in parts(tokens, shape.block_tokens) {
        let values = &block(index).1[slots.start * dim..slots.end * dim];
        let weights = &weights[before..];
        match level {
            Level::Portable => add_all::<E, false>(values, dim, count, weights, out),
            level => inlined!(level.vectorized(|| add_all::<E, true>(values, dim, count, weights, out))),
        }
    }
}

#[inline(always)]
fn add_all<E: Element, const FUSED: bool>(
    values: &[E],
    dim: usize,
    count: usize,
    weights: &[f32],
    out: &mut [f32],
) {
    let whole = count / TOGETHER * TOGETHER;
    for lane in (0..whole).step_by(TOGETHER) {
        add_some::<E, TOGETHER, FUSED>(values, dim, &weights[lane * PIECE..], &mut out[lane * dim..]);
    }
    for lane in whole..count {
        add_some::<E, 1, FUSED>(values, dim, &weights[lane * PIECE..], &mut out[lane * dim..]);
    }
}

#[inline(always)]
fn add_some<E: Element, const LANES: usize, const FUSED: bool>(
    values: &[E],
    dim: usize,
    weights: &[f32],
    out: &mut [f32],
) {
    for first in (0..dim / DIMS * DIMS).step_by(DIMS) {
        let mut sums: [[f32; DIMS]; LANES] = std::array::from_fn(|lane| {
            let sums = &out[lane * dim + first..];
            *sums.first_chunk().expect("as many dimensions are left")
        });
        for (token, values) in values.chunks_exact(dim).enumerate() {
            let values = values[first..].first_chunk::<DIMS>().expect("as many are left").map(E::widen);
            for (lane, sums) in sums.iter_mut().enumerate() {
                let weight = weights[lane * PIECE + token];
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = multiply_add::<FUSED>(weight, value, *sum);
                }
            }
        }
        for (lane, sums) in sums.iter().enumerate() {
            out[lane * dim + first..][..DIMS].copy_from_slice(sums);
        }
    }
    for at in dim / DIMS * DIMS..dim {
        for lane in 0..LANES {
            let sum = &mut out[lane * dim + at];
            for (token, values) in values.chunks_exact(dim).enumerate() {
                *sum = multiply_add::<FUSED>(weights[lane * PIECE + token], values[at].widen(), *sum);
            }
        }
    }
}
