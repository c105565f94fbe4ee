//! RMS norm: `y = x / sqrt(mean(x^2) + epsilon) * weight`, over rows or over each of some heads in them.

use bedplate_breakdown::Part;

use crate::cpu::stream::SharedMut;
use crate::cpu::sum::{sum, sum3};
use crate::{Device, Element, Heads, Into, Matrix, MatrixMut, View, ViewMut};

impl Device {
    /// `inverses` gets what each row was multiplied by.
    pub fn rms_norm<E: Element>(
        &self,
        x: Matrix<'_, E>,
        weight: View<'_, E>,
        epsilon: f32,
        out: MatrixMut<'_, E>,
        inverses: ViewMut<'_, f32>,
    ) {
        assert_eq!((x.rows, x.columns), (out.rows, out.columns), "the output of a norm");
        assert_eq!((weight.len(), inverses.len()), (x.columns, x.rows), "weight and inverses of a norm");
        let (out, inverses) = (out.into_shared(), SharedMut::new(inverses.into_host()));
        self.time(Part::Memory, || {
            self.in_rows(
                x.rows,
                x.columns,
                #[inline(always)]
                |rows| {
                    for (row, kept) in rows.clone().zip(inverses.range(rows)) {
                        *kept = normalise(x.row(row), weight.host(), epsilon, out.row(row));
                    }
                },
            );
        });
    }

    /// `d_weight` is added to; it may be absent, where the weight is frozen.
    #[expect(
        clippy::too_many_arguments,
        reason = "what the forward pass had, and the gradients of all of it"
    )]
    pub fn rms_norm_backward<E: Element>(
        &self,
        d_out: Matrix<'_, E>,
        x: Matrix<'_, E>,
        weight: View<'_, E>,
        inverses: View<'_, f32>,
        into: Into,
        d_x: MatrixMut<'_, E>,
        d_weight: Option<ViewMut<'_, f32>>,
    ) {
        assert_eq!((x.rows, x.columns), (d_out.rows, d_out.columns), "the output of a norm");
        assert_eq!((x.rows, x.columns), (d_x.rows, d_x.columns), "the input of a norm");
        assert_eq!((weight.len(), inverses.len()), (x.columns, x.rows), "weight and inverses of a norm");
        let d_weight = d_weight.map_or(&mut [][..], ViewMut::into_host);
        assert!(d_weight.is_empty() || d_weight.len() == x.columns, "the weight of a norm");
        let d_x = d_x.into_shared();
        let (weight, inverses) = (weight.host(), inverses.host());
        self.time(Part::Memory, || {
            self.sum_over_rows(
                x.rows,
                [d_weight],
                #[inline(always)]
                |rows, [sums]| {
                    for row in rows {
                        let (d, x, inverse) = (d_out.row(row), x.row(row), inverses[row]);
                        add_weight_gradient(d, x, inverse, sums);
                        let pull = pull(d, x, weight, inverse);
                        for (((to, d), x), w) in d_x.row(row).iter_mut().zip(d).zip(x).zip(weight) {
                            into.put(to, input_gradient(*d, *x, *w, inverse, pull));
                        }
                    }
                },
            );
        });
    }

    /// The norm of each of some heads by itself, as Qwen3 has it for queries and keys; other columns of `out` stay.
    /// `weight` is of one head; `inverses` has `rows x heads.count` entries.
    pub fn head_norm<E: Element>(
        &self,
        heads: &Heads,
        x: Matrix<'_, E>,
        weight: View<'_, E>,
        epsilon: f32,
        out: MatrixMut<'_, E>,
        inverses: ViewMut<'_, f32>,
    ) {
        let Heads { count, dim, .. } = *heads;
        let (x, out) = (x.columns(heads.columns()), out.into_columns(heads.columns()));
        assert_eq!((x.rows, x.columns), (out.rows, out.columns), "the output of a norm");
        assert_eq!((weight.len(), inverses.len()), (dim, x.rows * count), "weight and inverses of a norm");
        let (out, inverses) = (out.into_shared(), SharedMut::new(inverses.into_host()));
        self.time(Part::Memory, || {
            self.in_rows(
                x.rows,
                x.columns,
                #[inline(always)]
                |rows| {
                    for row in rows {
                        let kept = inverses.range(row * count..(row + 1) * count);
                        let heads = x.row(row).chunks_exact(dim).zip(out.row(row).chunks_exact_mut(dim));
                        for ((x, out), kept) in heads.zip(kept) {
                            *kept = normalise(x, weight.host(), epsilon, out);
                        }
                    }
                },
            );
        });
    }

    /// Turns the gradient of the norm's output into that of its input, in place; `d_weight` is added to.
    pub fn head_norm_backward<E: Element>(
        &self,
        heads: &Heads,
        d_out_then_d_x: MatrixMut<'_, E>,
        x: Matrix<'_, E>,
        weight: View<'_, E>,
        inverses: View<'_, f32>,
        d_weight: Option<ViewMut<'_, f32>>,
    ) {
        let Heads { count, dim, .. } = *heads;
        let (x, d) = (x.columns(heads.columns()), d_out_then_d_x.into_columns(heads.columns()));
        assert_eq!((x.rows, x.columns), (d.rows, d.columns), "the output of a norm");
        let d_weight = d_weight.map_or(&mut [][..], ViewMut::into_host);
        assert!(
            weight.len() == dim && (d_weight.is_empty() || d_weight.len() == dim),
            "the weight of a norm"
        );
        assert_eq!(inverses.len(), x.rows * count, "inverses of a norm");
        let d = d.into_shared();
        let weight = weight.host();
        self.time(Part::Memory, || {
            self.sum_over_rows(
                x.rows,
                [d_weight],
                #[inline(always)]
                |rows, [sums]| {
                    for row in rows {
                        let inverses = &inverses.host()[row * count..][..count];
                        let heads = d.row(row).chunks_exact_mut(dim).zip(x.row(row).chunks_exact(dim));
                        for ((d, x), inverse) in heads.zip(inverses) {
                            add_weight_gradient(d, x, *inverse, sums);
                            let pull = pull(d, x, weight, *inverse);
                            for ((d, x), w) in d.iter_mut().zip(x).zip(weight) {
                                *d = E::narrow(input_gradient(*d, *x, *w, *inverse, pull));
                            }
                        }
                    }
                },
            );
        });
    }
}

/// Gives what the row was multiplied by.
#[inline(always)]
fn normalise<E: Element>(x: &[E], weight: &[E], epsilon: f32, out: &mut [E]) -> f32 {
    let squares = sum(
        x,
        #[inline(always)]
        |x| x.widen() * x.widen(),
    );
    let inverse = 1.0 / (squares / x.len() as f32 + epsilon).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = E::narrow(x.widen() * inverse * weight.widen());
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
fn pull<E: Element>(d: &[E], x: &[E], weight: &[E], inverse: f32) -> f32 {
    let product = sum3(
        d,
        x,
        weight,
        #[inline(always)]
        |d, x, weight| d.widen() * x.widen() * weight.widen(),
    );
    product * inverse * inverse * inverse / x.len() as f32
}

#[inline(always)]
fn input_gradient<E: Element>(d: E, x: E, weight: E, inverse: f32, pull: f32) -> f32 {
    d.widen() * weight.widen() * inverse - x.widen() * pull
}

#[cfg(test)]
mod tests;
