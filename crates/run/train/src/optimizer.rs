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
    pub(crate) range: Range<usize>,
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

impl Owned {
    /// Where in the block a part of the range lies.
    pub(crate) fn in_block(&self, part: Range<usize>) -> Range<usize> {
        self.range.start + part.start..self.range.start + part.end
    }
}

impl Optimizer {
    /// Owns everything.
    pub fn new(device: &Device, network: &Network) -> Self {
        let whole = network.blocks().iter().enumerate().map(|(index, block)| (index, 0..block.len));
        Self::of_ranges(device, network, whole)
    }

    /// Owns ranges of blocks, which must not overlap.
    pub fn of_ranges(
        device: &Device,
        network: &Network,
        ranges: impl IntoIterator<Item = (usize, Range<usize>)>,
    ) -> Self {
        let own = |(block, range): (usize, Range<usize>)| Owned {
            block,
            first: device.zeros(range.len()),
            second: device.zeros(range.len()),
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
                    weights.range(range.clone()),
                    gradients.block(*block).range(range.clone()),
                    first.range_mut(moments.clone()),
                    second.range_mut(moments),
                    copy.map(|copy| copy.range(range.clone())),
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

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_diag::Source;
    use bedplate_network::Architecture;

    const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
        "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 64, "max_position_embeddings": 64}"#;

    /// The weights after three steps by optimizers that own `ranges`.
    fn steps(
        network: &Network,
        device: &Device,
        ranges: &[Vec<(usize, Range<usize>)>],
    ) -> (Vec<Vec<f32>>, f64) {
        let (mut parameters, mut gradients) =
            (Parameters::zeros::<f32>(device, network), Weights::<f32>::zeros(device, network));
        network.initialise(device, 1, parameters.master_mut());
        network.initialise(device, 2, &mut gradients);
        let make = |ranges: &Vec<_>| Optimizer::of_ranges(device, network, ranges.clone());
        let mut optimizers: Vec<Optimizer> = ranges.iter().map(make).collect();
        let mut squares = 0.0;
        for step in 1..=3 {
            let step = AdamW {
                learning_rate: 0.01,
                beta1: 0.9,
                beta2: 0.95,
                epsilon: 1e-8,
                weight_decay: 0.1,
                step,
                gradient_scale: 1.0,
            };
            for optimizer in &mut optimizers {
                squares += optimizer.sum_of_squares(device, &gradients);
                optimizer.step(device, &step, &gradients, &mut parameters);
            }
        }
        let read = |index: usize| {
            let mut values = vec![0.0; network.blocks()[index].len];
            device.read(parameters.master().block(index), &mut values);
            values
        };
        ((0..network.blocks().len()).map(read).collect(), squares)
    }

    #[test]
    fn owners_of_ranges_do_together_what_one_owner_of_everything_does() {
        let device = Device::cpu(1);
        let architecture = Architecture::from_config(Source::new("config.json", CONFIG)).unwrap();
        let network = Network::new(&device, architecture, 16).unwrap();
        let blocks = || network.blocks().iter().enumerate();
        let all: Vec<_> = blocks().map(|(index, block)| (index, 0..block.len)).collect();
        // Borders inside tensors, so that stretches are cut too.
        let early: Vec<_> = blocks().map(|(index, block)| (index, 0..block.len / 3)).collect();
        let late: Vec<_> = blocks().map(|(index, block)| (index, block.len / 3..block.len)).collect();
        let ((whole, squares), (parts, of_parts)) =
            (steps(&network, &device, &[all]), steps(&network, &device, &[early.clone(), late]));
        assert!(whole == parts);
        assert!((squares / of_parts - 1.0).abs() < 1e-12, "{squares} {of_parts}");
        let (third, all) =
            (Optimizer::of_ranges(&device, &network, early), Optimizer::new(&device, &network));
        assert!(third.bytes() * 3 <= all.bytes(), "moments exist only for what is owned");
    }
}
