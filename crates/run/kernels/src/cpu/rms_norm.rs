//! RMS norm, over rows or over each of some heads in them.

use super::Cpu;
use super::sum::{sum, sum3};
use crate::device::{HeadNormBackward, NormBackward, NormForward};
use crate::{Element, Heads, ViewMut};

impl Cpu {
    pub(crate) fn rms_norm<E: Element>(&self, norm: NormForward<'_, E>) {
        let NormForward { epsilon, offset, out, statistics, .. } = norm;
        let (x, weight) = (self.rows(norm.x), self.slice(norm.weight));
        inlined!(self.in_rows(
            x.shape(),
            (self.rows_mut(out), self.shared(statistics, 1)),
            |row, (out, inverse)| inverse[0] = normalise(x.row(row), (weight, offset), epsilon, out)
        ));
    }

    pub(crate) fn rms_norm_backward<E: Element>(&self, norm: NormBackward<'_, E>) {
        let (d_out, x, mode, offset) = (self.rows(norm.d_out), self.rows(norm.x), norm.mode, norm.offset);
        let (weight, inverses) = (self.slice(norm.weight), self.slice(norm.statistics));
        let (outputs, totals) = (self.rows_mut(norm.d_x), [self.sums(norm.d_weight)]);
        inlined!(self.sum_over_rows(x.rows, outputs, totals, |row, d_x, [sums]| {
            let (d, x, inverse) = (d_out.row(row), x.row(row), inverses[row]);
            add_weight_gradient(d, x, inverse, sums);
            let pull = pull(d, x, (weight, offset), inverse);
            for (((to, d), x), w) in d_x.iter_mut().zip(d).zip(x).zip(weight) {
                mode.apply(to, input_gradient(*d, *x, w.widen() + offset, inverse, pull));
            }
        }));
    }

    pub(crate) fn head_norm<E: Element>(&self, heads: &Heads, norm: NormForward<'_, E>) {
        let NormForward { epsilon, offset, out, statistics, .. } = norm;
        let (x, weight, dim) = (self.rows(norm.x), self.slice(norm.weight), heads.dim);
        let outputs = (self.rows_mut(out), self.shared(statistics, heads.count));
        inlined!(self.in_rows(x.shape(), outputs, |row, (out, inverses)| {
            let heads = x.row(row).chunks_exact(dim).zip(out.chunks_exact_mut(dim));
            for ((x, out), inverse) in heads.zip(inverses) {
                *inverse = normalise(x, (weight, offset), epsilon, out);
            }
        }));
    }

    pub(crate) fn head_norm_backward<E: Element>(&self, heads: &Heads, norm: HeadNormBackward<'_, E>) {
        let Heads { count, dim, .. } = *heads;
        let (x, weight, offset) = (self.rows(norm.x), self.slice(norm.weight), norm.offset);
        let inverses = self.slice(norm.inverses);
        let (outputs, totals) = (self.rows_mut(norm.d_out_then_d_x), [self.sums(norm.d_weight)]);
        inlined!(self.sum_over_rows(x.rows, outputs, totals, |row, d, [sums]| {
            let inverses = &inverses[row * count..][..count];
            let heads = d.chunks_exact_mut(dim).zip(x.row(row).chunks_exact(dim));
            for ((d, x), inverse) in heads.zip(inverses) {
                add_weight_gradient(d, x, *inverse, sums);
                let pull = pull(d, x, (weight, offset), *inverse);
                for ((d, x), w) in d.iter_mut().zip(x).zip(weight) {
                    *d = E::narrow(input_gradient(*d, *x, w.widen() + offset, *inverse, pull));
                }
            }
        }));
    }

    /// Sums that are wanted or not.
    pub(crate) fn sums<'a>(&self, sums: Option<ViewMut<'a, f32>>) -> &'a mut [f32] {
        sums.map_or(&mut [], |sums| self.slice_mut(sums))
    }
}

/// Gives what the row was multiplied by.
#[inline(always)]
fn normalise<E: Element>(x: &[E], (weight, offset): (&[E], f32), epsilon: f32, out: &mut [E]) -> f32 {
    let squares = inlined!(sum(x, |x| x.widen() * x.widen()));
    let inverse = 1.0 / (squares / x.len() as f32 + epsilon).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = E::narrow(x.widen() * inverse * (weight.widen() + offset));
    }
    inverse
}

#[inline(always)]
fn add_weight_gradient<E: Element>(d: &[E], x: &[E], inverse: f32, sums: &mut [f32]) {
    for ((sum, d), x) in sums.iter_mut().zip(d).zip(x) {
        *sum += d.widen() * x.widen() * inverse;
    }
}

/// How much of `x` itself goes into its gradient, because all of the row shares one divisor.
#[inline(always)]
fn pull<E: Element>(d: &[E], x: &[E], (weight, offset): (&[E], f32), inverse: f32) -> f32 {
    let product =
        inlined!(sum3(d, x, weight, |d, x, weight| d.widen() * x.widen() * (weight.widen() + offset)));
    product * inverse * inverse * inverse / x.len() as f32
}

#[inline(always)]
fn input_gradient<E: Element>(d: E, x: E, weight: f32, inverse: f32, pull: f32) -> f32 {
    d.widen() * weight * inverse - x.widen() * pull
}
