//! Sampling a token from logits.
//!
//! Penalties and bias change a copy of the logits; [`SampleParams`] then keep the most likely tokens that top-k, top-p and min-p allow, and pick one of
//! them. A GPU samples where nothing changes the logits.

use std::collections::BTreeMap;

use bedplate_kernels::SampleParams;
use bedplate_random::Random;

use crate::{Logprobs, Sampling};

/// Picks the tokens of one sample.
#[derive(Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    random: Random,
    /// How often the answer has each token; only where a penalty asks.
    counts: BTreeMap<u32, u32>,
    prompt: Vec<u32>,
}

impl Sampler {
    /// Samples of one request have streams of their own.
    pub(crate) fn new(sampling: Sampling, seed: u64, sample: u16, prompt: &[u32]) -> Self {
        let mut known = Vec::new();
        if sampling.repetition_penalty != 1.0 {
            known.extend_from_slice(prompt);
            known.sort_unstable();
            known.dedup();
        }
        Self { sampling, random: Random::stream(seed, sample.into()), counts: BTreeMap::new(), prompt: known }
    }

    /// Samples a token. `forbidden` are never sampled, and of the others only those in `allowed`, a bit for each. None where nothing is left.
    pub(crate) fn sample(
        &mut self,
        logits: &[f32],
        allowed: Option<&[u32]>,
        forbidden: &[u32],
        room: &mut Vec<f32>,
    ) -> Option<u32> {
        let is_plain = allowed.is_none() && forbidden.is_empty() && !self.changes_logits();
        let token = if is_plain {
            self.choose(logits)
        } else {
            room.clear();
            room.extend_from_slice(logits);
            self.change(room);
            forbidden.iter().for_each(|token| forbid(room, *token));
            if let Some(allowed) = allowed {
                keep_allowed(room, allowed);
            }
            self.choose(room)
        }?;
        if self.counts_tokens() {
            *self.counts.entry(token).or_default() += 1;
        }
        Some(token)
    }

    /// Whether it always samples the most likely token of unchanged logits.
    pub(crate) fn takes_argmax(&self) -> bool {
        !self.changes_logits() && self.is_greedy()
    }

    fn is_greedy(&self) -> bool {
        self.sampling.temperature <= 0.0 || self.sampling.top_k == 1
    }

    fn counts_tokens(&self) -> bool {
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.sampling;
        repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0
    }

    fn changes_logits(&self) -> bool {
        self.counts_tokens() || !self.sampling.bias.is_empty()
    }

    /// Penalties and bias.
    fn change(&self, logits: &mut [f32]) {
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.sampling;
        if repetition_penalty != 1.0 {
            let new = self.counts.keys().filter(|token| self.prompt.binary_search(token).is_err());
            for token in self.prompt.iter().chain(new) {
                if let Some(logit) = logits.get_mut(*token as usize) {
                    *logit =
                        if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
                }
            }
        }
        for (token, count) in &self.counts {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit -= presence_penalty + frequency_penalty * *count as f32;
            }
        }
        for (token, bias) in &self.sampling.bias {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
    }

    /// How the next token is sampled, where that needs nothing but the logits.
    pub(crate) fn next_sample(&self) -> Option<SampleParams> {
        let is_plain = !self.changes_logits() && !self.is_greedy();
        is_plain.then(|| self.sample_by(self.random.clone().number()))
    }

    /// The token of [`next_sample`](Self::next_sample) was taken.
    pub(crate) fn skip(&mut self) {
        self.random.number();
    }

    fn sample_by(&self, chance: u64) -> SampleParams {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        SampleParams { temperature, top_k, top_p, min_p, chance }
    }

    fn choose(&mut self, logits: &[f32]) -> Option<u32> {
        let (token, most) = argmax(logits)?;
        if self.is_greedy() {
            return Some(token);
        }
        let chance = self.random.number();
        self.sample_by(chance).token(logits, most)
    }
}

/// The most likely token, the first of several; none where no logit is above minus infinity.
pub(crate) fn argmax(logits: &[f32]) -> Option<(u32, f32)> {
    // Lanes of their own make this vector code.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = logits.as_chunks::<16>();
    for chunk in chunks {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            *lane = if *logit > *lane { *logit } else { *lane };
        }
    }
    let most = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    if most == f32::NEG_INFINITY {
        return None;
    }
    let at = logits.iter().position(|logit| *logit == most)?;
    Some((at as u32, most))
}

fn forbid(logits: &mut [f32], token: u32) {
    if let Some(logit) = logits.get_mut(token as usize) {
        *logit = f32::NEG_INFINITY;
    }
}

fn keep_allowed(logits: &mut [f32], allowed: &[u32]) {
    for (logits, word) in logits.chunks_mut(32).zip(allowed.iter().chain(std::iter::repeat(&0))) {
        match *word {
            u32::MAX => {}
            0 => logits.fill(f32::NEG_INFINITY),
            word => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

/// The log-probability of a token and of the most likely ones.
pub(crate) fn logprobs(logits: &[f32], token: u32, top: u8) -> Logprobs {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let whole: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    let base = f64::from(most) + whole.ln();
    let of = |token: u32| (f64::from(logits[token as usize]) - base) as f32;
    let mut order: Vec<u32> = Vec::with_capacity(top as usize + 1);
    if top > 0 {
        // A short sorted list beats sorting the vocabulary.
        for (token, logit) in (0u32..).zip(logits) {
            let is_better = |other: &u32| *logit > logits[*other as usize];
            if order.len() < top as usize || order.last().is_some_and(is_better) {
                let at = order.partition_point(|other| !is_better(other));
                order.insert(at, token);
                order.truncate(top as usize);
            }
        }
    }
    let above = logits.iter().filter(|logit| **logit > logits[token as usize]).count() as u32;
    Logprobs { of_token: of(token), above, top: order.into_iter().map(|token| (token, of(token))).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(sampling: Sampling, logits: &[f32]) -> Vec<f64> {
        let mut sampler = Sampler::new(sampling, 11, 0, &[]);
        let mut counts = vec![0.0; logits.len()];
        for _ in 0..20_000 {
            let token = sampler.sample(logits, None, &[], &mut Vec::new()).unwrap();
            counts[token as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    fn assert_shares(sampling: Sampling, logits: &[f32], expected: &[f64]) {
        let shares = shares(sampling.clone(), logits);
        let is_near = shares.iter().zip(expected).all(|(share, expected)| (share - expected).abs() < 0.015);
        assert!(is_near, "{sampling:?}: {shares:?}, not {expected:?}");
    }

    #[test]
    fn shares_follow_temperature_and_cuts() {
        let logits = [0.0, 1.0, 2.0, f32::NEG_INFINITY];
        let plain = Sampling::default();
        assert_shares(plain.clone(), &logits, &[0.090, 0.245, 0.665, 0.0]);
        assert_shares(Sampling { temperature: 0.5, ..plain.clone() }, &logits, &[0.016, 0.117, 0.867, 0.0]);
        assert_shares(Sampling { top_k: 2, ..plain.clone() }, &logits, &[0.0, 0.269, 0.731, 0.0]);
        assert_shares(Sampling { top_p: 0.9, ..plain.clone() }, &logits, &[0.0, 0.269, 0.731, 0.0]);
        assert_shares(Sampling { top_p: 0.5, ..plain.clone() }, &logits, &[0.0, 0.0, 1.0, 0.0]);
        assert_shares(Sampling { min_p: 0.2, ..plain.clone() }, &logits, &[0.0, 0.269, 0.731, 0.0]);
        assert_shares(
            Sampling { bias: vec![(0, 2.0), (9, 1.0)], ..plain },
            &logits,
            &[0.422, 0.155, 0.422, 0.0],
        );
    }

    #[test]
    fn penalties_count_what_was_said() {
        let sampling = Sampling { frequency_penalty: 1.5, ..Sampling::greedy() };
        let mut sampler = Sampler::new(sampling, 0, 0, &[1]);
        let mut sample = || sampler.sample(&[1.0, 2.0, 0.0], None, &[], &mut Vec::new()).unwrap();
        assert_eq!([sample(), sample(), sample(), sample()], [1, 0, 1, 2]);
        let sampling = Sampling { repetition_penalty: 3.0, ..Sampling::greedy() };
        let mut sampler = Sampler::new(sampling, 0, 0, &[1]);
        assert_eq!(sampler.sample(&[1.0, 2.0, 0.0], None, &[], &mut Vec::new()), Some(0));
    }

    #[test]
    fn only_what_is_allowed_is_sampled() {
        let mut sampler = Sampler::new(Sampling::greedy(), 0, 0, &[]);
        let logits: Vec<f32> = (0..100).map(|token| token as f32).collect();
        let mut mask = vec![0; 4];
        mask[1] = 1 << 5;
        assert_eq!(sampler.sample(&logits, Some(&mask), &[], &mut Vec::new()), Some(37));
        assert_eq!(sampler.sample(&logits, Some(&mask), &[37], &mut Vec::new()), None);
        assert_eq!(sampler.sample(&logits, None, &[99], &mut Vec::new()), Some(98));
    }

    #[test]
    fn seeds_repeat_and_samples_differ() {
        let sample = |seed, sample| {
            let mut sampler = Sampler::new(Sampling::default(), seed, sample, &[]);
            (0..20)
                .map(|_| sampler.sample(&[0.0; 50], None, &[], &mut Vec::new()).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(sample(1, 0), sample(1, 0));
        assert_ne!(sample(1, 0), sample(1, 1));
        assert_ne!(sample(1, 0), sample(2, 0));
    }

    #[test]
    fn log_probabilities_are_those_of_the_model() {
        let found = logprobs(&[0.0, 1.0, 2.0], 1, 2);
        assert!((found.of_token + 1.4076).abs() < 1e-3);
        assert_eq!(found.above, 1);
        assert_eq!(found.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [2, 1]);
    }
}
