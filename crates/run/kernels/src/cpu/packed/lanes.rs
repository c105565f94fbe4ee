//! Products of rows with widened panels by vector instructions, in `f32`.
//!
//! A sum is made input by input in one register, from zero, block by block of the depth; the sums of blocks are added in their order. A
//! single row and a tile of several do the same with each number.

use super::layout::LANES;
use crate::Accumulate;
use crate::cpu::Level;
#[cfg(target_arch = "x86_64")]
use crate::cpu::multiply::{Avx2, Avx512};
use crate::cpu::multiply::{Panels, Portable, Vector};

/// Inputs of a block: as `f32`, a panel of them fills a third of the nearest cache.
pub(super) const BLOCK: usize = 128;

/// Multiplies left panels of `rows` rows by a panel of widened inputs, into a strip of 32 sums for each row.
pub(super) fn multiply(
    level: Level,
    rows: usize,
    depth: usize,
    left: Panels<'_>,
    right: &[f32],
    mode: Accumulate,
    strip: &mut [f32],
) {
    match (level, rows) {
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512, 1) => all::<Avx512, 1, 2>(depth, left, right, mode, strip),
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512, 8) => all::<Avx512, 8, 2>(depth, left, right, mode, strip),
        #[cfg(target_arch = "x86_64")]
        (Level::Avx2, 1) => all::<Avx2, 1, 4>(depth, left, right, mode, strip),
        #[cfg(target_arch = "x86_64")]
        (Level::Avx2, 6) => all::<Avx2, 6, 2>(depth, left, right, mode, strip),
        (_, 1) => all::<Portable, 1, 8>(depth, left, right, mode, strip),
        (_, 4) => all::<Portable, 4, 2>(depth, left, right, mode, strip),
        (_, other) => unreachable!("no level has left panels of {other} rows"),
    }
}

fn all<V: Vector, const ROWS: usize, const VECTORS: usize>(
    depth: usize,
    left: Panels<'_>,
    right: &[f32],
    mode: Accumulate,
    strip: &mut [f32],
) {
    let level = V::LEVEL;
    inlined!(level.vectorized(|| {
        for (panel, sums) in (0..left.count).zip(strip.chunks_exact_mut(ROWS * LANES)) {
            let left = &left.cells[panel * left.stride..][..depth * ROWS];
            for first in (0..LANES).step_by(VECTORS * V::LANES) {
                tile::<V, ROWS, VECTORS>(left, &right[..depth * LANES], first, mode, sums);
            }
        }
    }));
}

/// One tile: all its sums stay in registers over the whole block.
#[inline(always)]
fn tile<V: Vector, const ROWS: usize, const VECTORS: usize>(
    left: &[f32],
    right: &[f32],
    first: usize,
    mode: Accumulate,
    sums: &mut [f32],
) {
    let mut registers = [[V::splat(0.0); VECTORS]; ROWS];
    for (left, right) in left.as_chunks::<ROWS>().0.iter().zip(right.as_chunks::<LANES>().0) {
        let right: [V; VECTORS] = load(right, first);
        for (row, left) in registers.iter_mut().zip(left) {
            let left = V::splat(*left);
            for (sum, right) in row.iter_mut().zip(right) {
                *sum = left.multiply_add(right, *sum);
            }
        }
    }
    for (row, sums) in registers.iter().zip(sums.as_chunks_mut::<LANES>().0) {
        let before: [V; VECTORS] = load(sums, first);
        for (vector, sum) in row.iter().enumerate() {
            let sum = match mode {
                Accumulate::Replace => *sum,
                Accumulate::Add => V::splat(1.0).multiply_add(*sum, before[vector]),
            };
            sum.store(&mut sums[first + vector * V::LANES..]);
        }
    }
}

#[inline(always)]
fn load<V: Vector, const VECTORS: usize>(from: &[f32; LANES], first: usize) -> [V; VECTORS] {
    std::array::from_fn(
        #[inline(always)]
        |vector| V::load(&from[first + vector * V::LANES..]),
    )
}
