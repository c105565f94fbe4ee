//! Sampling tokens by chance from logits.
//!
//! Weights are whole numbers, so that no sum depends on its order: every device samples the same token from the same logits, except where
//! the last bit of an exponential decides.

use crate::{Device, Matrix, View, ViewMut};

/// How a token is sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleParams {
    /// Above 0.
    pub temperature: f32,
    /// Samples from so many most likely tokens; 0 is all of them.
    pub top_k: u32,
    /// Samples from the most likely tokens that together have this probability, and at least from one.
    pub top_p: f32,
    /// Samples from tokens at least this probable, compared with the most likely one.
    pub min_p: f32,
    /// Which of them, as a fraction of 2^64.
    pub chance: u64,
}

/// How far below the most likely a token may be and still count, in units of the temperature: all others together are rarer than
/// what an `f32` can tell apart.
const REACH: f32 = 30.0;

/// The weight of the most likely token; that of the least likely one is above 1, and sums of a quarter of a million fit.
const ONE: f64 = (1u64 << 44) as f64;

impl SampleParams {
    /// How many words they are on a device.
    pub const WORDS: usize = 8;

    /// As [`Device::sample`] takes it, for a row of logits.
    pub fn words(&self, row: usize) -> [u32; Self::WORDS] {
        let inverse = std::f32::consts::LOG2_E / self.temperature;
        [
            row as u32,
            self.top_k,
            self.top_p.to_bits(),
            self.reach().to_bits(),
            inverse.to_bits(),
            self.temperature.to_bits(),
            self.chance as u32,
            (self.chance >> 32) as u32,
        ]
    }

    /// How far below the most likely logit others may be.
    fn reach(&self) -> f32 {
        self.temperature * REACH.min(-self.min_p.ln())
    }

    /// The token, given the largest of the logits, which is above minus infinity.
    pub fn token(&self, logits: &[f32], most: f32) -> Option<u32> {
        let mut candidates = Candidates::new(logits, most, self.reach(), self.temperature);
        candidates.cut(self.top_k, self.top_p);
        candidates.at(self.chance)
    }
}

/// Tokens that may be sampled.
pub(crate) struct Candidates {
    of: Vec<Candidate>,
}

#[derive(Clone, Copy)]
struct Candidate {
    token: u32,
    logit: f32,
    weight: u64,
}

impl Candidates {
    /// In the order of tokens.
    pub(crate) fn new(logits: &[f32], most: f32, reach: f32, temperature: f32) -> Self {
        let (least, inverse) = (most - reach, f64::from(temperature).recip());
        let weight = |logit: f32| ((f64::from(logit - most) * inverse).exp() * ONE) as u64;
        let near = (0..).zip(logits).filter(|(_, logit)| **logit >= least);
        Self {
            of: near
                .map(|(token, logit)| Candidate { token, logit: *logit, weight: weight(*logit) })
                .collect(),
        }
    }

    fn whole(&self) -> u64 {
        self.of.iter().map(|candidate| candidate.weight).sum()
    }

    /// Keeps the most likely ones: at most `top_k`, and of those as many as have the share `top_p`. Of equals the first ones.
    pub(crate) fn cut(&mut self, top_k: u32, top_p: f32) {
        let is_cut = top_p < 1.0 || (top_k > 0 && (top_k as usize) < self.of.len());
        if !is_cut {
            return;
        }
        self.of.sort_unstable_by(|a, b| b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token)));
        if top_k > 0 {
            self.of.truncate(top_k as usize);
        }
        if top_p < 1.0 {
            let (mut kept, enough) = (0, (f64::from(top_p) * self.whole() as f64) as u64);
            let inside = self.of.iter().take_while(|candidate| {
                let is_inside = kept < enough;
                kept += candidate.weight;
                is_inside
            });
            let count = inside.count().max(1);
            self.of.truncate(count);
        }
        self.of.sort_unstable_by_key(|candidate| candidate.token);
    }

    /// The one at which a share of the whole is passed.
    pub(crate) fn at(&self, chance: u64) -> Option<u32> {
        let mut left = ((u128::from(self.whole()) * u128::from(chance)) >> 64) as u64;
        let sampled = self.of.iter().find(|candidate| match left.checked_sub(candidate.weight) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        sampled.or(self.of.last()).map(|candidate| candidate.token)
    }
}

impl Device {
    /// Samples tokens from rows of logits, [`SampleParams::WORDS`] for each, and puts each at its row's place in `to`: [`NONE`](crate::NONE) where no
    /// logit of the row is above minus infinity. Other places are left as they are.
    pub fn sample(&self, logits: Matrix<'_, f32>, samples: View<'_, u32>, to: ViewMut<'_, u32>) {
        assert_eq!(to.len(), logits.rows, "a place for each row");
        assert!(samples.len().is_multiple_of(SampleParams::WORDS), "whole parameters");
        on_backend!(self, Memory, sample(logits, samples, to));
    }
}

#[cfg(test)]
mod tests;
