//! Linear layers of experts: one launch for all, whose blocks find their expert by the offsets.

use super::Cuda;
use super::grouped::{GroupedWeight, RowsOfExperts};
use super::linear::{ExpertSplit, Extras, Side, Steps};
use crate::device::{ExpertBackwardWeight, ExpertForward};
use crate::{Element, Matrix, View};

impl Cuda {
    pub(crate) fn expert_linear<E: Element>(&self, layer: ExpertForward<'_, E, Matrix<'_, E>, E>) {
        let ExpertForward { x, offsets, weights, out } = layer;
        let (x, weights, out) = (self.side(&x), self.side(&weights), self.side_mut(&out));
        let split = self.split(offsets, out.columns * weights.lines.stride, false);
        let right = Steps { line: weights.lines.stride, depth: 1 };
        let sizes = [x.rows, out.columns, x.columns];
        let (address, bytes) = (weights.lines.address, weights.lines.bytes);
        let weight = GroupedWeight {
            format: weights.format,
            outputs: out.columns,
            inputs: x.columns,
            table: 0,
            first: address,
            each: bytes * split.each,
            scales: 0,
        };
        let rows = RowsOfExperts { offsets: split.offsets, experts: split.experts, order: None };
        let is_dense = weights.lines.is_aligned() && weights.lines.stride == x.columns;
        if !is_dense || !self.multiply_grouped(x, Some(rows), weight, Extras::default(), out) {
            self.multiply_experts((x, along(x)), (weights, right), sizes, false, Some(split), out);
        }
    }

    pub(crate) fn expert_linear_backward_input<E: Element>(
        &self,
        layer: ExpertForward<'_, E, Matrix<'_, E>, E>,
    ) {
        let ExpertForward { x: d_out, offsets, weights, out: d_x } = layer;
        let (d, weights, out) = (self.side(&d_out), self.side(&weights), self.side_mut(&d_x));
        let split = self.split(offsets, d.columns * weights.lines.stride, false);
        let right = Steps { line: 1, depth: weights.lines.stride };
        let sizes = [d.rows, out.columns, d.columns];
        self.multiply_experts((d, along(d)), (weights, right), sizes, false, Some(split), out);
    }

    pub(crate) fn expert_linear_backward_weight<E: Element>(&self, layer: ExpertBackwardWeight<'_, E>) {
        let ExpertBackwardWeight { d_out, x, offsets, d_weights } = layer;
        let (d, x, out) = (self.side(&d_out), self.side(&x), self.side_mut(&d_weights));
        let split = self.split(offsets, d.columns * out.lines.stride, true);
        let across = |side: Side| Steps { line: 1, depth: side.lines.stride };
        let sizes = [d.columns, x.columns, x.rows];
        self.multiply_experts((d, across(d)), (x, across(x)), sizes, true, Some(split), out);
    }

    fn split(&self, offsets: View<'_, u32>, each: usize, is_deep: bool) -> ExpertSplit {
        let experts = offsets.len().saturating_sub(1);
        ExpertSplit { offsets: self.at(offsets), experts, each, table: 0, is_deep }
    }
}

fn along(side: Side) -> Steps {
    Steps { line: side.lines.stride, depth: 1 }
}
