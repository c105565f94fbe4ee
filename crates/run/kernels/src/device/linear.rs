//! Linear layers: `y = x W^T + b` and its gradients.

use crate::{Device, Element, Matrix, MatrixMut, View, ViewMut};

/// Whether an operator replaces what its output holds or adds to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accumulate {
    Replace,
    Add,
}

/// What a linear layer takes and gives; `W` is the weight, as a matrix or packed.
pub(crate) struct LinearForward<'a, X, W, B, O> {
    pub(crate) x: Matrix<'a, X>,
    pub(crate) weight: W,
    pub(crate) bias: Option<View<'a, B>>,
    pub(crate) residual: Option<Matrix<'a, O>>,
    pub(crate) out: MatrixMut<'a, O>,
}

impl<X, W, B: Element, O: Element> LinearForward<'_, X, W, B, O> {
    pub(super) fn checked(self) -> Self {
        assert_eq!(self.x.rows, self.out.rows, "rows of a linear layer");
        assert!(self.bias.is_none_or(|bias| bias.len() == self.out.columns), "the bias of a linear layer");
        let is_fitting = |residual: Matrix<'_, O>| residual.shape() == self.out.shape();
        assert!(self.residual.is_none_or(is_fitting), "the residual of a linear layer");
        self
    }
}

pub(crate) struct LinearBackwardInput<'a, D, W, X> {
    pub(crate) d_out: Matrix<'a, D>,
    pub(crate) weight: Matrix<'a, W>,
    pub(crate) mode: Accumulate,
    pub(crate) d_x: MatrixMut<'a, X>,
}

impl<'a, D, W: Element, X> LinearBackwardInput<'a, D, W, X> {
    pub(super) fn checked(
        d_out: Matrix<'a, D>,
        weight: View<'a, W>,
        mode: Accumulate,
        d_x: MatrixMut<'a, X>,
    ) -> Self {
        assert_eq!(d_out.rows, d_x.rows, "rows of a linear layer");
        let weight = weight.matrix(d_out.columns, d_x.columns);
        Self { d_out, weight, mode, d_x }
    }
}

pub(crate) struct LinearBackwardWeight<'a, D, X> {
    pub(crate) d_out: Matrix<'a, D>,
    pub(crate) x: Matrix<'a, X>,
    pub(crate) d_weight: MatrixMut<'a, f32>,
    pub(crate) d_bias: Option<ViewMut<'a, f32>>,
}

impl Device {
    /// `out = x W^T + bias + residual`. `weight` is `out.columns x x.columns`.
    pub fn linear<X: Element, W: Element, O: Element>(
        &self,
        x: Matrix<'_, X>,
        weight: View<'_, W>,
        bias: Option<View<'_, W>>,
        residual: Option<Matrix<'_, O>>,
        out: MatrixMut<'_, O>,
    ) {
        let weight = weight.matrix(out.columns, x.columns);
        let layer = LinearForward { x, weight, bias, residual, out }.checked();
        on_backend!(self, Compute, linear(layer));
    }

    /// `out = sums + bias + residual`: the end of [`Device::linear`], for sums that several ranks have added up.
    pub fn add_sums<W: Element, O: Element>(
        &self,
        sums: Matrix<'_, f32>,
        bias: Option<View<'_, W>>,
        residual: Matrix<'_, O>,
        out: MatrixMut<'_, O>,
    ) {
        assert_eq!(sums.columns, out.columns, "sums of a linear layer");
        let layer = LinearForward { x: sums, weight: (), bias, residual: Some(residual), out }.checked();
        on_backend!(self, Memory, add_sums(layer));
    }

    /// `d_x = d_out W`, or `+=`.
    pub fn linear_backward_input<D: Element, W: Element, X: Element>(
        &self,
        d_out: Matrix<'_, D>,
        weight: View<'_, W>,
        mode: Accumulate,
        d_x: MatrixMut<'_, X>,
    ) {
        let layer = LinearBackwardInput::checked(d_out, weight, mode, d_x);
        on_backend!(self, Compute, linear_backward_input(layer));
    }

    /// `d_weight += d_out^T x`, and `d_bias += ` the sum of the rows of `d_out`.
    pub fn linear_backward_weight<D: Element, X: Element>(
        &self,
        d_out: Matrix<'_, D>,
        x: Matrix<'_, X>,
        d_weight: ViewMut<'_, f32>,
        d_bias: Option<ViewMut<'_, f32>>,
    ) {
        assert_eq!(d_out.rows, x.rows, "rows of a linear layer");
        let has_all = d_bias.as_ref().is_none_or(|bias| bias.len() == d_out.columns);
        assert!(has_all, "the bias of a linear layer");
        let d_weight = d_weight.matrix(d_out.columns, x.columns);
        let layer = LinearBackwardWeight { d_out, x, d_weight, d_bias };
        on_backend!(self, Compute, linear_backward_weight(layer));
    }
}

#[cfg(test)]
mod tests;
