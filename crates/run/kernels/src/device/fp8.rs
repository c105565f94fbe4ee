//! Linear layers of training whose sides are rounded to fp8 before they meet.
//!
//! A side is rounded to e4m3 line by line along the direction in which products are summed, each line with the smallest power of two as scale
//! that fits its largest number. The gradient of a weight stays [`Device::linear_backward_weight`]: it needs both sides turned, which takes as
//! long as its product saves in models of 1B parameters, and its errors would be the largest (`examples/fp8_scaling.py`, which also
//! has e5m2 for gradients: its errors are half as large again).

use crate::device::{Backend, LinearBackwardInput, LinearForward};
use crate::{Accumulate, Device, Element, Matrix, MatrixMut, View};

impl Device {
    /// Whether products of fp8 are faster here than those of bf16; elsewhere they give the same numbers, more slowly.
    pub fn has_fp8(&self) -> bool {
        match &self.backend {
            Backend::Cpu(_) => false,
            Backend::Cuda(cuda) => cuda.has_fp8(),
        }
    }

    /// As [`Device::linear`], with the rows of `x` and of the weight rounded to fp8.
    pub fn linear_fp8<X: Element, W: Element, O: Element>(
        &self,
        x: Matrix<'_, X>,
        weight: View<'_, W>,
        bias: Option<View<'_, W>>,
        residual: Option<Matrix<'_, O>>,
        out: MatrixMut<'_, O>,
    ) {
        let weight = weight.matrix(out.columns, x.columns);
        let layer = LinearForward { x, weight, bias, residual, out }.checked();
        on_backend!(self, Compute, linear_fp8(layer));
    }

    /// As [`Device::linear_backward_input`], with the rows of `d_out` and the columns of the weight rounded to fp8.
    pub fn linear_fp8_backward_input<D: Element, W: Element, X: Element>(
        &self,
        d_out: Matrix<'_, D>,
        weight: View<'_, W>,
        mode: Accumulate,
        d_x: MatrixMut<'_, X>,
    ) {
        let layer = LinearBackwardInput::checked(d_out, weight, mode, d_x);
        on_backend!(self, Compute, linear_fp8_backward_input(layer));
    }
}

#[cfg(test)]
mod tests;
