//! Linear layers of experts: each multiplies the rows of the tokens that chose it.

use crate::{Device, Element, Into, Matrix, MatrixMut, View, ViewMut};

impl Device {
    /// The linear layer of each expert over its rows, `offsets[e]..offsets[e + 1]`. `weights` are those of all experts.
    pub fn expert_linear<E: Element>(
        &self,
        x: Matrix<'_, E>,
        offsets: View<'_, u32>,
        weights: View<'_, E>,
        mut out: MatrixMut<'_, E>,
    ) {
        let size = x.columns * out.columns;
        for (expert, rows) in segments(offsets) {
            let weight = weights.range(expert * size..(expert + 1) * size);
            self.linear(x.rows(rows.clone()), weight, None, None, out.reborrow().into_rows(rows));
        }
    }

    /// Replaces `d_x` by its gradient.
    pub fn expert_linear_backward_input<E: Element>(
        &self,
        d_out: Matrix<'_, E>,
        offsets: View<'_, u32>,
        weights: View<'_, E>,
        mut d_x: MatrixMut<'_, E>,
    ) {
        let size = d_out.columns * d_x.columns;
        for (expert, rows) in segments(offsets) {
            let weight = weights.range(expert * size..(expert + 1) * size);
            let d_x = d_x.reborrow().into_rows(rows.clone());
            self.linear_backward_input(d_out.rows(rows), weight, Into::Replace, d_x);
        }
    }

    /// Adds to the gradients of all experts' weights.
    pub fn expert_linear_backward_weight<E: Element>(
        &self,
        d_out: Matrix<'_, E>,
        x: Matrix<'_, E>,
        offsets: View<'_, u32>,
        mut d_weights: ViewMut<'_, f32>,
    ) {
        let size = d_out.columns * x.columns;
        for (expert, rows) in segments(offsets) {
            let d_weight = d_weights.reborrow().into_range(expert * size..(expert + 1) * size);
            self.linear_backward_weight(d_out.rows(rows.clone()), x.rows(rows), d_weight, None);
        }
    }
}

/// Experts with rows, and their rows.
fn segments(offsets: View<'_, u32>) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let pairs = offsets.host().windows(2).enumerate();
    pairs
        .map(|(expert, pair)| (expert, pair[0] as usize..pair[1] as usize))
        .filter(|(_, rows)| !rows.is_empty())
}
