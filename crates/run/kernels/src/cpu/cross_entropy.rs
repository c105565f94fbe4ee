//! Cross-entropy of the softmax of logits, and its gradient in their place.

use super::Cpu;
use super::elementary::exp;
use super::sum::{largest, replace_and_sum};
use crate::IGNORED;
use crate::device::CrossEntropy;

impl Cpu {
    pub(crate) fn cross_entropy(&self, loss: CrossEntropy<'_>) {
        let CrossEntropy { logits, targets, scale, losses } = loss;
        let (targets, shape) = (self.slice(targets), logits.shape());
        let outputs = (self.rows_mut(logits), self.shared(losses, 1));
        inlined!(self.in_rows(shape, outputs, |row, (logits, loss)| {
            loss[0] = match targets[row] {
                IGNORED => {
                    logits.fill(0.0);
                    0.0
                }
                target => replace_by_gradient(logits, target, scale),
            };
        }));
    }
}

/// Gives the loss of one row.
#[inline(always)]
fn replace_by_gradient(logits: &mut [f32], target: u32, scale: Option<f32>) -> f32 {
    assert!(
        (target as usize) < logits.len(),
        "target {target} is not among the {} of the vocabulary",
        logits.len()
    );
    let target = target as usize;
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
