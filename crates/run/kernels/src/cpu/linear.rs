//! Linear layers as products whose sums are finished where they are made.

use super::Cpu;
use super::multiply::{Finished, Multiplier, Operand, Product, fetch};
use crate::device::{LinearBackwardInput, LinearBackwardWeight, LinearForward};
use crate::{Accumulate, Element, Matrix, MatrixMut, Rows, ViewMut};

/// How many products there are, their operands, and the row of the output in which the sums of each begin.
pub(crate) type Products<'f, 'a> =
    (usize, &'f (dyn Fn(usize) -> Product<'a> + Sync), &'f (dyn Fn(usize) -> usize + Sync));

/// Where a line of sums belongs in the output.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub(crate) row: usize,
    pub(crate) column: usize,
}

impl Cpu {
    pub(crate) fn linear<X: Element, W: Element, B: Element, O: Element>(
        &self,
        layer: LinearForward<'_, X, Matrix<'_, W>, B, O>,
    ) {
        let LinearForward { x, weight, bias, residual, out } = layer;
        let product =
            Product { left: Operand::rows_of(self.rows(x)), right: Operand::rows_of(self.rows(weight)) };
        let bias = bias.map(|bias| self.slice(bias));
        let residual = residual.map(|residual| self.rows(residual));
        inlined!(self.multiply_into(
            self.linear_multiplier::<X, W>(x.rows),
            (1, &|_| product, &|_| 0),
            out,
            |at, sums, out| finish(at, sums, bias, residual, out)
        ));
    }

    pub(crate) fn add_sums<W: Element, O: Element>(&self, layer: LinearForward<'_, f32, (), W, O>) {
        let LinearForward { x: sums, bias, residual, out, .. } = layer;
        let bias = bias.map(|bias| self.slice(bias));
        let (sums, residual) = (self.rows(sums), residual.map(|residual| self.rows(residual)));
        inlined!(self.in_rows(out.shape(), self.rows_mut(out), |row, out| {
            for (column, out) in out.iter_mut().enumerate() {
                let bias = bias.map_or(0.0, |bias| bias[column].widen());
                let under = residual.map_or(0.0, |residual| residual.row(row)[column].widen());
                *out = O::narrow(sums.row(row)[column] + bias + under);
            }
        }));
    }

    pub(crate) fn linear_backward_input<D: Element, W: Element, X: Element>(
        &self,
        layer: LinearBackwardInput<'_, D, W, X>,
    ) {
        let LinearBackwardInput { d_out, weight, mode, d_x } = layer;
        let left = Operand::rows_of(self.rows(d_out));
        let product = Product { left, right: Operand::columns_of(self.rows(weight)) };
        inlined!(self.multiply_into(
            self.linear_multiplier::<D, W>(d_out.rows),
            (1, &|_| product, &|_| 0),
            d_x,
            |_, sums, out| mode.apply_all(sums, out)
        ));
    }

    pub(crate) fn linear_backward_weight<D: Element, X: Element>(
        &self,
        layer: LinearBackwardWeight<'_, D, X>,
    ) {
        let LinearBackwardWeight { d_out, x, d_weight, d_bias } = layer;
        let left = Operand::columns_of(self.rows(d_out));
        let product = Product { left, right: Operand::columns_of(self.rows(x)) };
        inlined!(self.multiply_into(
            self.linear_multiplier::<D, X>(d_out.columns),
            (1, &|_| product, &|_| 0),
            d_weight,
            |_, sums, out| Accumulate::Add.apply_all(sums, out)
        ));
        if let Some(d_bias) = d_bias {
            self.add_sum_of_rows(self.rows(d_out), d_bias);
        }
    }

    /// Adds the sum of the rows to `sums`: columns are shared out, rows are added from the first to the last.
    fn add_sum_of_rows<D: Element>(&self, rows: Rows<&[D]>, sums: ViewMut<'_, f32>) {
        const COLUMNS: usize = 256;
        inlined!(self.in_chunks(rows.columns, COLUMNS, self.shared(sums, 1), |range, sums| {
            let mut chunk = [0.0; COLUMNS];
            let chunk = &mut chunk[..range.len()];
            for row in 0..rows.rows {
                let values = &rows.row(row)[range.clone()];
                chunk.iter_mut().zip(values).for_each(|(sum, value)| *sum += value.widen());
            }
            sums.iter_mut().zip(chunk).for_each(|(sum, more)| *sum += *more);
        }));
    }

    /// Multiplies, and calls `finish(at, sums, out)` for each line of sums with the elements of the output where it belongs.
    #[inline(always)]
    pub(crate) fn multiply_into<O: Element>(
        &self,
        multiplier: &dyn Multiplier,
        (count, product, first_row): Products<'_, '_>,
        out: MatrixMut<'_, O>,
        finish: impl Fn(At, &[f32], &mut [O]) + Sync,
    ) {
        let (level, out) = (self.level, self.rows_mut(out));
        self.multiply(multiplier, count, product, &|part| {
            let (first_row, columns) = (first_row(part.product) + part.row, part.columns);
            inlined!(level.vectorized(|| {
                for (row, sums) in part.sums.chunks_exact(part.stride).enumerate().take(part.rows) {
                    let at = At { row: first_row + row, column: part.column };
                    #[expect(unsafe_code, reason = "the output is shared out as its products are")]
                    // SAFETY: `multiply` finishes each part of a product once, and products begin in rows of their own.
                    let out = unsafe { out.part_of_row(at.row, at.column, columns) };
                    // The part to the right is usually finished next.
                    fetch::to_write(out.as_ptr().wrapping_add(columns), columns);
                    finish(at, &sums[..columns], out);
                }
            }));
        });
    }
}

/// A line of sums with bias and residual.
#[inline(always)]
pub(crate) fn finish<W: Element, O: Element>(
    at: At,
    sums: &[f32],
    bias: Option<&[W]>,
    residual: Option<Rows<&[O]>>,
    out: &mut [O],
) {
    if bias.is_none() && residual.is_none() {
        return Accumulate::Replace.apply_all(sums, out);
    }
    let columns = at.column..at.column + sums.len();
    let mut line = [0.0; Finished::MAX_COLUMNS];
    let line = &mut line[..sums.len()];
    line.copy_from_slice(sums);
    if let Some(bias) = bias {
        line.iter_mut().zip(&bias[columns.clone()]).for_each(|(sum, bias)| *sum += bias.widen());
    }
    if let Some(residual) = residual {
        let under = &residual.row(at.row)[columns];
        line.iter_mut().zip(under).for_each(|(sum, under)| *sum += under.widen());
    }
    out.iter_mut().zip(line).for_each(|(out, sum)| *out = O::narrow(*sum));
}

impl Accumulate {
    /// Replaces a line of the output by sums, or adds them to it.
    #[inline(always)]
    pub(crate) fn apply_all<O: Element>(self, sums: &[f32], out: &mut [O]) {
        match self {
            Accumulate::Replace => each(out, sums, |_, sum| O::narrow(sum)),
            Accumulate::Add => each(out, sums, |out, sum| O::narrow(out.widen() + sum)),
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
