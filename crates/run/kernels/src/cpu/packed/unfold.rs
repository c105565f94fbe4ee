//! Steps of f16 as `f32` (AVX-512).

use std::arch::x86_64::*;

use super::layout::HALF;

/// Bytes ahead of those in use that are asked for.
const AHEAD: usize = 2048;

/// Widens as many f16 as `to` has room for.
#[target_feature(enable = "avx512f")]
#[expect(unsafe_code, reason = "vector loads and stores take a pointer")]
pub(super) fn f16(steps: &[u8], to: &mut [f32]) {
    for (bits, to) in steps.as_chunks::<{ 4 * HALF }>().0.iter().zip(to.as_chunks_mut::<{ 2 * HALF }>().0) {
        _mm_prefetch::<_MM_HINT_T0>(bits.as_ptr().wrapping_add(AHEAD).cast());
        for half in 0..2 {
            // SAFETY: sixteen elements of two bytes are read.
            let bits = unsafe { _mm256_loadu_si256(bits.as_ptr().add(32 * half).cast()) };
            // SAFETY: sixteen elements of four bytes are written.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr().add(HALF * half), _mm512_cvtph_ps(bits)) };
        }
    }
}
