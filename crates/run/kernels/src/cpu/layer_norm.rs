//! Layer norm: `y = (x - mean) / sqrt(variance + epsilon) * weight + bias`.

use bedplate_breakdown::Part;

use crate::cpu::stream::SharedMut;
use crate::cpu::sum::{sum, sum2, sum3};
use crate::{Device, Element, Into, Matrix, MatrixMut, View, ViewMut};

impl Device {
    /// `statistics` gets two numbers a row: its mean, and what it was multiplied by.
    pub fn layer_norm<E: Element>(
        &self,
        x: Matrix<'_, E>,
        weight: View<'_, E>,
        bias: Option<View<'_, E>>,
        epsilon: f32,
        out: MatrixMut<'_, E>,
        statistics: ViewMut<'_, f32>,
    ) {
        assert_eq!((x.rows, x.columns), (out.rows, out.columns), "the output of a norm");
        assert_eq!(
            (weight.len(), statistics.len()),
            (x.columns, 2 * x.rows),
            "weight and statistics of a norm"
        );
        assert_eq!(bias.map_or(x.columns, View::len), x.columns, "the bias of a norm");
        let (out, statistics) = (out.into_shared(), SharedMut::new(statistics.into_host()));
        let (weight, bias) = (weight.host(), bias.map(View::host));
        self.time(Part::Memory, || {
            self.in_rows(
                x.rows,
                x.columns,
                #[inline(always)]
                |rows| {
                    for row in rows {
                        let (x, out) = (x.row(row), out.row(row));
                        let (mean, inverse) = statistics_of(x, epsilon);
                        statistics.range(2 * row..2 * row + 2).copy_from_slice(&[mean, inverse]);
                        normalise(x, mean, inverse, weight, bias, out);
                    }
                },
            );
        });
    }

    /// `d_weight` and `d_bias` are added to, where they are present.
    #[expect(
        clippy::too_many_arguments,
        reason = "what the forward pass had, and the gradients of all of it"
    )]
    pub fn layer_norm_backward<E: Element>(
        &self,
        d_out: Matrix<'_, E>,
        x: Matrix<'_, E>,
        weight: View<'_, E>,
        statistics: View<'_, f32>,
        into: Into,
        d_x: MatrixMut<'_, E>,
        d_weight: Option<ViewMut<'_, f32>>,
        d_bias: Option<ViewMut<'_, f32>>,
    ) {
        assert_eq!((x.rows, x.columns), (d_out.rows, d_out.columns), "the output of a norm");
        assert_eq!((x.rows, x.columns), (d_x.rows, d_x.columns), "the input of a norm");
        assert_eq!(
            (weight.len(), statistics.len()),
            (x.columns, 2 * x.rows),
            "weight and statistics of a norm"
        );
        let d_weight = d_weight.map_or(&mut [][..], ViewMut::into_host);
        assert!(d_weight.is_empty() || d_weight.len() == x.columns, "the weight of a norm");
        let d_bias = d_bias.map_or(&mut [][..], ViewMut::into_host);
        assert!(d_bias.is_empty() || d_bias.len() == x.columns, "the bias of a norm");
        let d_x = d_x.into_shared();
        let (weight, statistics) = (weight.host(), statistics.host());
        self.time(Part::Memory, || {
            self.sum_over_rows(
                x.rows,
                [d_weight, d_bias],
                #[inline(always)]
                |rows, [weight_sums, bias_sums]| {
                    for row in rows {
                        let (d, x) = (d_out.row(row), x.row(row));
                        let (mean, inverse) = (statistics[2 * row], statistics[2 * row + 1]);
                        add_weight_gradient(d, x, mean, inverse, weight_sums);
                        bias_sums.iter_mut().zip(d).for_each(
                            #[inline(always)]
                            |(sum, d)| *sum += d.widen(),
                        );
                        let pull = Pull::new(d, x, weight, mean, inverse);
                        for (((to, d), x), w) in d_x.row(row).iter_mut().zip(d).zip(x).zip(weight) {
                            let direct = d.widen() * w.widen() - pull.even;
                            into.put(to, direct * inverse - (x.widen() - mean) * pull.outward);
                        }
                    }
                },
            );
        });
    }
}

/// Mean and inverse deviation.
#[inline(always)]
fn statistics_of<E: Element>(x: &[E], epsilon: f32) -> (f32, f32) {
    let len = x.len() as f32;
    let mean = sum(
        x,
        #[inline(always)]
        |x| x.widen(),
    ) / len;
    let squares = sum(
        x,
        #[inline(always)]
        |x| (x.widen() - mean) * (x.widen() - mean),
    );
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
        let even = sum2(
            d,
            weight,
            #[inline(always)]
            |d, weight| d.widen() * weight.widen(),
        );
        let outward = sum3(
            d,
            x,
            weight,
            #[inline(always)]
            |d, x, weight| d.widen() * weight.widen() * (x.widen() - mean),
        );
        Self { even: even / len, outward: outward * inverse * inverse * inverse / len }
    }
}

#[cfg(test)]
mod tests;
