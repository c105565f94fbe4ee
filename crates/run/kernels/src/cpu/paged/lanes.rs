//! Scores and sums of values by vector instructions, in `f32`, for blocks in plain order.
//!
//! A score is summed dimension by dimension, a value token by token; lanes do not meet. Sixteen tokens go at a time; those of another
//! format than `f32`, and fewer of them, are widened into a buffer first.

use std::ops::Range;

use super::attend::PIECE;
use crate::cpu::Level;
use crate::cpu::attention::multiply_add;
#[cfg(target_arch = "x86_64")]
use crate::cpu::multiply::{Avx2, Avx512};
use crate::cpu::multiply::{Portable, Vector};
use crate::device::Elements;
use crate::{Element, PagedShape};

/// Tokens that go at a time.
pub(super) const TOKENS: usize = 16;
/// Lanes that share what is read.
const TOGETHER: usize = 4;

/// A lane's query, widened.
pub(super) fn pack_query<E: Element>(level: Level, query: &[E], index: usize, to: &mut [f32]) {
    let to = &mut to[index * query.len()..][..query.len()];
    inlined!(level.vectorized(|| to.iter_mut().zip(query).for_each(|(to, from)| *to = from.widen())));
}

/// Up to sixteen of some tokens that lie in one block: its index, the slots there, and how many tokens lie before.
fn parts(tokens: &Range<usize>, block_tokens: usize) -> impl Iterator<Item = (usize, Range<usize>, usize)> {
    let (start, end) = (tokens.start, tokens.end);
    let blocks = start / block_tokens..end.div_ceil(block_tokens);
    blocks.flat_map(move |block| {
        let of_block = block * block_tokens..(block + 1) * block_tokens;
        let tokens = of_block.start.max(start)..of_block.end.min(end);
        tokens.clone().step_by(TOKENS).map(move |first| {
            let last = (first + TOKENS).min(tokens.end);
            (block, first - of_block.start..last - of_block.start, first - start)
        })
    })
}

/// Runs a function for the vectors of a level; all these are compiled for it.
macro_rules! at_level {
    ($level:expr, $function:ident $arguments:tt) => {
        match $level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => $function::<Avx512, 1, 2> $arguments,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => $function::<Avx2, 2, 2> $arguments,
            _ => $function::<Portable, 4, 2> $arguments,
        }
    };
}

/// The scores of `count` queries, a row of [`PIECE`] for each.
pub(super) fn score<'a, E: Element>(
    level: Level,
    shape: &PagedShape,
    tokens: &Range<usize>,
    block: &dyn Fn(usize) -> (&'a [E], &'a [E]),
    lanes: (usize, &[f32]),
    buffer: &mut [f32],
    scores: &mut [f32],
) {
    for (index, slots, before) in parts(tokens, shape.block_tokens) {
        let keys = block(index).0;
        let (keys, stride) = match E::elements(keys) {
            Elements::F32(keys) if slots.len() == TOKENS => (&keys[slots.start..], shape.block_tokens),
            _ => {
                inlined!(level.vectorized(|| widen_keys(keys, shape.block_tokens, &slots, buffer)));
                (&*buffer, TOKENS)
            }
        };
        at_level!(level, score_all((keys, stride), shape.head_dim, lanes, (before, slots.len()), scores));
    }
}

/// The same of keys that lie token by token.
pub(super) fn score_rows<'a, E: Element>(
    level: Level,
    shape: &PagedShape,
    tokens: &Range<usize>,
    block: &dyn Fn(usize) -> (&'a [E], &'a [E]),
    lanes: (usize, &[f32]),
    buffer: &mut [f32],
    scores: &mut [f32],
) {
    let dim = shape.head_dim;
    for (index, slots, before) in parts(tokens, shape.block_tokens) {
        let keys = &block(index).0[slots.start * dim..slots.end * dim];
        inlined!(level.vectorized(|| {
            for (at, to) in buffer.as_chunks_mut::<TOKENS>().0.iter_mut().enumerate().take(dim) {
                to.iter_mut().zip(keys[at..].iter().step_by(dim)).for_each(|(to, key)| *to = key.widen());
            }
        }));
        at_level!(level, score_all((&*buffer, TOKENS), dim, lanes, (before, slots.len()), scores));
    }
}

/// The keys of some slots: dimension by dimension, room for sixteen tokens each.
#[inline(always)]
fn widen_keys<E: Element>(keys: &[E], stride: usize, slots: &Range<usize>, to: &mut [f32]) {
    for (keys, to) in keys.chunks_exact(stride).zip(to.as_chunks_mut::<TOKENS>().0) {
        match keys[slots.clone()].first_chunk::<TOKENS>() {
            Some(keys) => to.iter_mut().zip(keys).for_each(|(to, key)| *to = key.widen()),
            None => to.iter_mut().zip(&keys[slots.clone()]).for_each(|(to, key)| *to = key.widen()),
        }
    }
}

fn score_all<V: Vector, const VECTORS: usize, const DIMS: usize>(
    keys: (&[f32], usize),
    dim: usize,
    (count, queries): (usize, &[f32]),
    (column, columns): (usize, usize),
    scores: &mut [f32],
) {
    let (level, whole) = (V::LEVEL, count / TOGETHER * TOGETHER);
    inlined!(level.vectorized(|| {
        for lane in (0..whole).step_by(TOGETHER) {
            let sums = score_some::<V, TOGETHER, VECTORS>(keys, dim, &queries[lane * dim..]);
            put::<V, TOGETHER, VECTORS>(sums, &mut scores[lane * PIECE + column..], columns);
        }
        for lane in whole..count {
            let sums = score_some::<V, 1, VECTORS>(keys, dim, &queries[lane * dim..]);
            put::<V, 1, VECTORS>(sums, &mut scores[lane * PIECE + column..], columns);
        }
    }));
}

#[inline(always)]
fn score_some<V: Vector, const LANES: usize, const VECTORS: usize>(
    (keys, stride): (&[f32], usize),
    dim: usize,
    queries: &[f32],
) -> [[V; VECTORS]; LANES] {
    let mut sums = [[V::splat(0.0); VECTORS]; LANES];
    assert!(queries.len() >= LANES * dim);
    for at in 0..dim {
        let keys = &keys[at * stride..][..TOKENS];
        for vector in 0..VECTORS {
            let keys = V::load(&keys[vector * V::LANES..]);
            for (lane, sums) in sums.iter_mut().enumerate() {
                sums[vector] = V::splat(queries[lane * dim + at]).multiply_add(keys, sums[vector]);
            }
        }
    }
    sums
}

/// Writes the scores of some lanes, a piece apart.
#[inline(always)]
fn put<V: Vector, const LANES: usize, const VECTORS: usize>(
    sums: [[V; VECTORS]; LANES],
    scores: &mut [f32],
    columns: usize,
) {
    for (lane, sums) in sums.into_iter().enumerate() {
        let mut row = [0.0; TOKENS];
        for (vector, sum) in sums.into_iter().enumerate() {
            sum.store(&mut row[vector * V::LANES..]);
        }
        scores[lane * PIECE..][..columns].copy_from_slice(&row[..columns]);
    }
}

/// Adds the values of tokens, weighed by the scores, to the sums of `count` lanes.
pub(super) fn add_values<'a, E: Element>(
    level: Level,
    shape: &PagedShape,
    tokens: &Range<usize>,
    block: &dyn Fn(usize) -> (&'a [E], &'a [E]),
    (count, weights): (usize, &[f32]),
    buffer: &mut [f32],
    out: &mut [f32],
) {
    let dim = shape.head_dim;
    for (index, slots, before) in parts(tokens, shape.block_tokens) {
        let values = &block(index).1[slots.start * dim..slots.end * dim];
        let values = match E::elements(values) {
            Elements::F32(values) => values,
            Elements::Bf16(_) => {
                let to = &mut buffer[..values.len()];
                inlined!(level.vectorized(|| {
                    to.iter_mut().zip(values).for_each(|(to, value)| *to = value.widen());
                }));
                &*to
            }
        };
        at_level!(level, add_all(values, dim, (count, &weights[before..]), out));
    }
}

fn add_all<V: Vector, const VECTORS: usize, const DIMS: usize>(
    values: &[f32],
    dim: usize,
    (count, weights): (usize, &[f32]),
    out: &mut [f32],
) {
    let (level, whole) = (V::LEVEL, count / TOGETHER * TOGETHER);
    inlined!(level.vectorized(|| {
        for lane in (0..whole).step_by(TOGETHER) {
            add_some::<V, TOGETHER, DIMS>(values, dim, &weights[lane * PIECE..], &mut out[lane * dim..]);
        }
        for lane in whole..count {
            add_some::<V, 1, DIMS>(values, dim, &weights[lane * PIECE..], &mut out[lane * dim..]);
        }
    }));
}

/// Sums of some vectors of dimensions stay in registers while all tokens are added.
#[inline(always)]
fn add_some<V: Vector, const LANES: usize, const VECTORS: usize>(
    values: &[f32],
    dim: usize,
    weights: &[f32],
    out: &mut [f32],
) {
    let (width, tokens) = (VECTORS * V::LANES, values.len() / dim);
    let whole = dim / width * width;
    assert!(weights.len() >= (LANES - 1) * PIECE + tokens && out.len() >= LANES * dim);
    for first in (0..whole).step_by(width) {
        let mut sums = [[V::splat(0.0); VECTORS]; LANES];
        for (lane, sums) in sums.iter_mut().enumerate() {
            for (vector, sum) in sums.iter_mut().enumerate() {
                *sum = V::load(&out[lane * dim + first + vector * V::LANES..]);
            }
        }
        for token in 0..tokens {
            let values = &values[token * dim + first..][..width];
            for vector in 0..VECTORS {
                let values = V::load(&values[vector * V::LANES..]);
                for (lane, sums) in sums.iter_mut().enumerate() {
                    sums[vector] = V::splat(weights[lane * PIECE + token]).multiply_add(values, sums[vector]);
                }
            }
        }
        for (lane, sums) in sums.into_iter().enumerate() {
            for (vector, sum) in sums.into_iter().enumerate() {
                sum.store(&mut out[lane * dim + first + vector * V::LANES..]);
            }
        }
    }
    for lane in 0..LANES {
        for at in whole..dim {
            let (mut sum, weights) = (out[lane * dim + at], &weights[lane * PIECE..][..tokens]);
            for (weight, values) in weights.iter().zip(values.chunks_exact(dim)) {
                sum = match V::LEVEL {
                    Level::Portable => multiply_add::<false>(*weight, values[at], sum),
                    _ => multiply_add::<true>(*weight, values[at], sum),
                };
            }
            out[lane * dim + at] = sum;
        }
    }
}
