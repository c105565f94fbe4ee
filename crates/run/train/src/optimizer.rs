//! AdamW: its settings for a step, with the clipping of the whole gradient by its norm, and the step itself over what a rank owns.

use std::ops::Range;

use bedplate_kernels::{AdamW, Bf16, Device, View, ViewMut};

use crate::{LearningRate, OptimizerConfig, TrainConfig};

/// How a run's optimizer steps.
pub(crate) struct Steps {
    pub(crate) config: OptimizerConfig,
    pub(crate) rate: LearningRate,
    /// What gradients are multiplied by before anything else.
    pub(crate) factor: f32,
}

impl Steps {
    pub(crate) fn of(config: &TrainConfig) -> Self {
        let factor = config.adapter.as_ref().map_or(1.0, |adapter| adapter.scale() as f32);
        Self { config: config.optimizer.clone(), rate: config.learning_rate(), factor }
    }

    /// The settings of the step after `done` others, with a gradient of this norm.
    pub(crate) fn after(&self, done: u64, norm: f64) -> AdamW {
        let Self { config, rate, factor } = self;
        AdamW {
            learning_rate: rate.at(done),
            beta1: config.beta1,
            beta2: config.beta2,
            epsilon: config.epsilon,
            weight_decay: config.weight_decay,
            step: done + 1,
            gradient_scale: clip_scale(norm, config.clip) as f32 * factor,
        }
    }
}

/// What the gradient is multiplied by so that its norm is at most `clip`.
fn clip_scale(norm: f64, clip: f64) -> f64 {
    if clip > 0.0 { (clip / (norm + 1e-6)).min(1.0) } else { 1.0 }
}

/// Numbers that are decayed alike, counted from the start of what is learned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) range: Range<usize>,
    pub(crate) is_decayed: bool,
}

/// One step over master weights and both moments, and over the rounded copy of the weights where there is one.
pub(crate) fn learn(
    device: &Device,
    step: &AdamW,
    stretches: &[Stretch],
    gradient: View<'_, f32>,
    [mut weights, mut first, mut second]: [ViewMut<'_, f32>; 3],
    mut copy: Option<ViewMut<'_, Bf16>>,
) {
    for Stretch { range, is_decayed } in stretches {
        let weight_decay = if *is_decayed { step.weight_decay } else { 0.0 };
        let [weights, first, second] =
            [&mut weights, &mut first, &mut second].map(|part| part.reborrow().range(range.clone()));
        let copy = copy.as_mut().map(|copy| copy.reborrow().range(range.clone()));
        let step = AdamW { weight_decay, ..*step };
        device.adamw(&step, weights, gradient.range(range.clone()), first, second, copy);
    }
}
