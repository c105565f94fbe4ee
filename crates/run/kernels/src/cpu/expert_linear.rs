//! Linear layers of experts: one product per expert, all shared out together.
//!
//! Rows are sorted by expert; `offsets[e]..offsets[e + 1]` are those of expert `e`, possibly none. All experts' chunks
//! go to the team in one run, so that many small experts keep it as busy as one large layer.

use std::ops::Range;

use bedplate_breakdown::Part;

use crate::cpu::linear::Target;
use crate::cpu::multiply::{Finished, Operand, Product};
use crate::{Device, Element, Into, Matrix, MatrixMut, View, ViewMut};

/// Which rows belong to which expert.
#[derive(Clone, Copy)]
struct Experts<'a>(&'a [u32]);

impl<'a> Experts<'a> {
    /// Panics unless the offsets ascend from zero to `rows`.
    fn new(offsets: View<'a, u32>, rows: usize) -> Self {
        let offsets = offsets.host();
        assert!(offsets.is_sorted() && offsets.first() == Some(&0), "offsets of experts ascend from zero");
        assert_eq!(offsets.last().map(|end| *end as usize), Some(rows), "experts have all rows");
        Self(offsets)
    }

    fn count(self) -> usize {
        self.0.len() - 1
    }

    fn rows(self, expert: usize) -> Range<usize> {
        self.0[expert] as usize..self.0[expert + 1] as usize
    }
}

/// The weight of one of several experts, which lie one after the other.
fn weight_of<'a, E: Element>(
    weights: View<'a, E>,
    expert: usize,
    (outputs, inputs): (usize, usize),
) -> Matrix<'a, E> {
    let len = outputs * inputs;
    weights.range(expert * len..(expert + 1) * len).matrix(outputs, inputs)
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
        let experts = Experts::new(offsets, x.rows);
        let shape = (out.columns, x.columns);
        assert_eq!(weights.len(), experts.count() * shape.0 * shape.1, "the weights of experts");
        let product = |expert: usize| Product {
            left: Operand::rows_of(x.rows(experts.rows(expert))),
            right: Operand::rows_of(weight_of(weights, expert, shape)),
        };
        self.multiply_rows_of_experts::<E>(experts, &product, out);
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
        let experts = Experts::new(offsets, d_x.rows);
        let shape = (d_out.columns, d_x.columns);
        assert_eq!(weights.len(), experts.count() * shape.0 * shape.1, "the weights of experts");
        let product = |expert: usize| Product {
            left: Operand::rows_of(d_out.rows(experts.rows(expert))),
            right: Operand::columns_of(weight_of(weights, expert, shape)),
        };
        self.multiply_rows_of_experts::<E>(experts, &product, d_x);
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
        let experts = Experts::new(offsets, x.rows);
        let product = |expert: usize| Product {
            left: Operand::columns_of(d_out.rows(experts.rows(expert))),
            right: Operand::columns_of(x.rows(experts.rows(expert))),
        };
        // The experts' weights lie below each other like one tall matrix.
        let target = Target::new(d_weights.matrix(experts.count() * d_out.columns, x.columns));
        let level = self.level;
        self.time(Part::Compute, || {
            self.multiply(self.engine::<E, E>(), experts.count(), &product, &|part| {
                let part = Finished { row: part.product * d_out.columns + part.row, ..part };
                level.vectorized(
                    #[inline(always)]
                    || target.put(part, Into::Add),
                );
            });
        });
    }

    fn multiply_rows_of_experts<'a, E: Element>(
        &self,
        experts: Experts<'_>,
        product: &(dyn Fn(usize) -> Product<'a> + Sync),
        out: MatrixMut<'_, E>,
    ) {
        let target = Target::new(out);
        let level = self.level;
        self.time(Part::Compute, || {
            self.multiply(self.engine::<E, E>(), experts.count(), product, &|part| {
                let part = Finished { row: experts.rows(part.product).start + part.row, ..part };
                level.vectorized(
                    #[inline(always)]
                    || target.put(part, Into::Replace),
                );
            });
        });
    }
}

#[cfg(test)]
mod tests;
