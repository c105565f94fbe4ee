//! AdamW, in one pass over weights and moments.

use super::Cuda;
use super::driver::Argument::Words;
use super::kernel::{THREADS, address, blocks_of, two, word};
use super::source::{KernelFormat, KernelSource::Pointwise};
use super::stream::is_wide;
use crate::{AdamW, Bf16, View, ViewMut};

impl Cuda {
    pub(crate) fn adamw(
        &self,
        step: &AdamW,
        weights: ViewMut<'_, f32>,
        gradient: View<'_, f32>,
        [first, second]: [ViewMut<'_, f32>; 2],
        copy: Option<ViewMut<'_, Bf16>>,
    ) {
        let (factors, len) = (factors(step), weights.len());
        let places = [self.at_mut(&weights), self.at(gradient), self.at_mut(&first), self.at_mut(&second)];
        let copy = copy.as_ref().map_or(0, |copy| self.at_mut(copy));
        let wide = is_wide(&places) && copy.is_multiple_of(8) && len.is_multiple_of(4);
        let [weights, gradient, first, second] = places.map(address);
        let count = word(if wide { len / 4 } else { len });
        let arguments = [Words(&factors), weights, gradient, first, second, address(copy), count];
        let formats = [KernelFormat::F32; 3];
        if wide {
            let launch = blocks_of((len / 4).div_ceil(THREADS), THREADS);
            self.kernel(Pointwise, formats, "adamw_wide").launch(launch, &arguments);
        } else {
            self.kernel(Pointwise, formats, "adamw").over(len.div_ceil(4), &arguments);
        }
    }
}

/// What all weights of a step share, as the kernel's struct has it.
fn factors(step: &AdamW) -> [u64; 4] {
    let correction = |beta: f64| 1.0 - beta.powf(step.step as f64);
    let pair = |first: f64, second: f64| two((first as f32).to_bits(), (second as f32).to_bits());
    let decay = 1.0 - step.learning_rate * step.weight_decay;
    [
        pair(f64::from(step.gradient_scale), decay),
        pair(1.0 - step.beta1, step.beta2),
        pair(1.0 - step.beta2, step.learning_rate / correction(step.beta1)),
        pair(1.0 / correction(step.beta2).sqrt(), step.epsilon),
    ]
}
