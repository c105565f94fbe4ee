//! Tokens on their way to experts and back.
//!
//! A *choice* is a token's decision for one expert: token `t` has the choices `t * per_token` and following. A *slot* is a row of the
//! matrix in which the choices of each expert lie together.

use crate::{Accumulate, Device, Element, Matrix, MatrixMut, View, ViewMut};

pub(crate) struct Dispatch<'a> {
    pub(crate) experts: View<'a, u32>,
    pub(crate) order: ViewMut<'a, u32>,
    pub(crate) slots: ViewMut<'a, u32>,
    pub(crate) offsets: ViewMut<'a, u32>,
}

pub(crate) struct GatherRows<'a, E> {
    pub(crate) x: Matrix<'a, E>,
    pub(crate) order: View<'a, u32>,
    pub(crate) per_token: usize,
    pub(crate) out: MatrixMut<'a, E>,
}

/// Sums the rows of each token's slots; without weights all count 1.
pub(crate) struct SumSlots<'a, E, O> {
    pub(crate) y: Matrix<'a, E>,
    pub(crate) slots: View<'a, u32>,
    pub(crate) weights: Option<View<'a, f32>>,
    pub(crate) per_token: usize,
    pub(crate) mode: Accumulate,
    pub(crate) out: MatrixMut<'a, O>,
}

/// What the forward pass had, and its gradients.
pub(crate) struct CombineBackward<'a, E> {
    pub(crate) d_out: Matrix<'a, E>,
    pub(crate) y: Matrix<'a, E>,
    pub(crate) slots: View<'a, u32>,
    pub(crate) weights: View<'a, f32>,
    pub(crate) per_token: usize,
    pub(crate) d_y: MatrixMut<'a, E>,
    pub(crate) d_weights: ViewMut<'a, f32>,
}

pub(crate) struct GateForward<'a, E, O> {
    pub(crate) x: Matrix<'a, E>,
    pub(crate) logits: View<'a, f32>,
    pub(crate) mode: Accumulate,
    pub(crate) out: MatrixMut<'a, O>,
}

pub(crate) struct GateBackward<'a, E> {
    pub(crate) d_out: Matrix<'a, E>,
    pub(crate) x: Matrix<'a, E>,
    pub(crate) logits: View<'a, f32>,
    pub(crate) d_x: MatrixMut<'a, E>,
    pub(crate) d_logits: ViewMut<'a, f32>,
}

impl Device {
    /// Sorts choices by expert, those of one expert as they came: `order[slot]` is the choice in a slot, `slots[choice]` the slot
    /// of a choice, and the slots of expert `e` begin at `offsets[e]` and end before `offsets[e + 1]`.
    pub fn dispatch(
        &self,
        experts: View<'_, u32>,
        count: usize,
        order: ViewMut<'_, u32>,
        slots: ViewMut<'_, u32>,
        offsets: ViewMut<'_, u32>,
    ) {
        assert_eq!([order.len(), slots.len()], [experts.len(); 2], "slots of choices");
        assert_eq!(offsets.len(), count + 1, "offsets of experts");
        let choices = Dispatch { experts, order, slots, offsets };
        on_backend!(self, Memory, dispatch(choices));
    }

    /// `out[slot] = x[token]`, the token being that of the slot's choice.
    pub fn gather_rows<E: Element>(
        &self,
        x: Matrix<'_, E>,
        order: View<'_, u32>,
        per_token: usize,
        out: MatrixMut<'_, E>,
    ) {
        assert_eq!(out.shape(), (order.len(), x.columns), "rows of slots");
        let gather = GatherRows { x, order, per_token, out };
        on_backend!(self, Memory, gather_rows(gather));
    }

    /// `d_x[token]` becomes the sum of `d_out[slot]` over the slots of the token's choices, or grows by it.
    pub fn gather_rows_backward<E: Element, O: Element>(
        &self,
        d_out: Matrix<'_, E>,
        slots: View<'_, u32>,
        per_token: usize,
        mode: Accumulate,
        d_x: MatrixMut<'_, O>,
    ) {
        assert_eq!((slots.len(), d_out.columns), (d_x.rows * per_token, d_x.columns), "rows of slots");
        let sum = SumSlots { y: d_out, slots, weights: None, per_token, mode, out: d_x };
        on_backend!(self, Memory, sum_slots(sum));
    }

    /// `out[token]` becomes the weighted sum of `y[slot]` over the slots of the token's choices, or grows by it.
    pub fn combine<E: Element, O: Element>(
        &self,
        y: Matrix<'_, E>,
        slots: View<'_, u32>,
        weights: View<'_, f32>,
        per_token: usize,
        mode: Accumulate,
        out: MatrixMut<'_, O>,
    ) {
        assert_eq!((slots.len(), y.columns), (out.rows * per_token, out.columns), "rows of slots");
        assert_eq!(weights.len(), slots.len(), "weights of choices");
        let sum = SumSlots { y, slots, weights: Some(weights), per_token, mode, out };
        on_backend!(self, Memory, sum_slots(sum));
    }

    /// Replaces `d_y` and `d_weights`. Panics when two choices have the same slot.
    #[expect(clippy::too_many_arguments, reason = "what the forward pass had, and its gradients")]
    pub fn combine_backward<E: Element>(
        &self,
        d_out: Matrix<'_, E>,
        y: Matrix<'_, E>,
        slots: View<'_, u32>,
        weights: View<'_, f32>,
        per_token: usize,
        d_y: MatrixMut<'_, E>,
        d_weights: ViewMut<'_, f32>,
    ) {
        assert_eq!(d_y.shape(), y.shape(), "rows of slots");
        assert_eq!(d_out.columns, y.columns, "the output of experts");
        assert_eq!([slots.len(), y.rows], [d_out.rows * per_token; 2], "slots of choices");
        assert_eq!([weights.len(), d_weights.len()], [slots.len(); 2], "weights of choices");
        let combine = CombineBackward { d_out, y, slots, weights, per_token, d_y, d_weights };
        on_backend!(self, Memory, combine_backward(combine));
    }

    /// `out = sigmoid(logit) * x` by rows, as Qwen2-MoE's shared expert is gated, or `+=`.
    pub fn gate_rows<E: Element, O: Element>(
        &self,
        x: Matrix<'_, E>,
        logits: View<'_, f32>,
        mode: Accumulate,
        out: MatrixMut<'_, O>,
    ) {
        assert_eq!(x.shape(), out.shape(), "the output of a gate");
        assert_eq!(logits.len(), x.rows, "a logit for each row");
        let gate = GateForward { x, logits, mode, out };
        on_backend!(self, Memory, gate_rows(gate));
    }

    /// Replaces `d_x` and `d_logits`.
    pub fn gate_rows_backward<E: Element>(
        &self,
        d_out: Matrix<'_, E>,
        x: Matrix<'_, E>,
        logits: View<'_, f32>,
        d_x: MatrixMut<'_, E>,
        d_logits: ViewMut<'_, f32>,
    ) {
        assert_eq!([d_out.shape(), d_x.shape()], [x.shape(); 2], "output and input of a gate");
        assert_eq!([logits.len(), d_logits.len()], [x.rows; 2], "a logit for each row");
        let gate = GateBackward { d_out, x, logits, d_x, d_logits };
        on_backend!(self, Memory, gate_rows_backward(gate));
    }
}

#[cfg(test)]
mod tests;
