//! Steps of a panel as `f32`, input by input with the outputs side by side.
//!
//! Plain loops that are compiled for every level; all is inlined into `Level::vectorized`.

use super::layout::{HALF, LANES, SCALES, STEP};
use crate::WeightFormat;

/// Widens as many steps as `to` has room for.
#[inline(always)]
pub(super) fn widen(format: WeightFormat, steps: &[u8], bytes_of_step: usize, to: &mut [f32]) {
    for (step, to) in steps.chunks_exact(bytes_of_step).zip(to.chunks_exact_mut(LANES * STEP)) {
        match format {
            WeightFormat::F32 => widen_each::<4>(step, f32::from_ne_bytes, to),
            WeightFormat::F16 => widen_each::<2>(step, |bytes| of_f16(u16::from_le_bytes(bytes)), to),
            WeightFormat::Bf16 | WeightFormat::Fp8 => widen_bf16(step, to),
            WeightFormat::Int8 => widen_int8(step, to),
            WeightFormat::Int4 => widen_int4(step, to),
        }
    }
}

/// An f16, in arithmetic that becomes vector code.
#[inline(always)]
fn of_f16(bits: u16) -> f32 {
    /// Two to the power of 112: the exponents of the two formats begin that far apart.
    const SHIFT: f32 = f32::from_bits(0x7780_0000);
    let (sign, size) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff));
    let finite = (f32::from_bits(size << 13) * SHIFT).to_bits();
    let endless = size << 13 | 0x7f80_0000;
    f32::from_bits(sign | if size >= 0x7c00 { endless } else { finite })
}

#[inline(always)]
fn widen_each<const BYTES: usize>(step: &[u8], wide: impl Fn([u8; BYTES]) -> f32, to: &mut [f32]) {
    for (to, bytes) in to.iter_mut().zip(step.as_chunks::<BYTES>().0) {
        *to = wide(*bytes);
    }
}

/// Calls `put` with each pair of inputs of each half, and with the two rows that it goes to.
#[inline(always)]
fn in_pairs(to: &mut [f32], mut put: impl FnMut(usize, usize, &mut [f32; HALF], &mut [f32; HALF])) {
    for (pair, rows) in to.as_chunks_mut::<{ 2 * LANES }>().0.iter_mut().enumerate() {
        let [a, b, c, d] = rows.as_chunks_mut::<HALF>().0 else { unreachable!("two rows have four halves") };
        put(0, pair, a, c);
        put(1, pair, b, d);
    }
}

#[inline(always)]
fn widen_bf16(step: &[u8], to: &mut [f32]) {
    let cells = step.as_chunks::<4>().0.as_chunks::<HALF>().0;
    in_pairs(
        to,
        #[inline(always)]
        |half, pair, even, odd| {
            let cells = cells[half * STEP / 2 + pair].map(u32::from_le_bytes);
            *even = cells.map(|cell| f32::from_bits(cell << 16));
            *odd = cells.map(|cell| f32::from_bits(cell & 0xffff_0000));
        },
    );
}

/// The scales of a step, by halves.
#[inline(always)]
fn scales(step: &[u8]) -> [[f32; HALF]; 2] {
    let bits = step[..SCALES].as_chunks::<2>().0;
    let half = |half: usize| std::array::from_fn(|lane| of_f16(u16::from_le_bytes(bits[half * HALF + lane])));
    [half(0), half(1)]
}

#[inline(always)]
fn widen_int8(step: &[u8], to: &mut [f32]) {
    let (scales, fours) = (scales(step), step[SCALES..].as_chunks::<4>().0.as_chunks::<HALF>().0);
    for (input, row) in to.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        for (half, row) in row.as_chunks_mut::<HALF>().0.iter_mut().enumerate() {
            let fours = &fours[half * STEP / 4 + input / 4];
            for (lane, to) in row.iter_mut().enumerate() {
                *to = f32::from(fours[lane][input % 4].cast_signed()) * scales[half][lane];
            }
        }
    }
}

#[inline(always)]
fn widen_int4(step: &[u8], to: &mut [f32]) {
    let (scales, fours) = (scales(step), step[SCALES..].as_chunks::<4>().0.as_chunks::<HALF>().0);
    for (input, row) in to.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        let shift = input / (STEP / 2) * 4;
        for (half, row) in row.as_chunks_mut::<HALF>().0.iter_mut().enumerate() {
            let fours = &fours[half * STEP / 8 + input % (STEP / 2) / 4];
            for (lane, to) in row.iter_mut().enumerate() {
                *to = (i32::from(fours[lane][input % 4] >> shift & 15) - 8) as f32 * scales[half][lane];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::of_f16;
    use half::f16;

    #[test]
    fn every_f16_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let (got, expected) = (of_f16(bits), f16::from_bits(bits).to_f32());
            assert!(got == expected || got.is_nan() && expected.is_nan(), "{bits:x}: {got}, not {expected}");
        }
    }
}
