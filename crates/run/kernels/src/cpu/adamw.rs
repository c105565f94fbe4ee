//! AdamW, in one pass over weights and moments.

use super::Cpu;
use super::stream::CHUNK;
use crate::{AdamW, Bf16, View, ViewMut};

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

impl Factors {
    fn new(step: &AdamW) -> Self {
        let correction = |beta: f64| 1.0 - beta.powf(step.step as f64);
        Self {
            gradient: step.gradient_scale,
            decay: (1.0 - step.learning_rate * step.weight_decay) as f32,
            first: (1.0 - step.beta1) as f32,
            kept_second: step.beta2 as f32,
            second: (1.0 - step.beta2) as f32,
            rate: (step.learning_rate / correction(step.beta1)) as f32,
            inverse_root: (1.0 / correction(step.beta2).sqrt()) as f32,
            epsilon: step.epsilon as f32,
        }
    }

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

impl Cpu {
    pub(crate) fn adamw(
        &self,
        step: &AdamW,
        weights: ViewMut<'_, f32>,
        gradient: View<'_, f32>,
        moments: [ViewMut<'_, f32>; 2],
        copy: Option<ViewMut<'_, Bf16>>,
    ) {
        let (factors, len, gradient) = (Factors::new(step), weights.len(), self.slice(gradient));
        let [first, second] = moments.map(|moment| self.shared(moment, 1));
        let state = (self.shared(weights, 1), first, second);
        match copy {
            None => inlined!(self.in_chunks(len, CHUNK, state, |range, (weights, first, second)| {
                let moments = first.iter_mut().zip(second);
                for ((weight, gradient), (first, second)) in
                    weights.iter_mut().zip(&gradient[range]).zip(moments)
                {
                    *weight = factors.update(*weight, *gradient, first, second);
                }
            })),
            Some(copy) => inlined!(self.in_chunks(
                len,
                CHUNK,
                (state, self.shared(copy, 1)),
                |range, ((weights, first, second), copy)| {
                    let moments = first.iter_mut().zip(second);
                    let elements = weights.iter_mut().zip(&gradient[range]).zip(moments);
                    for (((weight, gradient), (first, second)), copy) in elements.zip(copy) {
                        *weight = factors.update(*weight, *gradient, first, second);
                        *copy = Bf16::from_f32(*weight);
                    }
                }
            )),
        }
    }
}
