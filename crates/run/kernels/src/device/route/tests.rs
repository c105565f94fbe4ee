//! Routing against its definition and its differences.

use proptest::prelude::*;

use super::*;
use crate::testing::{Spaced, TestRandom, assert_close, dot, gradient, lend, on_any_processor, tolerance};

#[derive(Debug, Clone, Copy)]
struct Case {
    tokens: usize,
    count: usize,
    per_token: usize,
    normalise: bool,
}

#[derive(Debug, PartialEq)]
struct Routed {
    probabilities: Spaced<f32>,
    experts: Vec<u32>,
    weights: Vec<f32>,
}

impl Case {
    fn route(&self, device: &Device, logits: &Spaced<f32>) -> Routed {
        let choices = self.tokens * self.per_token;
        let mut probabilities = Spaced::zeros(self.tokens, self.count, 2);
        let (mut experts, mut weights) = (lend(device, &vec![0; choices]), lend(device, &vec![0.0; choices]));
        device.route(
            logits.on(device).matrix(),
            self.per_token,
            self.normalise,
            probabilities.on_mut(device).matrix_mut(),
            experts.view_mut(),
            weights.view_mut(),
        );
        // Gaps hold NaN, which equals nothing.
        let probabilities = Spaced::of(self.tokens, self.count, &probabilities.elements());
        Routed { probabilities, experts: experts.elements(), weights: weights.elements() }
    }

    /// Where layers share a balance, `others` are the choices of the other layers.
    fn backward(
        &self,
        device: &Device,
        routed: &Routed,
        d: &[f32],
        coefficient: f32,
        counted: &[u32],
        others: &[Vec<u32>],
    ) -> Vec<f32> {
        let tokens = counted.iter().filter(|counted| **counted > 0).count();
        let counted = lend(device, counted);
        let layers: Vec<&Vec<u32>> = [&routed.experts].into_iter().chain(others).collect();
        let mut shares = lend(device, &vec![0.0; layers.len() * self.count]);
        for (layer, experts) in layers.iter().enumerate() {
            let experts = lend(device, experts);
            let row = shares.view_mut().range(layer * self.count..(layer + 1) * self.count);
            device.expert_shares(experts.view(), self.per_token, counted.view(), tokens, row);
        }
        let balance = (coefficient > 0.0).then(|| Balance {
            coefficient,
            shares: shares.view().matrix(layers.len(), self.count),
            layers: layers.len(),
            counted: counted.view(),
            tokens,
        });
        let mut d_logits = Spaced::zeros(self.tokens, self.count, 1);
        device.route_backward(
            routed.probabilities.on(device).matrix(),
            lend(device, &routed.experts).view(),
            lend(device, &routed.weights).view(),
            self.per_token,
            self.normalise,
            lend(device, d).view(),
            balance,
            d_logits.on_mut(device).matrix_mut(),
        );
        d_logits.elements()
    }

    fn probabilities(&self, logits: &[f64]) -> Vec<f64> {
        let row = |logits: &[f64]| {
            let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let powers: Vec<f64> = logits.iter().map(|logit| (logit - most).exp()).collect();
            let sum: f64 = powers.iter().sum();
            powers.into_iter().map(|power| power / sum).collect::<Vec<f64>>()
        };
        logits.chunks(self.count).flat_map(row).collect()
    }

    /// By sorting all experts of each token.
    fn experts(&self, logits: &[f64]) -> Vec<u32> {
        let row = |logits: &[f64]| {
            let mut order: Vec<u32> = (0..self.count as u32).collect();
            order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
            order[..self.per_token].to_vec()
        };
        logits.chunks(self.count).flat_map(row).collect()
    }

    /// The weights of given choices, which hold still while logits move a little.
    fn weights(&self, logits: &[f64], experts: &[u32]) -> Vec<f64> {
        let probabilities = self.probabilities(logits);
        let row = |(token, experts): (usize, &[u32])| {
            let chosen: Vec<f64> =
                experts.iter().map(|expert| probabilities[token * self.count + *expert as usize]).collect();
            let divisor = if self.normalise { chosen.iter().sum() } else { 1.0 };
            chosen.into_iter().map(|chosen| chosen / divisor).collect::<Vec<f64>>()
        };
        experts.chunks(self.per_token).enumerate().flat_map(row).collect()
    }

    /// As `load_balancing_loss_func` of Hugging Face's transformers has it: means over the counted tokens of all layers of a mask of
    /// choices and of probabilities, multiplied and summed over experts and over the places of choices.
    fn balance_loss(&self, layers: &[(Vec<f64>, Vec<u32>)], counted: &[u32]) -> f64 {
        let tokens = || (0..self.tokens).filter(|token| counted[*token] > 0);
        let total = (layers.len() * tokens().count()).max(1) as f64;
        let mut loss = 0.0;
        for expert in 0..self.count {
            let (mut probability, mut choices) = (0.0, 0);
            for (logits, experts) in layers {
                let probabilities = self.probabilities(logits);
                probability += tokens().map(|token| probabilities[token * self.count + expert]).sum::<f64>();
                let chosen =
                    tokens().flat_map(|token| &experts[token * self.per_token..(token + 1) * self.per_token]);
                choices += chosen.filter(|chosen| **chosen == expert as u32).count();
            }
            loss += choices as f64 / total * (probability / total);
        }
        loss * self.count as f64
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn choices_weights_and_gradients_are_those_of_the_definition(
        tokens in 1usize..6, count in 1usize..12, chosen in 1usize..5, normalise: bool, size in 0.1f32..4.0, seed in 0u64..1000
    ) {
        let case = Case { tokens, count, per_token: chosen.min(count), normalise };
        let random = &mut TestRandom::new(seed);
        let logits = Spaced::<f32>::new(tokens, count, 1, || size * random.number());
        let routed = on_any_processor(|device| case.route(device, &logits));
        let (wide, experts) = (logits.wide(), case.experts(&logits.wide()));
        assert_eq!(routed.experts, experts);
        assert_close(&routed.probabilities.elements(), &case.probabilities(&wide), tolerance::<f32>());
        assert_close(&routed.weights, &case.weights(&wide, &experts), tolerance::<f32>());

        let d: Vec<f32> = random.numbers(experts.len());
        let d_wide = crate::testing::wide(&d);
        let by_weights = gradient(|logits| dot(&d_wide, &case.weights(logits, &experts)), &wide);
        let counted: Vec<u32> = (0..tokens).map(|token| u32::from(token == 0 || random.number() > 0.0)).collect();
        let found = on_any_processor(|device| case.backward(device, &routed, &d, 0.0, &counted, &[]));
        assert_close(&found, &by_weights, 2.0 * tolerance::<f32>());

        let other = Spaced::<f32>::new(tokens, count, 1, || size * random.number()).wide();
        let other = (other.clone(), case.experts(&other));
        let loss = |logits: &[f64]| case.balance_loss(&[(logits.to_vec(), experts.clone()), other.clone()], &counted);
        let by_balance = gradient(|logits| 0.7 * loss(logits), &wide);
        let both: Vec<f64> = by_weights.iter().zip(&by_balance).map(|(a, b)| a + b).collect();
        let others = [other.1.clone()];
        let found = on_any_processor(|device| case.backward(device, &routed, &d, 0.7, &counted, &others));
        assert_close(&found, &both, 4.0 * tolerance::<f32>());
    }
}

#[test]
fn of_equal_logits_the_lower_numbers_are_chosen() {
    let case = Case { tokens: 1, count: 5, per_token: 3, normalise: true };
    let routed = on_any_processor(|device| case.route(device, &Spaced::of(1, 5, &[1.0, 2.0, 1.0, 2.0, 1.0])));
    assert_eq!(routed.experts, [1, 3, 0]);
}

#[test]
fn experts_are_ranked_by_logits_even_where_their_probabilities_vanish() {
    let case = Case { tokens: 1, count: 4, per_token: 3, normalise: true };
    let logits = Spaced::of(1, 4, &[-2000.0, f32::NEG_INFINITY, 1000.0, -1000.0]);
    let routed = on_any_processor(|device| case.route(device, &logits));
    assert_eq!(routed.experts, [2, 3, 0]);
    assert_eq!(routed.weights, [1.0, 0.0, 0.0]);
}

#[test]
fn padding_has_no_share_and_feels_no_pressure() {
    let case = Case { tokens: 3, count: 2, per_token: 1, normalise: false };
    let device = &Device::cpu(1);
    let routed = case.route(device, &Spaced::of(3, 2, &[2.0, 0.0, 0.0, 2.0, 0.0, 2.0]));
    let mut shares = lend(device, &[9.0; 2]);
    for (counted, expected) in [([1, 1, 0], [0.5, 0.5]), ([1, 0, 0], [1.0, 0.0]), ([0, 0, 0], [0.0, 0.0])] {
        let tokens = counted.iter().sum::<u32>() as usize;
        let (experts, counted) = (lend(device, &routed.experts), lend(device, &counted));
        device.expert_shares(experts.view(), 1, counted.view(), tokens, shares.view_mut());
        assert_eq!(shares.elements(), expected);
    }
    let d_logits = case.backward(device, &routed, &[0.0; 3], 1.0, &[1, 0, 0], &[]);
    assert!(d_logits[..2].iter().all(|d| *d != 0.0) && d_logits[2..] == [0.0; 4], "{d_logits:?}");
}

#[test]
fn many_tokens_give_the_same_on_any_processor() {
    let case = Case { tokens: 700, count: 60, per_token: 4, normalise: true };
    let random = &mut TestRandom::new(4);
    let logits = Spaced::<f32>::random(700, 60, 1, random);
    let d: Vec<f32> = random.numbers(2800);
    on_any_processor(|device| {
        let routed = case.route(device, &logits);
        let d_logits = case.backward(device, &routed, &d, 0.1, &[1; 700], &[]);
        (routed, d_logits)
    });
}
