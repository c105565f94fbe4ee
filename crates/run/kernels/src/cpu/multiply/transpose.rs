//! Blocks of sixteen by sixteen cells, loaded from operands and turned around in registers (AVX-512).

use std::arch::x86_64::*;

use super::operand::{Elements, Operand};

/// Sixteen registers of sixteen cells.
pub(crate) type RegisterBlock = [__m512i; 16];

/// Rows become columns.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn transpose(rows: RegisterBlock) -> RegisterBlock {
    let pairs: RegisterBlock = std::array::from_fn(|i| {
        let (a, b) = (rows[i & !1], rows[i | 1]);
        if i % 2 == 0 { _mm512_unpacklo_epi32(a, b) } else { _mm512_unpackhi_epi32(a, b) }
    });
    // Register 4g + c holds, per quarter q, column 4q + c of the rows 4g..4g + 4.
    let fours: RegisterBlock = std::array::from_fn(|i| {
        let (group, column) = (i & !3, i & 3);
        let (a, b) = (pairs[group + column / 2], pairs[group + 2 + column / 2]);
        if column % 2 == 0 { _mm512_unpacklo_epi64(a, b) } else { _mm512_unpackhi_epi64(a, b) }
    });
    // Now quarters move: first between groups 0 and 1, 2 and 3, then between the halves.
    let eights: RegisterBlock = std::array::from_fn(|i| {
        let (half, is_odd, column) = (i / 8 * 8, i / 4 % 2 == 1, i & 3);
        let (a, b) = (fours[half + column], fours[half + 4 + column]);
        if is_odd { _mm512_shuffle_i32x4::<0xdd>(a, b) } else { _mm512_shuffle_i32x4::<0x88>(a, b) }
    });
    std::array::from_fn(|i| {
        let (quarter, column) = (i / 4, i & 3);
        let start = if quarter % 2 == 0 { column } else { column + 4 };
        let (a, b) = (eights[start], eights[start + 8]);
        if quarter < 2 { _mm512_shuffle_i32x4::<0x88>(a, b) } else { _mm512_shuffle_i32x4::<0xdd>(a, b) }
    })
}

/// A mask of the first `count` of sixteen.
#[inline]
pub(crate) fn first(count: usize) -> __mmask16 {
    if count >= 16 { 0xffff } else { (1 << count) - 1 }
}

/// `count` neighbours from `start` on, widened, then zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[expect(unsafe_code, reason = "masked loads take a pointer")]
pub(crate) fn load(elements: Elements<'_>, start: usize, count: usize) -> __m512 {
    assert!(start + count.min(16) <= elements.len(), "{count} elements from {start} of {}", elements.len());
    match elements {
        // SAFETY: the mask covers only elements inside the slice.
        Elements::F32(values) => unsafe { _mm512_maskz_loadu_ps(first(count), values.as_ptr().add(start)) },
        Elements::Bf16(values) => {
            // SAFETY: as above; `Bf16` is two bytes.
            let narrow = unsafe { _mm256_maskz_loadu_epi16(first(count), values.as_ptr().add(start).cast()) };
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(narrow)))
        }
    }
}

/// A panel of `f32` from lanes whose elements lie one after the other.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(crate) fn pack_f32(from: &Operand<'_>, lanes: usize, first_lane: usize, panel: &mut [f32]) {
    assert!(from.depth_stride() == 1 && panel.len() >= lanes * from.depth());
    if lanes == 8 {
        return pack_eight(from, first_lane, panel);
    }
    for group in (0..lanes).step_by(16) {
        let width = (lanes - group).min(16);
        for depth in (0..from.depth()).step_by(16) {
            let mut block = [_mm512_setzero_si512(); 16];
            load_lanes(from, (first_lane + group, lanes), depth, &mut block[..width]);
            let rows = transpose(block).into_iter().take(from.depth() - depth);
            for (row, cells) in rows.enumerate() {
                store(cells, &mut panel[(depth + row) * lanes + group..][..width]);
            }
        }
    }
}

/// Eight lanes: a block holds two pieces of the depth below each other, so that no half of it is empty.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn pack_eight(from: &Operand<'_>, first_lane: usize, panel: &mut [f32]) {
    let panel = &mut panel[..8 * from.depth()];
    for (piece, cells) in panel.chunks_mut(8 * 32).enumerate() {
        let mut block = [_mm512_setzero_si512(); 16];
        let (near, far) = block.split_at_mut(8);
        load_lanes(from, (first_lane, 8), piece * 32, near);
        load_lanes(from, (first_lane, 8), piece * 32 + 16, far);
        let block = transpose(block);
        let (near, far) = cells.split_at_mut(cells.len().min(8 * 16));
        for (cells, to) in block.iter().zip(near.chunks_exact_mut(8)) {
            store(*cells, to);
        }
        for (cells, to) in block.iter().zip(far.chunks_exact_mut(8)) {
            store(_mm512_castsi256_si512(_mm512_extracti64x4_epi64::<1>(*cells)), to);
        }
    }
}

/// Sixteen elements of some lanes each, from a depth on; lanes and depth that the operand lacks stay as they are. Asks for
/// those of the next panel.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[expect(unsafe_code, reason = "masked loads take a pointer")]
fn load_lanes(
    from: &Operand<'_>,
    (first_lane, panel_lanes): (usize, usize),
    depth: usize,
    rows: &mut [__m512i],
) {
    let deep = from.depth().saturating_sub(depth).min(16);
    let lanes = first_lane..from.lanes().min(first_lane + rows.len());
    if deep == 0 || lanes.is_empty() {
        return;
    }
    let stride = from.lane_stride();
    assert!((lanes.end - 1) * stride + depth + deep <= from.elements().len(), "lanes of an operand");
    let starts = lanes.map(|lane| lane * stride + depth);
    match from.elements() {
        Elements::F32(values) => {
            for (row, start) in rows.iter_mut().zip(starts) {
                // SAFETY: the mask covers only elements of this lane, the last of which was checked above.
                *row = unsafe { _mm512_maskz_loadu_epi32(first(deep), values.as_ptr().add(start).cast()) };
                from.fetch(start + panel_lanes * stride);
            }
        }
        Elements::Bf16(_) => {
            for (row, start) in rows.iter_mut().zip(starts) {
                *row = _mm512_castps_si512(load(from.elements(), start, deep));
                from.fetch(start + panel_lanes * stride);
            }
        }
    }
}

/// The first cells, as many as `to` has, at most sixteen.
#[inline]
#[target_feature(enable = "avx512f")]
#[expect(unsafe_code, reason = "masked stores take a pointer")]
fn store(cells: __m512i, to: &mut [f32]) {
    // SAFETY: the mask covers only `to`.
    unsafe { _mm512_mask_storeu_epi32(to.as_mut_ptr().cast(), first(to.len()), cells) };
}
