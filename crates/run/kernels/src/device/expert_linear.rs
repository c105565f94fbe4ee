//! Linear layers of experts: one product per expert, all shared out together.
//!
//! Rows are sorted by expert; `offsets[e]..offsets[e + 1]` are those of expert `e`, possibly none. Operators panic unless
//! the offsets ascend from zero to the number of rows.

use bedplate_breakdown::Part;

use super::Backend;
use crate::{Device, Element, Matrix, MatrixMut, View, ViewMut};

/// What the layers of all experts take and give; backward, gradients. `W` is the weights, as one tall matrix or packed.
pub(crate) struct ExpertForward<'a, X, W, O> {
    pub(crate) x: Matrix<'a, X>,
    pub(crate) offsets: View<'a, u32>,
    pub(crate) weights: W,
    pub(crate) out: MatrixMut<'a, O>,
}

pub(crate) struct ExpertBackwardWeight<'a, E> {
    pub(crate) d_out: Matrix<'a, E>,
    pub(crate) x: Matrix<'a, E>,
    pub(crate) offsets: View<'a, u32>,
    pub(crate) d_weights: MatrixMut<'a, f32>,
}

impl Device {
    /// `out[r] = x[r] W_e^T` for the rows `r` of each expert `e`. `weights` is `experts x outputs x inputs`.
    pub fn expert_linear<E: Element>(
        &self,
        x: Matrix<'_, E>,
        offsets: View<'_, u32>,
        weights: View<'_, E>,
        out: MatrixMut<'_, E>,
    ) {
        assert_eq!(x.rows, out.rows, "rows of experts");
        let weights = weights_of_experts(offsets, weights, out.columns, x.columns);
        let layer = ExpertForward { x, offsets, weights, out };
        on_backend!(self, Compute, expert_linear(layer));
    }

    /// `d_x[r] = d_out[r] W_e` for the rows `r` of each expert `e`.
    pub fn expert_linear_backward_input<E: Element>(
        &self,
        d_out: Matrix<'_, E>,
        offsets: View<'_, u32>,
        weights: View<'_, E>,
        d_x: MatrixMut<'_, E>,
    ) {
        assert_eq!(d_out.rows, d_x.rows, "rows of experts");
        let weights = weights_of_experts(offsets, weights, d_out.columns, d_x.columns);
        let layer = ExpertForward { x: d_out, offsets, weights, out: d_x };
        on_backend!(self, Compute, expert_linear_backward_input(layer));
    }

    /// `d_weights[e] += d_out^T x` over the rows of each expert `e`.
    pub fn expert_linear_backward_weight<E: Element>(
        &self,
        d_out: Matrix<'_, E>,
        x: Matrix<'_, E>,
        offsets: View<'_, u32>,
        d_weights: ViewMut<'_, f32>,
    ) {
        assert_eq!(d_out.rows, x.rows, "rows of experts");
        let experts = offsets.len().saturating_sub(1);
        let d_weights = d_weights.matrix(experts * d_out.columns, x.columns);
        let layer = ExpertBackwardWeight { d_out, x, offsets, d_weights };
        on_backend!(self, Compute, expert_linear_backward_weight(layer));
    }
}

impl Device {
    /// `out[r] += bias[e]` for the rows `r` of each expert `e`. On the processor only.
    pub fn add_expert_bias<E: Element>(
        &self,
        offsets: View<'_, u32>,
        bias: View<'_, E>,
        out: MatrixMut<'_, E>,
    ) {
        assert_eq!(bias.len(), offsets.len().saturating_sub(1) * out.columns, "biases of experts");
        match &self.backend {
            Backend::Cpu(cpu) => cpu.time(Part::Memory, || cpu.add_expert_bias(offsets, bias, out)),
            Backend::Cuda(_) => unreachable!("a GPU has no biases of experts"),
        }
    }

    /// `d_bias[e] += ` the sum of `d_out[r]` over the rows of each expert `e`. On the processor only.
    pub fn expert_bias_backward<E: Element>(
        &self,
        d_out: Matrix<'_, E>,
        offsets: View<'_, u32>,
        d_bias: ViewMut<'_, f32>,
    ) {
        assert_eq!(d_bias.len(), offsets.len().saturating_sub(1) * d_out.columns, "biases of experts");
        match &self.backend {
            Backend::Cpu(cpu) => cpu.time(Part::Memory, || cpu.expert_bias_backward(d_out, offsets, d_bias)),
            Backend::Cuda(_) => unreachable!("a GPU has no biases of experts"),
        }
    }
}

/// The experts' weights lie below each other like one tall matrix.
fn weights_of_experts<'a, E: Element>(
    offsets: View<'_, u32>,
    weights: View<'a, E>,
    outputs: usize,
    inputs: usize,
) -> Matrix<'a, E> {
    weights.matrix(offsets.len().saturating_sub(1) * outputs, inputs)
}

#[cfg(test)]
mod tests;
