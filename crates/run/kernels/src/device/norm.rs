//! Norms of rows: RMS norm, `y = x / sqrt(mean(x^2) + epsilon) * weight`, over rows or over each of some heads in them, and
//! layer norm, `y = (x - mean) / sqrt(variance + epsilon) * weight + bias`. The weights of an RMS norm may be kept less a number
//! ([`NormWeight`]).

use crate::{Accumulate, Device, Element, Heads, Matrix, MatrixMut, View, ViewMut};

/// The weight of an RMS norm: what is kept, and what is added to it (Gemma keeps weights less one).
#[derive(Debug, Clone, Copy)]
pub struct NormWeight<'a, E> {
    pub kept: View<'a, E>,
    /// Other than 0 on the processor only.
    pub offset: f32,
}

impl<'a, E> From<View<'a, E>> for NormWeight<'a, E> {
    fn from(kept: View<'a, E>) -> Self {
        Self { kept, offset: 0.0 }
    }
}

/// What a norm takes and gives.
pub(crate) struct NormForward<'a, E> {
    pub(crate) x: Matrix<'a, E>,
    pub(crate) weight: View<'a, E>,
    pub(crate) offset: f32,
    /// Of a layer norm alone.
    pub(crate) bias: Option<View<'a, E>>,
    pub(crate) epsilon: f32,
    pub(crate) out: MatrixMut<'a, E>,
    pub(crate) statistics: ViewMut<'a, f32>,
}

impl<E> NormForward<'_, E> {
    /// For lines of so many elements, and so many statistics of all of them.
    fn check(&self, elements: usize, statistics: usize) {
        assert_eq!(self.x.shape(), self.out.shape(), "the output of a norm");
        let found = (self.weight.len(), self.statistics.len());
        assert_eq!(found, (elements, statistics), "weight and statistics of a norm");
        assert!(self.bias.as_ref().is_none_or(|bias| bias.len() == elements), "the bias of a norm");
    }
}

pub(crate) struct NormBackward<'a, E> {
    pub(crate) d_out: Matrix<'a, E>,
    pub(crate) x: Matrix<'a, E>,
    pub(crate) weight: View<'a, E>,
    pub(crate) offset: f32,
    pub(crate) statistics: View<'a, f32>,
    pub(crate) mode: Accumulate,
    pub(crate) d_x: MatrixMut<'a, E>,
    pub(crate) d_weight: Option<ViewMut<'a, f32>>,
    /// Of a layer norm alone.
    pub(crate) d_bias: Option<ViewMut<'a, f32>>,
}

impl<E> NormBackward<'_, E> {
    /// For so many statistics of each row.
    fn check(&self, statistics: usize) {
        let (rows, columns) = self.x.shape();
        assert_eq!(
            [self.d_out.shape(), self.d_x.shape()],
            [(rows, columns); 2],
            "output and input of a norm"
        );
        let found = (self.weight.len(), self.statistics.len());
        assert_eq!(found, (columns, statistics * rows), "weight and statistics of a norm");
        check_sums(&self.d_weight, columns);
        check_sums(&self.d_bias, columns);
    }
}

pub(crate) struct HeadNormBackward<'a, E> {
    pub(crate) d_out_then_d_x: MatrixMut<'a, E>,
    pub(crate) x: Matrix<'a, E>,
    pub(crate) weight: View<'a, E>,
    pub(crate) offset: f32,
    pub(crate) inverses: View<'a, f32>,
    pub(crate) d_weight: Option<ViewMut<'a, f32>>,
}

impl Device {
    /// `inverses` gets what each row was multiplied by.
    pub fn rms_norm<'a, E: Element>(
        &self,
        x: Matrix<'_, E>,
        weight: impl Into<NormWeight<'a, E>>,
        epsilon: f32,
        out: MatrixMut<'_, E>,
        inverses: ViewMut<'_, f32>,
    ) {
        let NormWeight { kept: weight, offset } = self.norm_weight(weight);
        let norm = NormForward { x, weight, offset, bias: None, epsilon, out, statistics: inverses };
        norm.check(x.columns, x.rows);
        on_backend!(self, Memory, rms_norm(norm));
    }

    /// `d_weight` is added to; it may be absent, where the weight is frozen.
    #[expect(
        clippy::too_many_arguments,
        reason = "what the forward pass had, and the gradients of all of it"
    )]
    pub fn rms_norm_backward<'a, E: Element>(
        &self,
        d_out: Matrix<'_, E>,
        x: Matrix<'_, E>,
        weight: impl Into<NormWeight<'a, E>>,
        inverses: View<'_, f32>,
        mode: Accumulate,
        d_x: MatrixMut<'_, E>,
        d_weight: Option<ViewMut<'_, f32>>,
    ) {
        let statistics = inverses;
        let NormWeight { kept: weight, offset } = self.norm_weight(weight);
        let norm = NormBackward { d_out, x, weight, offset, statistics, mode, d_x, d_weight, d_bias: None };
        norm.check(1);
        on_backend!(self, Memory, rms_norm_backward(norm));
    }

    /// The norm of each of some heads by itself, as Qwen3 has it for queries and keys; other columns of `out` stay.
    /// `weight` is of one head; `inverses` has `rows x heads.count` entries.
    pub fn head_norm<'a, E: Element>(
        &self,
        heads: &Heads,
        x: Matrix<'_, E>,
        weight: impl Into<NormWeight<'a, E>>,
        epsilon: f32,
        out: MatrixMut<'_, E>,
        inverses: ViewMut<'_, f32>,
    ) {
        let (x, out) = (x.columns(heads.columns()), out.columns(heads.columns()));
        let NormWeight { kept: weight, offset } = self.norm_weight(weight);
        let norm = NormForward { x, weight, offset, bias: None, epsilon, out, statistics: inverses };
        norm.check(heads.dim, x.rows * heads.count);
        on_backend!(self, Memory, head_norm(heads, norm));
    }

    /// Turns the gradient of the norm's output into that of its input, in place; `d_weight` is added to.
    pub fn head_norm_backward<'a, E: Element>(
        &self,
        heads: &Heads,
        d_out_then_d_x: MatrixMut<'_, E>,
        x: Matrix<'_, E>,
        weight: impl Into<NormWeight<'a, E>>,
        inverses: View<'_, f32>,
        d_weight: Option<ViewMut<'_, f32>>,
    ) {
        let (x, d_out_then_d_x) = (x.columns(heads.columns()), d_out_then_d_x.columns(heads.columns()));
        assert_eq!(x.shape(), d_out_then_d_x.shape(), "the output of a norm");
        let sizes = (heads.dim, x.rows * heads.count);
        let NormWeight { kept: weight, offset } = self.norm_weight(weight);
        assert_eq!((weight.len(), inverses.len()), sizes, "weight and inverses of a norm");
        check_sums(&d_weight, heads.dim);
        let norm = HeadNormBackward { d_out_then_d_x, x, weight, offset, inverses, d_weight };
        on_backend!(self, Memory, head_norm_backward(heads, norm));
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
        let norm = NormForward { x, weight, offset: 0.0, bias, epsilon, out, statistics };
        norm.check(x.columns, 2 * x.rows);
        on_backend!(self, Memory, layer_norm(norm));
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
        let norm = NormBackward { d_out, x, weight, offset: 0.0, statistics, mode, d_x, d_weight, d_bias };
        norm.check(2);
        on_backend!(self, Memory, layer_norm_backward(norm));
    }

    fn norm_weight<'a, E>(&self, weight: impl Into<NormWeight<'a, E>>) -> NormWeight<'a, E> {
        let weight = weight.into();
        assert!(
            weight.offset == 0.0 || self.is_cpu(),
            "a GPU has no norm whose weights are kept less a number"
        );
        weight
    }
}

fn check_sums(sums: &Option<ViewMut<'_, f32>>, len: usize) {
    assert!(sums.as_ref().is_none_or(|sums| sums.len() == len), "weight and bias of a norm");
}

#[cfg(test)]
mod layer_tests;
#[cfg(test)]
mod rms_tests;
