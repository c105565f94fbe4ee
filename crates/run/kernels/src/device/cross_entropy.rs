//! The loss of a language model: cross-entropy of the softmax of its logits, in nats.
//!
//! Logits of a large vocabulary are the largest matrix of a step, so they exist for a few rows at a time only:
//! [`Device::linear_cross_entropy`] computes them, their loss and their gradient, and goes on with the next rows.

use bedplate_breakdown::Part;

use super::Backend;
use crate::{Accumulate, Device, Element, Matrix, MatrixMut, View, ViewMut};

/// A target that has no loss: padding, or a prompt that is not trained on.
pub const IGNORED: u32 = u32::MAX;

/// Where the gradients of the last linear layer go.
pub struct HeadGradients<'a, E> {
    /// Replaced.
    pub d_x: MatrixMut<'a, E>,
    /// Added to; absent where the layer is frozen.
    pub d_weight: Option<ViewMut<'a, f32>>,
}

/// How logits become a loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossRule {
    /// What the gradient is multiplied by.
    pub scale: f32,
    /// What logits are bent to stay below, by a hyperbolic tangent (Gemma 2); 0 leaves them as they are. On the processor only.
    pub cap: f32,
}

impl From<f32> for LossRule {
    fn from(scale: f32) -> Self {
        Self { scale, cap: 0.0 }
    }
}

pub(crate) struct CrossEntropy<'a> {
    pub(crate) cap: f32,
    pub(crate) logits: MatrixMut<'a, f32>,
    pub(crate) targets: View<'a, u32>,
    pub(crate) scale: Option<f32>,
    pub(crate) losses: ViewMut<'a, f32>,
}

impl Device {
    /// `losses[t]` is the loss of row `t`, 0 where its target is [`IGNORED`]. The logits are replaced by their gradient,
    /// `scale` times that of the sum of losses; without a scale they hold anything afterwards. Panics at a target
    /// beyond the vocabulary.
    pub fn cross_entropy(
        &self,
        logits: MatrixMut<'_, f32>,
        targets: View<'_, u32>,
        scale: Option<f32>,
        losses: ViewMut<'_, f32>,
    ) {
        assert_eq!([targets.len(), losses.len()], [logits.rows; 2], "a target and a loss for each row");
        self.loss(CrossEntropy { cap: 0.0, logits, targets, scale, losses });
    }

    fn loss(&self, loss: CrossEntropy<'_>) {
        assert!(loss.cap == 0.0 || self.is_cpu(), "a GPU has no loss of bent logits");
        on_backend!(self, Memory, cross_entropy(loss));
    }

    /// Bends logits in place, so that they stay below `cap`.
    pub fn bend_logits(&self, cap: f32, logits: ViewMut<'_, f32>) {
        match &self.backend {
            Backend::Cpu(cpu) => cpu.time(Part::Memory, || cpu.bend_logits(cap, logits)),
            Backend::Cuda(_) => unreachable!("a GPU does not bend logits"),
        }
    }

    /// Loss of the logits `x weight^T`, as [`cross_entropy`](Device::cross_entropy) has it, and gradients where they are
    /// wanted. The workspace holds the logits of some rows: a multiple of the vocabulary, as far as it is used.
    #[expect(clippy::too_many_arguments, reason = "a linear layer and a loss in one")]
    pub fn linear_cross_entropy<E: Element>(
        &self,
        x: Matrix<'_, E>,
        weight: View<'_, E>,
        targets: View<'_, u32>,
        rule: impl Into<LossRule>,
        mut losses: ViewMut<'_, f32>,
        mut gradients: Option<HeadGradients<'_, E>>,
        mut workspace: ViewMut<'_, f32>,
    ) {
        assert_eq!([targets.len(), losses.len()], [x.rows; 2], "a target and a loss for each row");
        let LossRule { scale, cap } = rule.into();
        let vocabulary = weight.len() / x.columns.max(1);
        let rows_at_once = workspace.len() / vocabulary.max(1);
        assert!(rows_at_once > 0, "the workspace holds {} logits of {vocabulary}", workspace.len());
        for start in (0..x.rows).step_by(rows_at_once) {
            let rows = start..(start + rows_at_once).min(x.rows);
            let (some_x, some_targets) = (x.rows(rows.clone()), targets.range(rows.clone()));
            let logits = workspace.reborrow().range(0..rows.len() * vocabulary);
            let mut logits = logits.matrix(rows.len(), vocabulary);
            self.linear(some_x, weight, None, None, logits.reborrow());
            let some_losses = losses.reborrow().range(rows.clone());
            let Some(HeadGradients { d_x, d_weight }) = &mut gradients else {
                self.loss(CrossEntropy {
                    cap,
                    logits,
                    targets: some_targets,
                    scale: None,
                    losses: some_losses,
                });
                continue;
            };
            let some = HeadGradients {
                d_x: d_x.reborrow().rows(rows),
                d_weight: d_weight.as_mut().map(ViewMut::reborrow),
            };
            match &self.backend {
                Backend::Cuda(cuda) if size_of::<E>() == 2 => {
                    let loss = CrossEntropy {
                        cap,
                        logits: logits.reborrow(),
                        targets: some_targets,
                        scale: Some(scale),
                        losses: some_losses,
                    };
                    cuda.time(Part::Memory, || cuda.cross_entropy_narrow(loss));
                    self.head_backward(logits.matrix().halves::<E>(), some_x, weight, some);
                }
                _ => {
                    self.loss(CrossEntropy {
                        cap,
                        logits: logits.reborrow(),
                        targets: some_targets,
                        scale: Some(scale),
                        losses: some_losses,
                    });
                    self.head_backward(logits.matrix(), some_x, weight, some);
                }
            }
        }
    }

    fn head_backward<D: Element, E: Element>(
        &self,
        d_logits: Matrix<'_, D>,
        x: Matrix<'_, E>,
        weight: View<'_, E>,
        gradients: HeadGradients<'_, E>,
    ) {
        self.linear_backward_input(d_logits, weight, Accumulate::Replace, gradients.d_x);
        if let Some(d_weight) = gradients.d_weight {
            self.linear_backward_weight(d_logits, x, d_weight, None);
        }
    }
}

#[cfg(test)]
mod tests;
