//! Fresh weights from a seed.
//!
//! A number depends only on the seed, the name of its tensor and its place in the whole tensor: the same seed gives the same
//! network however it is cut over ranks and stages, on any number of threads.

use bedplate_kernels::{Device, Element};
use bedplate_random::mix;

use crate::table::TensorKind;
use crate::{Network, Weights};

impl Network {
    /// Weights of matrices are normal around zero with the deviation of the configuration, those whose output is added to
    /// the residual stream narrower by the square root of twice the layers; norms are one and biases zero.
    pub fn initialise<E: Element>(&self, device: &Device, seed: u64, weights: &mut Weights<E>) {
        let deviation = self.architecture().numerics.initial_deviation;
        let narrower = deviation / (2.0 * self.layer_count() as f64).sqrt();
        for (index, block) in self.blocks().iter().enumerate() {
            if !weights.has_block(index) {
                continue;
            }
            for tensor in &block.tensors {
                let deviation = match tensor.kind {
                    TensorKind::Norm | TensorKind::Bias => {
                        let one = 1.0 - self.architecture().numerics.norm_offset;
                        let value = if tensor.kind == TensorKind::Norm { one } else { 0.0 };
                        device.fill(weights.block_mut(index).range(tensor.range.clone()), value);
                        continue;
                    }
                    TensorKind::Embedding | TensorKind::Matrix => deviation,
                    TensorKind::Residual => narrower,
                };
                let (key, mut at) = (key(seed, &tensor.name), tensor.range.start);
                for run in tensor.runs() {
                    let to = weights.block_mut(index).range(at..at + run.len());
                    device.fill_normal(to, key, run.start, deviation);
                    at += run.len();
                }
            }
        }
    }
}

/// FNV-1a over the name, started from the seed.
fn key(seed: u64, name: &str) -> u64 {
    let start = mix(seed ^ 0xcbf2_9ce4_8422_2325);
    name.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_normal_and_differ_by_name_and_seed() {
        let device = Device::cpu(2);
        let draw = |seed, name| -> Vec<f32> {
            let mut numbers = vec![0.0; 20_000];
            let mut buffer = device.zeros::<f32>(numbers.len());
            device.fill_normal(buffer.view_mut(), key(seed, name), 0, 1.0);
            device.read(buffer.view(), &mut numbers);
            numbers
        };
        let numbers = draw(1, "a");
        let mean = numbers.iter().sum::<f32>() / 20_000.0;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 20_000.0;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "mean {mean}, variance {variance}");
        assert_eq!(numbers, draw(1, "a"));
        assert_ne!(numbers, draw(2, "a"));
        assert_ne!(numbers, draw(1, "b"));
    }
}
