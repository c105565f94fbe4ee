//! Steps of whole numbers as bf16 in the order of the tile unit, and of f16 as `f32` (AVX-512).
//!
//! Numbers are multiplied by their scale in `f32` and rounded once. Two vectors of eight outputs with two inputs each make a row of
//! a tile register.

use std::arch::x86_64::*;

use super::layout::{HALF, LANES, SCALES, STEP};
use crate::WeightFormat;

/// Bytes ahead of those in use that are asked for.
const AHEAD: usize = 4096;
/// Cells of a step in the order of the tile unit.
const STEP_CELLS: usize = LANES * STEP / 2;

/// Unfolds as many steps of whole numbers as `to` has room for. The processor has a tile unit, and then these instructions.
#[expect(unsafe_code, reason = "calls code for instructions that the processor has")]
pub(super) fn unfold(format: WeightFormat, steps: &[u8], to: &mut [f32]) {
    match format {
        // SAFETY: the tile unit is used only where the processor has tiles, and then it has these instructions.
        WeightFormat::Int8 => unsafe { int8(steps, to) },
        // SAFETY: as above.
        WeightFormat::Int4 => unsafe { int4(steps, to) },
        WeightFormat::F32 | WeightFormat::Bf16 | WeightFormat::F16 => {
            unreachable!("these are used as they lie")
        }
    }
}

/// The scales of a half: of its first eight outputs and of the others, each twice.
#[inline]
#[target_feature(enable = "avx512f")]
#[expect(unsafe_code, reason = "vector loads take a pointer")]
fn scales(step: &[u8], half: usize) -> [__m512; 2] {
    let bits = &step[2 * HALF * half..][..2 * HALF];
    // SAFETY: sixteen numbers of two bytes are read.
    let scales = _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(bits.as_ptr().cast()) });
    let twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    let others = _mm512_add_epi32(twice, _mm512_set1_epi32(8));
    [_mm512_permutexvar_ps(twice, scales), _mm512_permutexvar_ps(others, scales)]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
#[expect(unsafe_code, reason = "vector stores take a pointer")]
fn store(low: __m512, high: __m512, to: &mut [f32; HALF]) {
    let row = _mm512_cvtne2ps_pbh(high, low);
    // SAFETY: sixteen cells are written; both types are 512 plain bits.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), std::mem::transmute::<__m512bh, __m512i>(row)) };
}

/// Asks for the cache lines of what lies ahead of a step.
#[inline(always)]
fn fetch_ahead(step: &[u8]) {
    for line in (0..step.len()).step_by(64) {
        #[expect(unsafe_code, reason = "an instruction that takes an address")]
        // SAFETY: it changes nothing but what the cache holds, and ignores addresses that are not valid.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(step.as_ptr().wrapping_add(AHEAD + line).cast());
        }
    }
}

/// Widens as many f16 as `to` has room for.
#[target_feature(enable = "avx512f")]
#[expect(unsafe_code, reason = "vector loads and stores take a pointer")]
pub(super) fn f16(steps: &[u8], to: &mut [f32]) {
    for (bits, to) in steps.as_chunks::<{ 4 * HALF }>().0.iter().zip(to.as_chunks_mut::<{ 2 * HALF }>().0) {
        fetch_ahead(bits);
        for half in 0..2 {
            // SAFETY: sixteen numbers of two bytes are read.
            let bits = unsafe { _mm256_loadu_si256(bits.as_ptr().add(32 * half).cast()) };
            // SAFETY: sixteen numbers of four bytes are written.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr().add(HALF * half), _mm512_cvtph_ps(bits)) };
        }
    }
}

/// Unfolds as many steps as `to` has room for.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
#[expect(unsafe_code, reason = "vector loads take a pointer")]
fn int8(steps: &[u8], to: &mut [f32]) {
    let steps = steps.as_chunks::<{ SCALES + LANES * STEP }>().0;
    for (step, to) in steps.iter().zip(to.as_chunks_mut::<STEP_CELLS>().0) {
        fetch_ahead(step);
        let rows = to.as_chunks_mut::<HALF>().0.chunks_exact_mut(STEP / 2);
        let numbers = step[SCALES..].as_chunks::<{ 2 * HALF }>().0.chunks_exact(STEP / 2);
        for (half, (rows, numbers)) in rows.zip(numbers).enumerate() {
            let [first, others] = scales(step, half);
            for (row, numbers) in rows.iter_mut().zip(numbers) {
                // SAFETY: the first sixteen bytes of 32.
                let low = unsafe { _mm_loadu_si128(numbers.as_ptr().cast()) };
                // SAFETY: the others.
                let high = unsafe { _mm_loadu_si128(numbers.as_ptr().add(16).cast()) };
                let low = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(low)), first);
                let high = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(high)), others);
                store(low, high, row);
            }
        }
    }
}

/// Unfolds as many steps as `to` has room for.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
#[expect(unsafe_code, reason = "vector loads take a pointer")]
fn int4(steps: &[u8], to: &mut [f32]) {
    // Looked up by the lowest four bits.
    let numbers = _mm512_set_ps(7., 6., 5., 4., 3., 2., 1., 0., -1., -2., -3., -4., -5., -6., -7., -8.);
    let steps = steps.as_chunks::<{ SCALES + LANES * STEP / 2 }>().0;
    for (step, to) in steps.iter().zip(to.as_chunks_mut::<STEP_CELLS>().0) {
        fetch_ahead(step);
        let rows = to.as_chunks_mut::<{ 4 * HALF }>().0;
        let of_halves = [scales(step, 0), scales(step, 1)];
        for (line, (rows, bytes)) in rows.iter_mut().zip(step[SCALES..].as_chunks::<64>().0).enumerate() {
            let [first, others] = of_halves[line / 4];
            // SAFETY: 64 bytes are read.
            let words = unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
            let [a, b, c, d] = rows.as_chunks_mut::<HALF>().0 else { unreachable!("a line has four pairs") };
            let low = |words| _mm512_mul_ps(_mm512_permutexvar_ps(words, numbers), first);
            let high = |words| _mm512_mul_ps(_mm512_permutexvar_ps(words, numbers), others);
            store(low(words), high(_mm512_srli_epi32::<4>(words)), a);
            store(low(_mm512_srli_epi32::<8>(words)), high(_mm512_srli_epi32::<12>(words)), b);
            store(low(_mm512_srli_epi32::<16>(words)), high(_mm512_srli_epi32::<20>(words)), c);
            store(low(_mm512_srli_epi32::<24>(words)), high(_mm512_srli_epi32::<28>(words)), d);
        }
    }
}
