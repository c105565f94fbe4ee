//! AdamW over all blocks: moments beside the master weights, decay for matrices only, clipping by the norm of the whole
//! gradient.

use std::ops::Range;

use bedplate_kernels::{AdamW, Device};
use bedplate_network::{Block, Network, Weights};

use crate::OptimizerConfig;
use crate::parameters::Parameters;

pub struct Optimizer {
    pub(crate) first: Weights<f32>,
    pub(crate) second: Weights<f32>,
    /// Per block: stretches of its buffer that are decayed alike.
    stretches: Vec<Vec<Stretch>>,
}

struct Stretch {
    range: Range<usize>,
    is_decayed: bool,
}

impl Optimizer {
    pub fn new(network: &Network) -> Self {
        Self {
            first: Weights::zeros(network),
            second: Weights::zeros(network),
            stretches: network.blocks().iter().map(stretches).collect(),
        }
    }

    pub fn bytes(&self) -> usize {
        self.first.bytes() + self.second.bytes()
    }

    /// One step. `gradient_scale` multiplies the gradient first.
    pub fn step(
        &mut self,
        device: &Device,
        step: &AdamW,
        gradients: &Weights<f32>,
        parameters: &mut Parameters,
    ) {
        for (index, stretches) in self.stretches.iter().enumerate() {
            for Stretch { range, is_decayed } in stretches {
                let weight_decay = if *is_decayed { step.weight_decay } else { 0.0 };
                let (weights, copy) = parameters.block_mut(index);
                device.adamw(
                    &AdamW { weight_decay, ..*step },
                    weights.into_range(range.clone()),
                    gradients.block(index).range(range.clone()),
                    self.first.block_mut(index).into_range(range.clone()),
                    self.second.block_mut(index).into_range(range.clone()),
                    copy.map(|copy| copy.into_range(range.clone())),
                );
            }
        }
    }
}

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

/// Neighbouring tensors that are decayed alike become one stretch, the padding between them included: it is zero and
/// stays so.
fn stretches(block: &Block) -> Vec<Stretch> {
    let mut found: Vec<Stretch> = Vec::new();
    for tensor in &block.tensors {
        let is_decayed = tensor.kind.is_matrix();
        match found.last_mut() {
            Some(last) if last.is_decayed == is_decayed => last.range.end = tensor.range.end,
            _ => found.push(Stretch { range: tensor.range.clone(), is_decayed }),
        }
    }
    found
}

/// The norm of all gradients together.
pub(crate) fn norm(device: &Device, gradients: &Weights<f32>, blocks: usize) -> f64 {
    (0..blocks).map(|index| device.sum_of_squares(gradients.block(index))).sum::<f64>().sqrt()
}

/// What the gradient is multiplied by so that its norm is at most `clip`.
pub(crate) fn clip_scale(norm: f64, clip: f64) -> f64 {
    if clip > 0.0 { (clip / (norm + 1e-6)).min(1.0) } else { 1.0 }
}
