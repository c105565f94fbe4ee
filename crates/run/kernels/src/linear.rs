//! Linear layers: `y = x W^T + b` and its gradients.

use bedplate_breakdown::Part;

use crate::stream::SharedMut;
use crate::{Device, Element, Matrix, MatrixMut, View, ViewMut};

/// Whether an operator replaces what its output holds or adds to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Into {
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
        assert_eq!(weight.len(), out.columns * x.columns, "the weight of a linear layer");
        let (rows, columns, stride) = (out.rows, out.columns, out.stride);
        let shared = SharedMut::new(out.view.into_host());
        self.time(Part::Compute, || {
            self.team.run(rows, &|row, _| {
                let inputs = &x.view.host()[row * x.stride..][..x.columns];
                let outputs = shared.range(row * stride..row * stride + columns);
                for (column, output) in outputs.iter_mut().enumerate() {
                    let weights = &weight.host()[column * x.columns..][..x.columns];
                    let product: f32 = inputs.iter().zip(weights).map(|(x, w)| x.widen() * w.widen()).sum();
                    let bias = bias.map_or(0.0, |bias| bias.host()[column].widen());
                    let under =
                        residual.map_or(0.0, |under| under.view.host()[row * under.stride + column].widen());
                    *output = O::narrow(product + bias + under);
                }
            });
        });
    }

    /// `d_x = d_out W`, or that much more.
    pub fn linear_backward_input<D: Element, W: Element, X: Element>(
        &self,
        d_out: Matrix<'_, D>,
        weight: View<'_, W>,
        into: Into,
        d_x: MatrixMut<'_, X>,
    ) {
        assert_eq!(d_out.rows, d_x.rows, "rows of a linear layer");
        assert_eq!(weight.len(), d_out.columns * d_x.columns, "the weight of a linear layer");
        let (rows, columns, stride) = (d_x.rows, d_x.columns, d_x.stride);
        let shared = SharedMut::new(d_x.view.into_host());
        self.time(Part::Compute, || {
            self.team.run(rows, &|row, _| {
                let gradients = &d_out.view.host()[row * d_out.stride..][..d_out.columns];
                let inputs = shared.range(row * stride..row * stride + columns);
                for (column, input) in inputs.iter_mut().enumerate() {
                    let weights = weight.host()[column..].iter().step_by(columns);
                    let product: f32 =
                        gradients.iter().zip(weights).map(|(d, w)| d.widen() * w.widen()).sum();
                    let under = if into == Into::Add { input.widen() } else { 0.0 };
                    *input = X::narrow(under + product);
                }
            });
        });
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
        assert_eq!(d_weight.len(), d_out.columns * x.columns, "the weight of a linear layer");
        let shared = SharedMut::new(d_weight.into_host());
        let gradient = |row: usize, output: usize| d_out.view.host()[row * d_out.stride + output].widen();
        self.time(Part::Compute, || {
            self.team.run(d_out.columns, &|output, _| {
                let sums = shared.range(output * x.columns..(output + 1) * x.columns);
                for row in 0..x.rows {
                    let inputs = &x.view.host()[row * x.stride..][..x.columns];
                    sums.iter_mut()
                        .zip(inputs)
                        .for_each(|(sum, x)| *sum += gradient(row, output) * x.widen());
                }
            });
            for (output, sum) in d_bias.into_iter().flat_map(|bias| bias.into_host().iter_mut().enumerate()) {
                *sum += (0..x.rows).map(|row| gradient(row, output)).sum::<f32>();
            }
        });
    }

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
