//! Routing of tokens to experts.

use super::Cpu;
use super::elementary::exp;
use super::sum::{largest, sum, sum2};
use crate::Rows;
use crate::device::{ExpertShares, RouteBackward, RouteForward};

impl Cpu {
    pub(crate) fn route(&self, route: RouteForward<'_>) {
        let RouteForward { logits, per_token, normalise, probabilities, experts, weights } = route;
        let logits = self.rows(logits);
        let outputs =
            (self.rows_mut(probabilities), self.shared(experts, per_token), self.shared(weights, per_token));
        inlined!(self.in_rows(logits.shape(), outputs, |row, (probabilities, experts, weights)| {
            softmax(logits.row(row), probabilities);
            choose_largest(logits.row(row), experts);
            weigh(probabilities, experts, normalise, weights);
        }));
    }

    pub(crate) fn route_backward(&self, route: RouteBackward<'_>) {
        let RouteBackward { probabilities, per_token, normalise, balance, d_logits, .. } = route;
        let probabilities = self.rows(probabilities);
        let (experts, weights) = (self.slice(route.experts), self.slice(route.weights));
        let d_weights = self.slice(route.d_weights);
        let mut pressures = self.partial_sums.borrow_mut();
        let pressures = pressures.first(probabilities.columns);
        let counted = balance.map(|balance| self.slice(balance.counted));
        pressures.fill(0.0);
        if let Some(balance) = balance {
            let (shares, layers) = (self.rows(balance.shares), balance.layers as f32);
            let scale = balance.coefficient * shares.columns as f32 / balance.tokens.max(1) as f32;
            add_scaled(scale / (layers * layers), shares, pressures);
        }
        let pressures = &*pressures;
        inlined!(self.in_rows(probabilities.shape(), self.rows_mut(d_logits), |row, d| {
            let choices = row * per_token..(row + 1) * per_token;
            match counted {
                Some(counted) if counted[row] > 0 => d.copy_from_slice(pressures),
                _ => d.fill(0.0),
            }
            let chosen = (&experts[choices.clone()], &weights[choices.clone()], &d_weights[choices]);
            add_d_probabilities(probabilities.row(row), chosen, normalise, d);
            softmax_backward(probabilities.row(row), d);
        }));
    }

    pub(crate) fn expert_shares(&self, counts: ExpertShares<'_>) {
        let ExpertShares { experts, per_token, counted, tokens, shares } = counts;
        let (experts, counted, shares) = (self.slice(experts), self.slice(counted), self.slice_mut(shares));
        shares.fill(0.0);
        for (experts, _) in experts.chunks(per_token).zip(counted).filter(|(_, counted)| **counted > 0) {
            experts.iter().for_each(|expert| shares[*expert as usize] += 1.0);
        }
        let tokens = tokens.max(1) as f32;
        shares.iter_mut().for_each(|share| *share /= tokens);
    }
}

/// Adds all rows, times a number.
fn add_scaled(scale: f32, rows: Rows<&[f32]>, sums: &mut [f32]) {
    for row in 0..rows.rows {
        for (sum, number) in sums.iter_mut().zip(rows.row(row)) {
            *sum += scale * number;
        }
    }
}

#[inline(always)]
fn softmax(logits: &[f32], probabilities: &mut [f32]) {
    let most = largest(logits);
    for (probability, logit) in probabilities.iter_mut().zip(logits) {
        *probability = exp(logit - most);
    }
    let inverse = 1.0 / sum(probabilities, itself);
    for power in probabilities.iter_mut() {
        *power *= inverse;
    }
}

/// By logits and not by probabilities, of which several may have become zero.
#[inline(always)]
fn choose_largest(logits: &[f32], experts: &mut [u32]) {
    let mut kept = 0;
    for (expert, logit) in logits.iter().enumerate() {
        let is_larger = |than: &u32| logit.total_cmp(&logits[*than as usize]).is_gt();
        let place = kept - experts[..kept].iter().rev().take_while(|chosen| is_larger(chosen)).count();
        if place < experts.len() {
            kept = (kept + 1).min(experts.len());
            experts.copy_within(place..kept - 1, place + 1);
            experts[place] = expert as u32;
        }
    }
}

#[inline(always)]
fn weigh(probabilities: &[f32], experts: &[u32], normalise: bool, weights: &mut [f32]) {
    for (weight, expert) in weights.iter_mut().zip(experts) {
        *weight = probabilities[*expert as usize];
    }
    if normalise {
        let total: f32 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= total);
    }
}

#[inline(always)]
fn add_d_probabilities(
    probabilities: &[f32],
    (experts, weights, d_weights): (&[u32], &[f32], &[f32]),
    normalise: bool,
    d_probabilities: &mut [f32],
) {
    let (mut common, mut inverse) = (0.0, 1.0);
    if normalise {
        common = weights.iter().zip(d_weights).map(|(weight, d)| weight * d).sum();
        inverse = 1.0 / experts.iter().map(|expert| probabilities[*expert as usize]).sum::<f32>();
    }
    for (expert, d) in experts.iter().zip(d_weights) {
        d_probabilities[*expert as usize] += (d - common) * inverse;
    }
}

/// From the gradient of probabilities to that of logits, in place.
#[inline(always)]
fn softmax_backward(probabilities: &[f32], d: &mut [f32]) {
    let mean = sum2(probabilities, d, product);
    for (d, probability) in d.iter_mut().zip(probabilities) {
        *d = probability * (*d - mean);
    }
}

#[inline(always)]
fn itself(a: f32) -> f32 {
    a
}

#[inline(always)]
fn product(a: f32, b: f32) -> f32 {
    a * b
}
