//! Routing of tokens to experts: probabilities, choices, and the loss that keeps experts equally busy.

use bedplate_breakdown::Part;

use crate::cpu::elementary::exp;
use crate::cpu::stream::SharedMut;
use crate::cpu::sum::{largest, sum, sum2};
use crate::{Device, Matrix, MatrixMut, View, ViewMut};

/// How much unequal use of experts counts in the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Balance {
    pub coefficient: f32,
}

impl Device {
    /// The softmax of each row, and of each row the `per_token` experts with the largest logits, the largest first and of equal
    /// ones the lower number; their weights are their probabilities, `normalise`d to sum 1 where asked.
    pub fn route(
        &self,
        logits: Matrix<'_, f32>,
        per_token: usize,
        normalise: bool,
        probabilities: MatrixMut<'_, f32>,
        experts: ViewMut<'_, u32>,
        weights: ViewMut<'_, f32>,
    ) {
        let Matrix { rows, columns, .. } = logits;
        assert_eq!((probabilities.rows, probabilities.columns), (rows, columns), "probabilities of experts");
        assert_eq!((experts.len(), weights.len()), (rows * per_token, rows * per_token), "chosen experts");
        assert!(per_token <= columns, "{per_token} of {columns} experts");
        let probabilities = probabilities.into_shared();
        let (experts, weights) = (SharedMut::new(experts.into_host()), SharedMut::new(weights.into_host()));
        self.time(Part::Memory, || {
            self.in_rows(
                rows,
                columns,
                #[inline(always)]
                |rows| {
                    for row in rows {
                        let probabilities = probabilities.row(row);
                        softmax(logits.row(row), probabilities);
                        let choices = row * per_token..(row + 1) * per_token;
                        let experts = experts.range(choices.clone());
                        choose_largest(logits.row(row), experts);
                        weigh(probabilities, experts, normalise, weights.range(choices));
                    }
                },
            );
        });
    }

    /// Replaces `d_logits` by the gradient of what follows the weights, and of `balance` where it counts.
    #[expect(clippy::too_many_arguments, reason = "what the forward pass gave, and how")]
    pub fn route_backward(
        &self,
        probabilities: Matrix<'_, f32>,
        experts: View<'_, u32>,
        weights: View<'_, f32>,
        per_token: usize,
        normalise: bool,
        d_weights: View<'_, f32>,
        balance: Option<Balance>,
        d_logits: MatrixMut<'_, f32>,
    ) {
        let Matrix { rows, columns, .. } = probabilities;
        assert_eq!((d_logits.rows, d_logits.columns), (rows, columns), "logits of experts");
        assert_eq!((experts.len(), weights.len()), (rows * per_token, rows * per_token), "chosen experts");
        assert_eq!(d_weights.len(), rows * per_token, "weights of chosen experts");
        let d_logits = d_logits.into_shared();
        let (experts, weights, d_weights) = (experts.host(), weights.host(), d_weights.host());
        self.time(Part::Memory, || {
            self.partial_sums.with(columns, |shares| {
                share_of_tokens(experts, rows, shares);
                let pressure =
                    balance.map_or(0.0, |balance| balance.coefficient * columns as f32 / rows as f32);
                let shares = &*shares;
                self.in_rows(
                    rows,
                    columns,
                    #[inline(always)]
                    |rows| {
                        for row in rows {
                            let choices = row * per_token..(row + 1) * per_token;
                            let (probabilities, d) = (probabilities.row(row), d_logits.row(row));
                            for (d, share) in d.iter_mut().zip(shares) {
                                *d = pressure * share;
                            }
                            let (weights, d_weights) =
                                (&weights[choices.clone()], &d_weights[choices.clone()]);
                            add_d_probabilities(
                                probabilities,
                                &experts[choices],
                                weights,
                                d_weights,
                                normalise,
                                d,
                            );
                            softmax_backward(probabilities, d);
                        }
                    },
                );
            });
        });
    }

    /// The load-balancing loss of Switch Transformers in Hugging Face's form, without its coefficient: experts times the sum, over
    /// experts, of choices per token times mean probability. It is `per_token` where all are equally busy.
    pub fn balance_loss(
        &self,
        probabilities: Matrix<'_, f32>,
        experts: View<'_, u32>,
        per_token: usize,
    ) -> f32 {
        let Matrix { rows, columns, .. } = probabilities;
        assert_eq!(experts.len(), rows * per_token, "chosen experts");
        self.time(Part::Memory, || {
            self.partial_sums.with(columns, |shares| {
                share_of_tokens(experts.host(), rows, shares);
                let shares = &*shares;
                let products = self.sum_of_rows(
                    rows,
                    #[inline(always)]
                    |row| sum2(shares, probabilities.row(row), product),
                );
                (products * columns as f64 / rows.max(1) as f64) as f32
            })
        })
    }
}

#[inline(always)]
fn softmax(logits: &[f32], probabilities: &mut [f32]) {
    let most = largest(logits);
    for (probability, logit) in probabilities.iter_mut().zip(logits) {
        *probability = exp(logit - most);
    }
    let inverse = 1.0 / sum(probabilities, itself);
    probabilities.iter_mut().for_each(
        #[inline(always)]
        |power| *power *= inverse,
    );
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

/// Choices of each expert over the number of tokens.
fn share_of_tokens(experts: &[u32], tokens: usize, shares: &mut [f32]) {
    shares.fill(0.0);
    for expert in experts {
        shares[*expert as usize] += 1.0;
    }
    shares.iter_mut().for_each(|share| *share /= tokens as f32);
}

#[inline(always)]
fn add_d_probabilities(
    probabilities: &[f32],
    experts: &[u32],
    weights: &[f32],
    d_weights: &[f32],
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

#[cfg(test)]
mod tests;
