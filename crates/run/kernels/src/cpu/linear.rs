//! Linear layers: `y = x W^T + b` and its gradients.

use std::ops::Range;

use bedplate_breakdown::Part;

use crate::cpu::multiply::{Finished, Operand, Product, fetch};
use crate::cpu::stream::SharedMut;
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
        let weight = weight.matrix(out.columns, x.columns);
        assert!(bias.is_none_or(|bias| bias.len() == out.columns), "the bias of a linear layer");
        assert!(
            residual.is_none_or(|residual| (residual.rows, residual.columns) == (out.rows, out.columns)),
            "the residual of a linear layer"
        );
        let product = Product { left: Operand::rows_of(x), right: Operand::rows_of(weight) };
        let level = self.level;
        let out = Target::new(out);
        self.time(Part::Compute, || {
            self.multiply(self.engine::<X, W>(), 1, &|_| product, &|part| {
                level.vectorized(
                    #[inline(always)]
                    || out.finish(part, bias, residual),
                );
            });
        });
    }

    /// `out = sums + bias + residual`: the end of [`Device::linear`], for sums that several ranks have added up.
    pub fn add_sums<W: Element, O: Element>(
        &self,
        sums: Matrix<'_, f32>,
        bias: Option<View<'_, W>>,
        residual: Matrix<'_, O>,
        out: MatrixMut<'_, O>,
    ) {
        let size = (out.rows, out.columns);
        assert_eq!([(sums.rows, sums.columns), (residual.rows, residual.columns)], [size; 2], "sums to add");
        assert!(bias.is_none_or(|bias| bias.len() == out.columns), "the bias of a linear layer");
        let out = out.into_shared();
        self.time(Part::Memory, || {
            self.in_rows(
                size.0,
                size.1,
                #[inline(always)]
                |rows| {
                    for row in rows {
                        let out = out.row(row);
                        let terms = sums.row(row).iter().zip(residual.row(row)).enumerate();
                        for (out, (column, (sum, under))) in out.iter_mut().zip(terms) {
                            let bias = bias.map_or(0.0, |bias| bias.host()[column].widen());
                            *out = O::narrow(sum + bias + under.widen());
                        }
                    }
                },
            );
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
        let weight = weight.matrix(d_out.columns, d_x.columns);
        let product = Product { left: Operand::rows_of(d_out), right: Operand::columns_of(weight) };
        let level = self.level;
        let d_x = Target::new(d_x);
        self.time(Part::Compute, || {
            self.multiply(self.engine::<D, W>(), 1, &|_| product, &|part| {
                level.vectorized(
                    #[inline(always)]
                    || d_x.put(part, into),
                );
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
        let product = Product { left: Operand::columns_of(d_out), right: Operand::columns_of(x) };
        let level = self.level;
        let d_weight = Target::new(d_weight.matrix(d_out.columns, x.columns));
        self.time(Part::Compute, || {
            self.multiply(self.engine::<D, X>(), 1, &|_| product, &|part| {
                level.vectorized(
                    #[inline(always)]
                    || d_weight.put(part, Into::Add),
                );
            });
            if let Some(d_bias) = d_bias {
                self.add_sum_of_rows(d_out, d_bias);
            }
        });
    }

    /// Adds the sum of the rows to `sums`: columns are shared out, rows are added from the first to the last.
    fn add_sum_of_rows<D: Element>(&self, rows: Matrix<'_, D>, sums: ViewMut<'_, f32>) {
        const COLUMNS: usize = 256;
        assert_eq!(sums.len(), rows.columns, "the bias of a linear layer");
        let sums = SharedMut::new(sums.into_host());
        let values = rows.view.host();
        self.in_chunks(
            rows.columns,
            COLUMNS,
            #[inline(always)]
            |range| {
                let mut chunk = [0.0; COLUMNS];
                let chunk = &mut chunk[..range.len()];
                for row in 0..rows.rows {
                    let values = &values[row * rows.stride..][range.clone()];
                    chunk.iter_mut().zip(values).for_each(|(sum, value)| *sum += value.widen());
                }
                sums.range(range).iter_mut().zip(chunk).for_each(|(sum, more)| *sum += *more);
            },
        );
    }
}

/// A matrix that members write sums to, each to a part of its own.
pub(crate) struct Target<'a, O> {
    values: SharedMut<'a, O>,
    stride: usize,
}

impl<'a, O: Element> Target<'a, O> {
    pub(crate) fn new(out: MatrixMut<'a, O>) -> Self {
        Self { values: SharedMut::new(out.view.into_host()), stride: out.stride }
    }

    #[inline(always)]
    fn row(&self, part: &Finished<'_>, row: usize) -> &mut [O] {
        let start = (part.row + row) * self.stride + part.column;
        let row = self.values.range(start..start + part.columns);
        // The part to the right is usually finished next.
        fetch::to_write(row.as_ptr().wrapping_add(part.columns), part.columns);
        row
    }

    /// Asks for a piece of some rows that will be written.
    pub(crate) fn fetch(&self, rows: Range<usize>, column: usize, count: usize) {
        for row in rows {
            let start = row * self.stride + column;
            fetch::to_write(self.values.range(start..start + count).as_ptr(), count);
        }
    }

    /// A piece of one row.
    #[inline(always)]
    pub(crate) fn write(&self, row: usize, column: usize, values: &[f32]) {
        let start = row * self.stride + column;
        each(self.values.range(start..start + values.len()), values, |_, value| O::narrow(value));
    }

    /// The sums, or that much more.
    #[inline(always)]
    pub(crate) fn put(&self, part: Finished<'_>, into: Into) {
        for (row, sums) in part.sums.chunks_exact(part.stride).enumerate().take(part.rows) {
            let (out, sums) = (self.row(&part, row), &sums[..part.columns]);
            match into {
                Into::Replace => each(out, sums, |_, sum| O::narrow(sum)),
                Into::Add => each(out, sums, |out, sum| O::narrow(out.widen() + sum)),
            }
        }
    }

    /// The sums with bias and residual.
    #[inline(always)]
    fn finish<W: Element>(
        &self,
        part: Finished<'_>,
        bias: Option<View<'_, W>>,
        residual: Option<Matrix<'_, O>>,
    ) {
        if bias.is_none() && residual.is_none() {
            return self.put(part, Into::Replace);
        }
        let bias = bias.map(|bias| &bias.host()[part.column..][..part.columns]);
        for (row, sums) in part.sums.chunks_exact(part.stride).enumerate().take(part.rows) {
            let mut line = [0.0; Finished::MAX_COLUMNS];
            let line = &mut line[..part.columns];
            line.copy_from_slice(&sums[..part.columns]);
            if let Some(bias) = bias {
                line.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias.widen());
            }
            if let Some(residual) = residual {
                let start = (part.row + row) * residual.stride + part.column;
                let under = &residual.view.host()[start..start + part.columns];
                line.iter_mut().zip(under).for_each(|(sum, under)| *sum += under.widen());
            }
            self.row(&part, row).iter_mut().zip(line).for_each(|(out, sum)| *out = O::narrow(*sum));
        }
    }
}

/// Replaces each number by what `change` makes of it and its neighbour; in pieces of a fixed size, which is faster.
#[inline(always)]
fn each<O: Copy>(out: &mut [O], sums: &[f32], change: impl Fn(O, f32) -> O) {
    let ((out, out_rest), (sums, rest)) = (out.as_chunks_mut::<16>(), sums.as_chunks::<16>());
    for (out, sums) in out.iter_mut().zip(sums) {
        *out = std::array::from_fn(|lane| change(out[lane], sums[lane]));
    }
    out_rest.iter_mut().zip(rest).for_each(|(out, sum)| *out = change(*out, *sum));
}

#[cfg(test)]
mod tests;
