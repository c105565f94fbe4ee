//! AdamW with decoupled weight decay, in the arithmetic of `torch.optim.AdamW`.

use bedplate_breakdown::Part;

use crate::cpu::stream::{CHUNK, SharedMut};
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

/// What all weights of a step share.
#[derive(Clone, Copy)]
struct Factors {
    gradient: f32,
    decay: f32,
    first: f32,
    kept_second: f32,
    second: f32,
    rate: f32,
    inverse_root: f32,
    epsilon: f32,
}

impl AdamW {
    fn factors(&self) -> Factors {
        let correction = |beta: f64| 1.0 - beta.powf(self.step as f64);
        Factors {
            gradient: self.gradient_scale,
            decay: (1.0 - self.learning_rate * self.weight_decay) as f32,
            first: (1.0 - self.beta1) as f32,
            kept_second: self.beta2 as f32,
            second: (1.0 - self.beta2) as f32,
            rate: (self.learning_rate / correction(self.beta1)) as f32,
            inverse_root: (1.0 / correction(self.beta2).sqrt()) as f32,
            epsilon: self.epsilon as f32,
        }
    }
}

impl Factors {
    /// Gives the new weight.
    #[inline(always)]
    fn update(self, weight: f32, gradient: f32, first: &mut f32, second: &mut f32) -> f32 {
        let gradient = gradient * self.gradient;
        *first += (gradient - *first) * self.first;
        *second = *second * self.kept_second + gradient * gradient * self.second;
        let size = second.sqrt() * self.inverse_root + self.epsilon;
        weight * self.decay - self.rate * (*first / size)
    }
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
        assert_eq!((gradient.len(), first.len(), second.len()), (len, len, len), "the state of AdamW");
        assert_eq!(copy.as_ref().map_or(len, ViewMut::len), len, "the copy of the weights");
        let factors = step.factors();
        let (weights, gradient) = (SharedMut::new(weights.into_host()), gradient.host());
        let (first, second) = (SharedMut::new(first.into_host()), SharedMut::new(second.into_host()));
        let copy = copy.map(|copy| SharedMut::new(copy.into_host()));
        self.time(Part::Optimizer, || {
            self.in_chunks(
                len,
                CHUNK,
                #[inline(always)]
                |range| {
                    let weights = weights.range(range.clone());
                    let moments = first.range(range.clone()).iter_mut().zip(second.range(range.clone()));
                    let numbers = weights.iter_mut().zip(&gradient[range.clone()]).zip(moments);
                    match &copy {
                        None => numbers.for_each(
                            #[inline(always)]
                            |((weight, gradient), (first, second))| {
                                *weight = factors.update(*weight, *gradient, first, second);
                            },
                        ),
                        Some(copy) => numbers.zip(copy.range(range)).for_each(
                            #[inline(always)]
                            |(((weight, gradient), (first, second)), copy)| {
                                *weight = factors.update(*weight, *gradient, first, second);
                                *copy = Bf16::from_f32(*weight);
                            },
                        ),
                    }
                },
            );
        });
    }
}

#[cfg(test)]
mod tests;
