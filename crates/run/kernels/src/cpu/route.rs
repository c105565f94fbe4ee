//! Routing of tokens to experts.

use super::Cpu;
use super::elementary::{exp, sigmoid};
use super::sum::{largest, sum, sum2};
use crate::device::{ExpertShares, RouteBackward, RouteForward};
use crate::{Element, GroupScore, RouteGroups, RouteRule, RouteScores, Rows, View};

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

    pub(crate) fn route_by<C: Element>(
        &self,
        rule: &RouteRule,
        correction: Option<View<'_, C>>,
        route: RouteForward<'_>,
    ) {
        let RouteForward { logits, per_token, probabilities, experts, weights, .. } = route;
        let (logits, correction) = (self.rows(logits), correction.map(|correction| self.slice(correction)));
        let outputs =
            (self.rows_mut(probabilities), self.shared(experts, per_token), self.shared(weights, per_token));
        inlined!(self.in_rows(logits.shape(), outputs, |row, (scores, experts, weights)| {
            score(rule.scores, logits.row(row), scores);
            // What is chosen by lies where the scores do, which are then made again.
            if let Some(correction) = correction {
                scores.iter_mut().zip(correction).for_each(|(score, more)| *score += more.widen());
            }
            if let Some(groups) = &rule.groups {
                hide_groups(groups, scores);
            }
            choose_largest(scores, experts);
            score(rule.scores, logits.row(row), scores);
            weigh(scores, experts, false, weights);
            let total = if rule.normalise { weights.iter().sum::<f32>() + LEAST_TOTAL } else { 1.0 };
            weights.iter_mut().for_each(|weight| *weight *= rule.scale / total);
        }));
    }

    pub(crate) fn route_by_backward(&self, rule: &RouteRule, route: RouteBackward<'_>) {
        let RouteBackward { probabilities, per_token, d_logits, .. } = route;
        let (scores, experts) = (self.rows(probabilities), self.slice(route.experts));
        let (weights, d_weights) = (self.slice(route.weights), self.slice(route.d_weights));
        inlined!(self.in_rows(scores.shape(), self.rows_mut(d_logits), |row, d| {
            let (choices, scores) = (row * per_token..(row + 1) * per_token, scores.row(row));
            let (experts, d_weights) = (&experts[choices.clone()], &d_weights[choices.clone()]);
            let (mut common, mut factor) = (0.0, rule.scale);
            if rule.normalise {
                let shares = weights[choices].iter().map(|weight| weight / rule.scale);
                common = shares.zip(d_weights).map(|(share, d)| share * d).sum();
                let total: f32 = experts.iter().map(|expert| scores[*expert as usize]).sum();
                factor = rule.scale / (total + LEAST_TOTAL);
            }
            d.fill(0.0);
            for (expert, d_weight) in experts.iter().zip(d_weights) {
                d[*expert as usize] += (d_weight - common) * factor;
            }
            match rule.scores {
                RouteScores::Softmax => softmax_backward(scores, d),
                RouteScores::Sigmoid => {
                    d.iter_mut().zip(scores).for_each(|(d, score)| *d *= score * (1.0 - score));
                }
            }
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

/// Added to what weights are divided by, as DeepSeek has it.
const LEAST_TOTAL: f32 = 1e-20;

#[inline(always)]
fn score(by: RouteScores, logits: &[f32], scores: &mut [f32]) {
    match by {
        RouteScores::Softmax => softmax(logits, scores),
        RouteScores::Sigmoid => {
            scores.iter_mut().zip(logits).for_each(|(score, logit)| *score = sigmoid(*logit));
        }
    }
}

/// Makes the scores of all but the best groups so small that none is chosen; of equal groups the first is the better one.
#[inline(always)]
fn hide_groups(groups: &RouteGroups, scores: &mut [f32]) {
    let size = scores.len() / groups.count;
    let mut best = [f32::NEG_INFINITY; RouteGroups::MOST];
    for (best, of_group) in best.iter_mut().zip(scores.chunks_exact(size)) {
        let [first, second] = best_two(of_group);
        *best = if groups.by == GroupScore::BestTwo { first + second } else { first };
    }
    let best = &best[..groups.count];
    for (group, of_group) in scores.chunks_exact_mut(size).enumerate() {
        let is_ahead =
            |(other, score): (usize, &f32)| *score > best[group] || *score == best[group] && other < group;
        if best.iter().enumerate().filter(|other| is_ahead(*other)).count() >= groups.chosen {
            of_group.fill(f32::NEG_INFINITY);
        }
    }
}

/// The largest of some numbers, and the second; minus infinity where there is none.
#[inline(always)]
fn best_two(numbers: &[f32]) -> [f32; 2] {
    numbers.iter().fold([f32::NEG_INFINITY; 2], |[first, second], number| {
        if *number > first { [*number, first] } else { [first, second.max(*number)] }
    })
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
