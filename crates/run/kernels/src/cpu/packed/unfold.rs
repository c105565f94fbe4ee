//! Steps of whole numbers as bf16 in the order of the tile unit, and of f16 as `f32` (AVX-512).
//!
//! Numbers are multiplied by their scale in `f32` and rounded once.

use std::arch::x86_64::*;

use super::layout::{HALF, LANES, SCALES, STEP};
use crate::WeightFormat;
use crate::cpu::multiply::transpose;

/// Bytes ahead of those in use that are asked for.
const AHEAD: usize = 2048;
/// Cells of a step in the order of the tile unit.
const STEP_CELLS: usize = LANES * STEP / 2;

/// Unfolds as many steps of whole numbers as `to` has room for. The processor has a tile unit, and then these instructions.
#[expect(unsafe_code, reason = "calls code for instructions that the processor has")]
pub(super) fn unfold(format: WeightFormat, steps: &[u8], to: &mut [f32]) {
    match format {
        // SAFETY: the tile unit is used only where the processor has tiles, and then it has these instructions.
        WeightFormat::Int8 => unsafe { int8(steps, to) },
        // SAFETY: as above.
        WeightFormat::Int4 => unsafe { int4::<false>(steps, to) },
        WeightFormat::F32 | WeightFormat::Bf16 | WeightFormat::F16 => {
            unreachable!("these are used as they lie")
        }
    }
}

/// Unfolds as many steps of 4-bit numbers as `to` has room for, with an output per row of a register.
#[expect(unsafe_code, reason = "calls code for instructions that the processor has")]
pub(super) fn int4_rows(steps: &[u8], to: &mut [f32]) {
    // SAFETY: as above.
    unsafe { int4::<true>(steps, to) }
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

/// Asks for the cache line that lies ahead of some bytes. Line by line: many requests at once would wait for each other, and all work
/// behind them.
#[inline(always)]
#[expect(unsafe_code, reason = "an instruction that takes an address")]
fn fetch_ahead(bytes: &[u8]) {
    // SAFETY: it changes nothing but what the cache holds, and ignores addresses that are not valid.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(AHEAD).cast()) };
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
                fetch_ahead(numbers);
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

/// Unfolds as many steps as `to` has room for: in the order of a right side, or with an output per row.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
#[expect(unsafe_code, reason = "vector stores take a pointer")]
fn int4<const BY_ROWS: bool>(steps: &[u8], to: &mut [f32]) {
    let steps = steps.as_chunks::<{ SCALES + LANES * STEP / 2 }>().0;
    for (step, to) in steps.iter().zip(to.as_chunks_mut::<STEP_CELLS>().0) {
        fetch_ahead(step);
        // In memory, from where they are broadcast by the multiplication itself; the compiler would shuffle them out of a register, and
        // shuffles are what this is short of.
        let scales = std::hint::black_box(all_scales(step));
        let lines = step[SCALES..].as_chunks::<64>().0.as_chunks::<4>().0;
        let halves = to.as_chunks_mut::<{ STEP_CELLS / 2 }>().0.iter_mut().zip(lines);
        for (half, (to, lines)) in halves.enumerate() {
            let mut rows = [_mm512_setzero_si512(); HALF];
            let scales = scales.as_chunks::<4>().0[half * 4..].iter();
            for ((rows, line), scales) in rows.as_chunks_mut::<4>().0.iter_mut().zip(lines).zip(scales) {
                fetch_ahead(line);
                *rows = int4_line(line, *scales);
            }
            let rows = if BY_ROWS { rows } else { transpose(rows) };
            for (row, to) in rows.into_iter().zip(to.as_chunks_mut::<HALF>().0) {
                // SAFETY: sixteen cells are written.
                unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), row) };
            }
        }
    }
}

/// The numbers of four outputs that share a cache line. Each is looked up in a table of its output's sixteen scaled numbers;
/// two outputs share a register for their tables.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
#[expect(unsafe_code, reason = "vector loads take a pointer")]
fn int4_line(bytes: &[u8; 64], scales: [f32; 4]) -> [__m512i; 4] {
    let numbers = _mm512_set_ps(7., 6., 5., 4., 3., 2., 1., 0., -1., -2., -3., -4., -5., -6., -7., -8.);
    let scaled = scales.map(|scale| _mm512_mul_ps(numbers, _mm512_set1_ps(scale)));
    // SAFETY: both types are 512 plain bits.
    let table =
        |low, high| unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) };
    let tables = [table(scaled[0], scaled[1]), table(scaled[2], scaled[3])];
    // SAFETY: 64 bytes are read.
    let words = unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
    let (lowest, second) = (_mm512_set1_epi16(15), _mm512_set1_epi16(16));
    let first_of = |words| _mm512_and_si512(words, lowest);
    let second_of = |words| _mm512_or_si512(_mm512_and_si512(words, lowest), second);
    [
        _mm512_permutexvar_epi16(first_of(words), tables[0]),
        _mm512_permutexvar_epi16(second_of(_mm512_srli_epi16::<4>(words)), tables[0]),
        _mm512_permutexvar_epi16(first_of(_mm512_srli_epi16::<8>(words)), tables[1]),
        _mm512_permutexvar_epi16(second_of(_mm512_srli_epi16::<12>(words)), tables[1]),
    ]
}

/// The scales of all outputs of a step.
#[inline]
#[target_feature(enable = "avx512f")]
#[expect(unsafe_code, reason = "vector loads and stores take a pointer")]
fn all_scales(step: &[u8]) -> [f32; LANES] {
    let (bits, mut scales) = (&step[..SCALES], [0.0; LANES]);
    for half in 0..2 {
        // SAFETY: sixteen numbers of two bytes are read.
        let bits = unsafe { _mm256_loadu_si256(bits.as_ptr().add(2 * HALF * half).cast()) };
        // SAFETY: sixteen numbers of four bytes are written.
        unsafe { _mm512_storeu_ps(scales.as_mut_ptr().add(HALF * half), _mm512_cvtph_ps(bits)) };
    }
    scales
}
