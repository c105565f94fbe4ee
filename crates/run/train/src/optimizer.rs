//! AdamW's settings for a step: the learning rate, and the clipping of the whole gradient by its norm.

use bedplate_kernels::AdamW;

use crate::OptimizerConfig;

/// The step's settings, as the operator takes them. Steps count from 0.
pub(crate) fn adamw(config: &OptimizerConfig, learning_rate: f64, step: u64, gradient_scale: f64) -> AdamW {
    AdamW {
        learning_rate,
        beta1: config.beta1,
        beta2: config.beta2,
        epsilon: config.epsilon,
        weight_decay: config.weight_decay,
        step: step + 1,
        gradient_scale: gradient_scale as f32,
    }
}

/// What the gradient is multiplied by so that its norm is at most `clip`.
pub(crate) fn clip_scale(norm: f64, clip: f64) -> f64 {
    if clip > 0.0 { (clip / (norm + 1e-6)).min(1.0) } else { 1.0 }
}
