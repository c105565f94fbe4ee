//! Fresh weights from a seed.
//!
//! A number depends on the seed, the name of its tensor and its place in it, and on nothing else: the same seed gives the
//! same network however it is cut or how many threads there are.

use bedplate_kernels::{Device, Element};
use bedplate_random::{mix, nth};

use crate::table::Kind;
use crate::{Network, Weights};

impl Network {
    /// Weights of matrices are normal around zero with the deviation of the configuration, those whose output is added to
    /// the residual stream narrower by the square root of twice the layers; norms are one and biases zero.
    pub fn initialise<E: Element>(&self, device: &Device, seed: u64, weights: &mut Weights<E>) {
        let deviation = self.architecture().numerics.initial_deviation;
        let narrower = deviation / (2.0 * self.layer_count() as f64).sqrt();
        for (index, block) in self.blocks().iter().enumerate() {
            for tensor in &block.tensors {
                let key = key(seed, &tensor.name);
                let value = |place: usize| match tensor.kind {
                    Kind::Norm => 1.0,
                    Kind::Bias => 0.0,
                    Kind::Embedding | Kind::Matrix => deviation * normal(key, place as u64),
                    Kind::Residual => narrower * normal(key, place as u64),
                };
                let values: Vec<E> =
                    (0..tensor.range.len()).map(|place| E::narrow(value(place) as f32)).collect();
                device.write(weights.block_mut(index).into_range(tensor.range.clone()), &values);
            }
        }
    }
}

/// FNV-1a over the name, started from the seed.
fn key(seed: u64, name: &str) -> u64 {
    let start = mix(seed ^ 0xcbf2_9ce4_8422_2325);
    name.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The `place`-th number of a normal distribution, by Box and Muller.
fn normal(key: u64, place: u64) -> f64 {
    let bits = |offset: u64| nth(key, 2 * place + offset);
    let uniform = |bits: u64| ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    (-2.0 * uniform(bits(0)).ln()).sqrt() * (std::f64::consts::TAU * uniform(bits(1))).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_normal_and_differ_by_name_and_seed() {
        let draw =
            |seed, name| -> Vec<f64> { (0..20_000).map(|place| normal(key(seed, name), place)).collect() };
        let numbers = draw(1, "a");
        let mean = numbers.iter().sum::<f64>() / 20_000.0;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "mean {mean}, variance {variance}");
        assert_eq!(numbers, draw(1, "a"));
        assert_ne!(numbers, draw(2, "a"));
        assert_ne!(numbers, draw(1, "b"));
    }
}
