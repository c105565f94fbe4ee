//! The arithmetic of attention between its products, over the rows of strips.
//!
//! Everything is inlined into code that is compiled for the level (`Level::vectorized`); `FUSED` says whether that level
//! multiplies and adds in one instruction. Exponentials are powers of two: scores come with a factor that includes
//! the logarithm. What is no number stays none.

use std::f32::consts::LN_2;

use crate::Element;
use crate::cpu::elementary::tanh;

/// `x * y + z`
#[inline(always)]
pub(crate) fn multiply_add<const FUSED: bool>(x: f32, y: f32, z: f32) -> f32 {
    if FUSED { x.mul_add(y, z) } else { x * y + z }
}

/// Two to the power of `x`, to about one unit in the last place, for `x` up to 127; zero below -126.
#[inline(always)]
pub(crate) fn power_of_two<const FUSED: bool>(x: f32) -> f32 {
    /// Adding it leaves the nearest integer in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    /// Least relative error over half a unit to either side, found by reweighted least squares: 2e-9. The second
    /// term came out as the logarithm itself.
    const TERMS: [f32; 7] = [1.0, LN_2, 0.24022646, 0.055503286, 0.009618489, 0.0013399931, 0.00015345811];
    let shifted = x + ROUND;
    let rest = x - (shifted - ROUND);
    let mut sum = TERMS[6];
    for term in TERMS[..6].iter().rev() {
        sum = multiply_add::<FUSED>(sum, rest, *term);
    }
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x < -126.0 { 0.0 } else { sum * power }
}

/// What a panel of queries has seen so far, one lane per query.
#[derive(Clone, Copy)]
pub(super) struct Softmax<const COLUMNS: usize> {
    /// The largest score.
    pub(super) most: [f32; COLUMNS],
    /// The sum of the powers of scores less `most`.
    pub(super) sum: [f32; COLUMNS],
}

/// Below any score; the difference of two of them is a number, unlike that of infinities.
pub(crate) const NO_SCORE: f32 = -1e30;

impl<const COLUMNS: usize> Softmax<COLUMNS> {
    pub(super) const NEW: Self = Self { most: [NO_SCORE; COLUMNS], sum: [0.0; COLUMNS] };

    /// Turns scores (a key per row) into weights, and brings what `out` holds to the new scale.
    #[inline(always)]
    pub(super) fn absorb<const FUSED: bool>(&mut self, scores: &mut [f32], factor: f32, out: &mut [f32]) {
        let mut most = self.most;
        for row in scores.as_chunks::<COLUMNS>().0 {
            for (most, score) in most.iter_mut().zip(row) {
                let score = score * factor;
                *most = if score > *most { score } else { *most };
            }
        }
        let mut shrink = [0.0; COLUMNS];
        for (lane, shrink) in shrink.iter_mut().enumerate() {
            *shrink = power_of_two::<FUSED>(self.most[lane] - most[lane]);
        }
        let mut sum = [0.0; COLUMNS];
        for row in scores.as_chunks_mut::<COLUMNS>().0 {
            for lane in 0..COLUMNS {
                row[lane] = power_of_two::<FUSED>(multiply_add::<FUSED>(row[lane], factor, -most[lane]));
                sum[lane] += row[lane];
            }
        }
        for lane in 0..COLUMNS {
            self.sum[lane] = self.sum[lane] * shrink[lane] + sum[lane];
        }
        self.most = most;
        scale_lanes(out, &shrink);
    }
}

/// Multiplies each lane of a strip by a number of its own.
#[inline(always)]
pub(super) fn scale_lanes<const COLUMNS: usize>(strip: &mut [f32], by: &[f32; COLUMNS]) {
    for row in strip.as_chunks_mut::<COLUMNS>().0 {
        row.iter_mut().zip(by).for_each(|(value, by)| *value *= by);
    }
}

/// Bends scores, before they are multiplied by `scale`, so that they stay below `cap` once they are.
#[inline(always)]
pub(crate) fn bend(scores: &mut [f32], scale: f32, cap: f32) {
    let (inward, outward) = (scale / cap, cap / scale);
    scores.iter_mut().for_each(|score| *score = outward * tanh(*score * inward));
}

/// As [`bend`], and gives by how much each bent score grows with what it was.
#[inline(always)]
pub(super) fn bend_with_slopes<const COLUMNS: usize>(
    scores: &mut [f32; COLUMNS],
    (scale, cap): (f32, f32),
    slopes: &mut [f32; COLUMNS],
) {
    let (inward, outward) = (scale / cap, cap / scale);
    for (score, slope) in scores.iter_mut().zip(slopes) {
        let share = tanh(*score * inward);
        *score = outward * share;
        *slope = 1.0 - share * share;
    }
}

/// One query of a strip of the backward pass, a key per lane.
#[derive(Clone, Copy, Default)]
pub(super) struct StripQuery {
    /// The logarithm to base two of the sum of its exponentials.
    pub(super) log_sum: f32,
    /// Its output times the gradient of it.
    pub(super) delta: f32,
}

/// Turns a row of scores into weights, and a row of gradients of weights into gradients of scores.
#[inline(always)]
pub(super) fn weigh<const COLUMNS: usize, const FUSED: bool>(
    query: StripQuery,
    (factor, scale): (f32, f32),
    scores: &mut [f32; COLUMNS],
    gradients: &mut [f32; COLUMNS],
) {
    for lane in 0..COLUMNS {
        let weight = power_of_two::<FUSED>(multiply_add::<FUSED>(scores[lane], factor, -query.log_sum));
        scores[lane] = weight;
        gradients[lane] = weight * (gradients[lane] - query.delta) * scale;
    }
}

/// The sum of products, in an order that depends on the length alone.
#[inline(always)]
pub(super) fn dot<E: Element>(a: &[E], b: &[E]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    let mut lanes = [0.0f32; 16];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..16 {
            lanes[lane] += a[lane].widen() * b[lane].widen();
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a.widen() * b.widen()).sum();
    lanes.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::power_of_two;

    #[test]
    fn powers_of_two_are_within_two_units_in_the_last_place() {
        for step in 0..200_000 {
            let x = -125.9 + step as f32 * 0.001;
            let (got, expected) = (f64::from(power_of_two::<true>(x)), f64::from(x).exp2());
            assert!(
                (got - expected).abs() <= 2.0 * expected * f64::from(f32::EPSILON),
                "2^{x} is {expected}, not {got}"
            );
        }
        assert_eq!(power_of_two::<false>(f32::NEG_INFINITY), 0.0);
        assert!(power_of_two::<false>(f32::NAN).is_nan());
    }
}
