//! AdamW: moments beside the master weights, decay for matrices only, clipping by the norm of the whole gradient.
//!
//! An optimizer owns ranges of blocks, by default everything. Moments exist for its ranges only, and only these are updated; where
//! several share a network, the caller adds up their sums of squares and exchanges what they have updated.

use std::ops::Range;

use bedplate_kernels::{AdamW, Buffer, Device};
use bedplate_network::{Block, Network, Weights};

use crate::OptimizerConfig;
use crate::parameters::Parameters;

pub struct Optimizer {
    pub(crate) owned: Vec<Owned>,
}

/// A range of a block, with the moments of its numbers.
pub(crate) struct Owned {
    pub(crate) block: usize,
    range: Range<usize>,
    pub(crate) first: Buffer<f32>,
    pub(crate) second: Buffer<f32>,
    /// Parts of the range that are decayed alike, by their place in the block.
    stretches: Vec<Stretch>,
}

#[derive(Debug, PartialEq)]
struct Stretch {
    range: Range<usize>,
    is_decayed: bool,
}

impl Optimizer {
    /// Owns everything.
    pub fn new(device: &Device, network: &Network) -> Self {
        let whole = network.blocks().iter().enumerate().map(|(index, block)| (index, 0..block.len));
        Self::of_ranges(device, network, whole)
    }

    /// Owns ranges of blocks, which must not overlap.
    pub fn of_ranges(
        _device: &Device,
        network: &Network,
        ranges: impl IntoIterator<Item = (usize, Range<usize>)>,
    ) -> Self {
        let own = |(block, range): (usize, Range<usize>)| Owned {
            block,
            first: Buffer::zeros(range.len()),
            second: Buffer::zeros(range.len()),
            stretches: stretches(&network.blocks()[block], &range),
            range,
        };
        Self { owned: ranges.into_iter().map(own).collect() }
    }

    pub fn bytes(&self) -> usize {
        self.owned.iter().map(|owned| owned.first.bytes() + owned.second.bytes()).sum()
    }

    /// The square of the norm of the gradients of what is owned.
    pub fn sum_of_squares(&self, device: &Device, gradients: &Weights<f32>) -> f64 {
        let squares =
            |owned: &Owned| device.sum_of_squares(gradients.block(owned.block).range(owned.range.clone()));
        self.owned.iter().map(squares).sum()
    }

    /// One step. `gradient_scale` multiplies the gradient first.
    pub fn step(
        &mut self,
        device: &Device,
        step: &AdamW,
        gradients: &Weights<f32>,
        parameters: &mut Parameters,
    ) {
        for Owned { block, range: owned, first, second, stretches } in &mut self.owned {
            for Stretch { range, is_decayed } in stretches {
                let weight_decay = if *is_decayed { step.weight_decay } else { 0.0 };
                let (weights, copy) = parameters.block_mut(*block);
                let moments = range.start - owned.start..range.end - owned.start;
                device.adamw(
                    &AdamW { weight_decay, ..*step },
                    weights.into_range(range.clone()),
                    gradients.block(*block).range(range.clone()),
                    first.range_mut(moments.clone()),
                    second.range_mut(moments),
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
fn stretches(block: &Block, owned: &Range<usize>) -> Vec<Stretch> {
    let mut found: Vec<Stretch> = Vec::new();
    for tensor in &block.tensors {
        let range = tensor.range.start.max(owned.start)..tensor.range.end.min(owned.end);
        let is_decayed = tensor.kind.is_matrix();
        match found.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.is_decayed == is_decayed => last.range.end = range.end,
            _ => found.push(Stretch { range, is_decayed }),
        }
    }
    found
}

/// What the gradient is multiplied by so that its norm is at most `clip`.
pub(crate) fn clip_scale(norm: f64, clip: f64) -> f64 {
    if clip > 0.0 { (clip / (norm + 1e-6)).min(1.0) } else { 1.0 }
}
