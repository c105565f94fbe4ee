//! Norms of rows: RMS norm, `y = x / sqrt(mean(x^2) + epsilon) * weight`, over rows or over each of some heads in them, and
//! layer norm, `y = (x - mean) / sqrt(variance + epsilon) * weight + bias`.

use crate::{Accumulate, Device, Element, Heads, Matrix, MatrixMut, View, ViewMut};

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
        assert_eq!(x.shape(), out.shape(), "the output of a norm");
        assert_eq!((weight.len(), inverses.len()), (x.columns, x.rows), "weight and inverses of a norm");
        on_backend!(self, Memory, rms_norm(x, weight, epsilon, out, inverses));
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
        mode: Accumulate,
        d_x: MatrixMut<'_, E>,
        d_weight: Option<ViewMut<'_, f32>>,
    ) {
        assert_eq!([d_out.shape(), d_x.shape()], [x.shape(); 2], "output and input of a norm");
        assert_eq!((weight.len(), inverses.len()), (x.columns, x.rows), "weight and inverses of a norm");
        check_sums(&d_weight, x.columns);
        on_backend!(self, Memory, rms_norm_backward(d_out, x, weight, inverses, mode, d_x, d_weight));
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
        let (x, out) = (x.columns(heads.columns()), out.columns(heads.columns()));
        assert_eq!(x.shape(), out.shape(), "the output of a norm");
        let sizes = (heads.dim, x.rows * heads.count);
        assert_eq!((weight.len(), inverses.len()), sizes, "weight and inverses of a norm");
        on_backend!(self, Memory, head_norm(heads, x, weight, epsilon, out, inverses));
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
        let (x, d) = (x.columns(heads.columns()), d_out_then_d_x.columns(heads.columns()));
        assert_eq!(x.shape(), d.shape(), "the output of a norm");
        let sizes = (heads.dim, x.rows * heads.count);
        assert_eq!((weight.len(), inverses.len()), sizes, "weight and inverses of a norm");
        check_sums(&d_weight, heads.dim);
        on_backend!(self, Memory, head_norm_backward(heads, d, x, weight, inverses, d_weight));
    }

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
        assert_eq!(x.shape(), out.shape(), "the output of a norm");
        let sizes = (x.columns, 2 * x.rows);
        assert_eq!((weight.len(), statistics.len()), sizes, "weight and statistics of a norm");
        assert!(bias.is_none_or(|bias| bias.len() == x.columns), "the bias of a norm");
        on_backend!(self, Memory, layer_norm(x, weight, bias, epsilon, out, statistics));
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
        mode: Accumulate,
        d_x: MatrixMut<'_, E>,
        d_weight: Option<ViewMut<'_, f32>>,
        d_bias: Option<ViewMut<'_, f32>>,
    ) {
        assert_eq!([d_out.shape(), d_x.shape()], [x.shape(); 2], "output and input of a norm");
        let sizes = (x.columns, 2 * x.rows);
        assert_eq!((weight.len(), statistics.len()), sizes, "weight and statistics of a norm");
        check_sums(&d_weight, x.columns);
        check_sums(&d_bias, x.columns);
        on_backend!(
            self,
            Memory,
            layer_norm_backward(d_out, x, weight, statistics, mode, d_x, [d_weight, d_bias])
        );
    }
}

fn check_sums(sums: &Option<ViewMut<'_, f32>>, len: usize) {
    assert!(sums.as_ref().is_none_or(|sums| sums.len() == len), "weight and bias of a norm");
}

#[cfg(test)]
mod layer_tests;
#[cfg(test)]
mod rms_tests;
