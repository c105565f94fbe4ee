//! Cross-entropy of the softmax of logits, and its gradient in their place.

use super::Cpu;
use super::attention::bend;
use super::elementary::exp;
use super::stream::CHUNK;
use super::sum::{largest, replace_and_sum, sum};
use crate::device::CrossEntropy;
use crate::{IGNORED, ViewMut};

impl Cpu {
    pub(crate) fn cross_entropy(&self, loss: CrossEntropy<'_>) {
        let CrossEntropy { cap, logits, targets, scale, losses } = loss;
        let (targets, shape) = (self.slice(targets), logits.shape());
        let outputs = (self.rows_mut(logits), self.shared(losses, 1));
        inlined!(self.in_rows(shape, outputs, |row, (logits, loss)| {
            loss[0] = match targets[row] {
                IGNORED => {
                    logits.fill(0.0);
                    0.0
                }
                target if cap > 0.0 => bent(logits, target, scale, cap),
                target => replace_by_gradient(logits, target, scale),
            };
        }));
    }
}

impl Cpu {
    pub(crate) fn bend_logits(&self, cap: f32, logits: ViewMut<'_, f32>) {
        inlined!(self.in_chunks(logits.len(), CHUNK, self.shared(logits, 1), |_, logits| {
            bend(logits, 1.0, cap);
        }));
    }
}

/// The same of logits that are bent first; exponentials are made twice, as the bent logits are needed for their slopes.
#[inline(always)]
fn bent(logits: &mut [f32], target: u32, scale: Option<f32>, cap: f32) -> f32 {
    let target = find(logits, target);
    bend(logits, 1.0, cap);
    let most = largest(logits);
    let aimed = logits[target] - most;
    let total = inlined!(sum(logits, |logit| exp(logit - most)));
    if let Some(scale) = scale {
        let slope = |bent: f32| 1.0 - (bent / cap) * (bent / cap);
        let (factor, of_target) = (scale / total, scale * slope(logits[target]));
        for logit in logits.iter_mut() {
            *logit = factor * exp(*logit - most) * slope(*logit);
        }
        logits[target] -= of_target;
    }
    total.ln() - aimed
}

#[inline(always)]
fn find(logits: &[f32], target: u32) -> usize {
    let count = logits.len();
    assert!((target as usize) < count, "target {target} is not among the {count} of the vocabulary");
    target as usize
}

/// Gives the loss of one row.
#[inline(always)]
fn replace_by_gradient(logits: &mut [f32], target: u32, scale: Option<f32>) -> f32 {
    let target = find(logits, target);
    let most = largest(logits);
    let aimed = logits[target] - most;
    let total = inlined!(replace_and_sum(logits, |logit| exp(logit - most)));
    if let Some(scale) = scale {
        let factor = scale / total;
        for power in logits.iter_mut() {
            *power *= factor;
        }
        logits[target] -= scale;
    }
    total.ln() - aimed
}
