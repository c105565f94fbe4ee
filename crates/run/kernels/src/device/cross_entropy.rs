//! The loss of a language model: cross-entropy of the softmax of its logits, in nats.
//!
//! Logits of a large vocabulary are the largest matrix of a step, so they exist for a few rows at a time only:
//! [`Device::linear_cross_entropy`] computes them, their loss and their gradient, and goes on with the next rows.

use crate::{Device, Element, Matrix, MatrixMut, Put, View, ViewMut};

/// A target that has no loss: padding, or a prompt that is not trained on.
pub const IGNORED: u32 = u32::MAX;

/// Where the gradients of the last linear layer go.
pub struct HeadGradients<'a, E> {
    /// Replaced.
    pub d_x: MatrixMut<'a, E>,
    /// Added to; absent where the layer is frozen.
    pub d_weight: Option<ViewMut<'a, f32>>,
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
        in_room!(self, Memory, cross_entropy(logits, targets, scale, losses));
    }

    /// Loss of the logits `x weight^T`, as [`cross_entropy`](Device::cross_entropy) has it, and gradients where they are
    /// wanted. The workspace holds the logits of some rows: a multiple of the vocabulary, as far as it is used.
    #[expect(clippy::too_many_arguments, reason = "a linear layer and a loss in one")]
    pub fn linear_cross_entropy<E: Element>(
        &self,
        x: Matrix<'_, E>,
        weight: View<'_, E>,
        targets: View<'_, u32>,
        scale: f32,
        mut losses: ViewMut<'_, f32>,
        mut gradients: Option<HeadGradients<'_, E>>,
        mut workspace: ViewMut<'_, f32>,
    ) {
        assert_eq!([targets.len(), losses.len()], [x.rows; 2], "a target and a loss for each row");
        let vocabulary = weight.len() / x.columns.max(1);
        let rows_at_once = workspace.len() / vocabulary.max(1);
        assert!(rows_at_once > 0, "the workspace holds {} logits of {vocabulary}", workspace.len());
        for start in (0..x.rows).step_by(rows_at_once) {
            let rows = start..(start + rows_at_once).min(x.rows);
            let (some_x, some_targets) = (x.rows(rows.clone()), targets.range(rows.clone()));
            let logits = workspace.reborrow().range(0..rows.len() * vocabulary);
            let mut logits = logits.matrix(rows.len(), vocabulary);
            self.linear(some_x, weight, None, None, logits.reborrow());
            let scale = gradients.is_some().then_some(scale);
            self.cross_entropy(logits.reborrow(), some_targets, scale, losses.reborrow().range(rows.clone()));
            if let Some(HeadGradients { d_x, d_weight }) = &mut gradients {
                let d_logits = logits.matrix();
                self.linear_backward_input(d_logits, weight, Put::Replace, d_x.reborrow().rows(rows));
                if let Some(d_weight) = d_weight {
                    self.linear_backward_weight(d_logits, some_x, d_weight.reborrow(), None);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
