//! Linear layers: `y = x W^T + b` and its gradients.

use crate::{Device, Element, Matrix, MatrixMut, View, ViewMut};

/// Whether an operator replaces what its output holds or adds to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accumulate {
    Replace,
    Add,
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
        assert_eq!(x.rows, out.rows, "rows of a linear layer");
        let weight = weight.matrix(out.columns, x.columns);
        assert!(bias.is_none_or(|bias| bias.len() == out.columns), "the bias of a linear layer");
        let is_fitting = |residual: Matrix<'_, O>| residual.shape() == out.shape();
        assert!(residual.is_none_or(is_fitting), "the residual of a linear layer");
        on_backend!(self, Compute, linear(x, weight, bias, residual, out));
    }

    /// `out = sums + bias + residual`: the end of [`Device::linear`], for sums that several ranks have added up.
    pub fn add_sums<W: Element, O: Element>(
        &self,
        sums: Matrix<'_, f32>,
        bias: Option<View<'_, W>>,
        residual: Matrix<'_, O>,
        out: MatrixMut<'_, O>,
    ) {
        assert_eq!([sums.shape(), residual.shape()], [out.shape(); 2], "sums of a linear layer");
        assert!(bias.is_none_or(|bias| bias.len() == out.columns), "the bias of a linear layer");
        on_backend!(self, Memory, add_sums(sums, bias, residual, out));
    }

    /// `d_x = d_out W`, or `+=`.
    pub fn linear_backward_input<D: Element, W: Element, X: Element>(
        &self,
        d_out: Matrix<'_, D>,
        weight: View<'_, W>,
        mode: Accumulate,
        d_x: MatrixMut<'_, X>,
    ) {
        assert_eq!(d_out.rows, d_x.rows, "rows of a linear layer");
        let weight = weight.matrix(d_out.columns, d_x.columns);
        on_backend!(self, Compute, linear_backward_input(d_out, weight, mode, d_x));
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
        on_backend!(self, Compute, linear_backward_weight(d_out, x, d_weight, d_bias));
    }
}

#[cfg(test)]
mod tests;
