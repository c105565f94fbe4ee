//! Layer norm.

use super::Cpu;
use super::sum::{sum, sum2, sum3};
use crate::Element;
use crate::device::{NormBackward, NormForward};

impl Cpu {
    pub(crate) fn layer_norm<E: Element>(&self, norm: NormForward<'_, E>) {
        let NormForward { epsilon, out, statistics, .. } = norm;
        let (x, weight) = (self.rows(norm.x), self.slice(norm.weight));
        let bias = norm.bias.map(|bias| self.slice(bias));
        let outputs = (self.rows_mut(out), self.shared(statistics, 2));
        inlined!(self.in_rows(x.shape(), outputs, |row, (out, statistics)| {
            let (mean, inverse) = statistics_of(x.row(row), epsilon);
            statistics.copy_from_slice(&[mean, inverse]);
            normalise(x.row(row), mean, inverse, weight, bias, out);
        }));
    }

    pub(crate) fn layer_norm_backward<E: Element>(&self, norm: NormBackward<'_, E>) {
        let (d_out, x, mode) = (self.rows(norm.d_out), self.rows(norm.x), norm.mode);
        let (weight, statistics) = (self.slice(norm.weight), self.slice(norm.statistics));
        let totals = [norm.d_weight, norm.d_bias].map(|sums| self.sums(sums));
        let outputs = self.rows_mut(norm.d_x);
        inlined!(self.sum_over_rows(x.rows, outputs, totals, |row, d_x, [weight_sums, bias_sums]| {
            let (d, x) = (d_out.row(row), x.row(row));
            let (mean, inverse) = (statistics[2 * row], statistics[2 * row + 1]);
            add_weight_gradient(d, x, mean, inverse, weight_sums);
            for (sum, d) in bias_sums.iter_mut().zip(d) {
                *sum += d.widen();
            }
            let pull = Pull::new(d, x, weight, mean, inverse);
            for (((to, d), x), w) in d_x.iter_mut().zip(d).zip(x).zip(weight) {
                let direct = d.widen() * w.widen() - pull.even;
                mode.apply(to, direct * inverse - (x.widen() - mean) * pull.outward);
            }
        }));
    }
}

/// Mean and inverse deviation.
#[inline(always)]
fn statistics_of<E: Element>(x: &[E], epsilon: f32) -> (f32, f32) {
    let len = x.len() as f32;
    let mean = inlined!(sum(x, |x| x.widen())) / len;
    let squares = inlined!(sum(x, |x| (x.widen() - mean) * (x.widen() - mean)));
    (mean, 1.0 / (squares / len + epsilon).sqrt())
}

#[inline(always)]
fn normalise<E: Element>(x: &[E], mean: f32, inverse: f32, weight: &[E], bias: Option<&[E]>, out: &mut [E]) {
    match bias {
        None => {
            for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                *out = E::narrow((x.widen() - mean) * inverse * weight.widen());
            }
        }
        Some(bias) => {
            for (((out, x), weight), bias) in out.iter_mut().zip(x).zip(weight).zip(bias) {
                *out = E::narrow((x.widen() - mean) * inverse * weight.widen() + bias.widen());
            }
        }
    }
}

#[inline(always)]
fn add_weight_gradient<E: Element>(d: &[E], x: &[E], mean: f32, inverse: f32, sums: &mut [f32]) {
    for ((sum, d), x) in sums.iter_mut().zip(d).zip(x) {
        *sum += d.widen() * ((x.widen() - mean) * inverse);
    }
}

/// What goes into the gradient of every `x` of a row, because they share mean and deviation.
struct Pull {
    even: f32,
    /// To be multiplied by the distance from the mean.
    outward: f32,
}

impl Pull {
    #[inline(always)]
    fn new<E: Element>(d: &[E], x: &[E], weight: &[E], mean: f32, inverse: f32) -> Self {
        let len = x.len() as f32;
        let even = inlined!(sum2(d, weight, |d, weight| d.widen() * weight.widen()));
        let outward =
            inlined!(sum3(d, x, weight, |d, x, weight| d.widen() * weight.widen() * (x.widen() - mean)));
        Self { even: even / len, outward: outward * inverse * inverse * inverse / len }
    }
}
