//! Linear layers of experts: all experts' chunks go to the thread pool in one run, so that many small experts keep it as busy
//! as one large layer.

use std::ops::Range;

use super::Cpu;
use super::multiply::{Operand, Product};
use crate::device::{ExpertBackwardWeight, ExpertForward};
use crate::{Accumulate, Element, Matrix, MatrixMut, View, ViewMut};

/// Which rows belong to which expert.
#[derive(Clone, Copy)]
pub(crate) struct Experts<'a>(&'a [u32]);

impl<'a> Experts<'a> {
    /// Panics unless the offsets ascend from zero to `rows`.
    pub(crate) fn new(offsets: &'a [u32], rows: usize) -> Self {
        assert!(offsets.is_sorted() && offsets.first() == Some(&0), "offsets of experts ascend from zero");
        assert_eq!(offsets.last().map(|end| *end as usize), Some(rows), "experts have all rows");
        Self(offsets)
    }

    fn count(self) -> usize {
        self.0.len() - 1
    }

    /// The expert of a row.
    fn of(self, row: usize) -> usize {
        self.0[1..].partition_point(|end| *end as usize <= row)
    }

    pub(crate) fn rows(self, expert: usize) -> Range<usize> {
        self.0[expert] as usize..self.0[expert + 1] as usize
    }
}

impl Cpu {
    pub(crate) fn expert_linear<E: Element>(&self, layer: ExpertForward<'_, E, Matrix<'_, E>, E>) {
        let ExpertForward { x, offsets, weights, out } = layer;
        let (experts, outputs) = (Experts::new(self.slice(offsets), x.rows), out.columns);
        let (x, weights) = (self.rows(x), self.rows(weights));
        let product = |expert: usize| Product {
            left: Operand::rows_of(x.rows(experts.rows(expert))),
            right: Operand::rows_of(weights.rows(expert * outputs..(expert + 1) * outputs)),
        };
        self.multiply_rows_of_experts::<E>(experts, &product, out);
    }

    pub(crate) fn expert_linear_backward_input<E: Element>(
        &self,
        layer: ExpertForward<'_, E, Matrix<'_, E>, E>,
    ) {
        let ExpertForward { x: d_out, offsets, weights, out: d_x } = layer;
        let (experts, outputs) = (Experts::new(self.slice(offsets), d_out.rows), d_out.columns);
        let (d_out, weights) = (self.rows(d_out), self.rows(weights));
        let product = |expert: usize| Product {
            left: Operand::rows_of(d_out.rows(experts.rows(expert))),
            right: Operand::columns_of(weights.rows(expert * outputs..(expert + 1) * outputs)),
        };
        self.multiply_rows_of_experts::<E>(experts, &product, d_x);
    }

    pub(crate) fn expert_linear_backward_weight<E: Element>(&self, layer: ExpertBackwardWeight<'_, E>) {
        let ExpertBackwardWeight { d_out, x, offsets, d_weights } = layer;
        let experts = Experts::new(self.slice(offsets), x.rows);
        let (d_out, x) = (self.rows(d_out), self.rows(x));
        let product = |expert: usize| Product {
            left: Operand::columns_of(d_out.rows(experts.rows(expert))),
            right: Operand::columns_of(x.rows(experts.rows(expert))),
        };
        let first_row = |expert: usize| expert * d_out.columns;
        let multiplier = self.linear_multiplier::<E, E>(d_out.columns);
        inlined!(self.multiply_into(
            multiplier,
            (experts.count(), &product, &first_row),
            d_weights,
            |_, sums, out| Accumulate::Add.apply_all(sums, out)
        ));
    }

    pub(crate) fn add_expert_bias<E: Element>(
        &self,
        offsets: View<'_, u32>,
        bias: View<'_, E>,
        out: MatrixMut<'_, E>,
    ) {
        let (experts, shape) = (Experts::new(self.slice(offsets), out.rows), out.shape());
        let bias = self.slice(bias);
        inlined!(self.in_rows(shape, self.rows_mut(out), |row, out| {
            let bias = &bias[experts.of(row) * out.len()..][..out.len()];
            out.iter_mut().zip(bias).for_each(|(out, bias)| *out = E::narrow(out.widen() + bias.widen()));
        }));
    }

    /// An expert is a chunk of work, so that sums have one order.
    pub(crate) fn expert_bias_backward<E: Element>(
        &self,
        d_out: Matrix<'_, E>,
        offsets: View<'_, u32>,
        d_bias: ViewMut<'_, f32>,
    ) {
        let (experts, d_out) = (Experts::new(self.slice(offsets), d_out.rows), self.rows(d_out));
        let outputs = self.shared(d_bias, d_out.columns);
        inlined!(self.in_chunks(experts.count(), 1, outputs, |expert, sums| {
            for row in experts.rows(expert.start) {
                sums.iter_mut().zip(d_out.row(row)).for_each(|(sum, d)| *sum += d.widen());
            }
        }));
    }

    fn multiply_rows_of_experts<'a, E: Element>(
        &self,
        experts: Experts<'_>,
        product: &(dyn Fn(usize) -> Product<'a> + Sync),
        out: MatrixMut<'_, E>,
    ) {
        let first_row = |expert: usize| experts.rows(expert).start;
        let multiplier = self.linear_multiplier::<E, E>(out.rows / experts.count().max(1));
        inlined!(self.multiply_into(
            multiplier,
            (experts.count(), product, &first_row),
            out,
            |_, sums, out| Accumulate::Replace.apply_all(sums, out)
        ));
    }
}
