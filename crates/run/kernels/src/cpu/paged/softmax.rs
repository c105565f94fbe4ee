//! The weights of a row's tokens, brought up to date piece by piece, and sums that are merged span by span.
//!
//! All is inlined into `Level::vectorized`. Elements of a row meet in an order that depends on their place in the piece alone; a token that is
//! not seen has a weight of zero, which changes no sum.

use crate::cpu::attention::{NO_SCORE, multiply_add, power_of_two};
use crate::cpu::sum::fold;

/// Partial sums of a row.
pub(super) const LANES: usize = 16;

/// What a row has seen so far: the largest score and the sum of the powers of scores less it. Scores have base two.
#[derive(Debug, Clone, Copy)]
pub(super) struct SoftmaxSeen {
    pub(super) most: f32,
    pub(super) sum: f32,
}

impl SoftmaxSeen {
    pub(super) const NOTHING: Self = Self { most: NO_SCORE, sum: 0.0 };

    /// Turns the scores of a piece, whole multiples of sixteen, into weights, and brings what `out` holds to the new scale.
    #[inline(always)]
    pub(super) fn absorb<const FUSED: bool>(&mut self, scores: &mut [f32], factor: f32, out: &mut [f32]) {
        let scores = scores.as_chunks_mut::<LANES>().0;
        let mut lanes = [self.most; LANES];
        for chunk in &*scores {
            for (most, score) in lanes.iter_mut().zip(chunk) {
                let score = score * factor;
                *most = if score > *most { score } else { *most };
            }
        }
        let most = fold(lanes, |a, b| if b > a { b } else { a });
        let mut sums = [0.0; LANES];
        for chunk in scores {
            for (sum, score) in sums.iter_mut().zip(chunk) {
                *score = power_of_two::<FUSED>(multiply_add::<FUSED>(*score, factor, -most));
                *sum += *score;
            }
        }
        let shrink = power_of_two::<FUSED>(self.most - most);
        self.sum = self.sum * shrink + fold(sums, |a, b| a + b);
        self.most = most;
        if shrink != 1.0 {
            out.iter_mut().for_each(|number| *number *= shrink);
        }
    }

    /// Merges what a later span saw, with its sums of values.
    #[inline(always)]
    pub(super) fn merge<const FUSED: bool>(&mut self, out: &mut [f32], later: Self, more: &[f32]) {
        let most = if later.most > self.most { later.most } else { self.most };
        let by = [self.most - most, later.most - most].map(power_of_two::<FUSED>);
        *self = Self { most, sum: self.sum * by[0] + later.sum * by[1] };
        for (number, more) in out.iter_mut().zip(more) {
            *number = *number * by[0] + *more * by[1];
        }
    }
}
