//! AdamW with decoupled weight decay, in the arithmetic of `torch.optim.AdamW`.

use crate::{Bf16, Device, View, ViewMut};

/// One step of the optimizer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    pub learning_rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    pub weight_decay: f64,
    /// The number of this step; the first is 1.
    pub step: u64,
    /// What gradients are multiplied by first: clipping and averaging in one.
    pub gradient_scale: f32,
}

impl Device {
    /// Moves `weights` by one step and both moments with them; `copy` gets the new weights, rounded. Panics when lengths differ.
    pub fn adamw(
        &self,
        step: &AdamW,
        weights: ViewMut<'_, f32>,
        gradient: View<'_, f32>,
        first: ViewMut<'_, f32>,
        second: ViewMut<'_, f32>,
        copy: Option<ViewMut<'_, Bf16>>,
    ) {
        let len = weights.len();
        assert_eq!([gradient.len(), first.len(), second.len()], [len; 3], "the state of AdamW");
        assert_eq!(copy.as_ref().map_or(len, ViewMut::len), len, "the copy of the weights");
        on_backend!(self, Optimizer, adamw(step, weights, gradient, [first, second], copy));
    }
}

#[cfg(test)]
mod tests;
