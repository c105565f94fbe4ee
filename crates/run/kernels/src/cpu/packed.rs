//! Products with packed weights.

use super::Cpu;
use crate::device::Body;
use crate::{Buffer, Element, Matrix, MatrixMut, Packed, Rows, View, WeightFormat};

/// A matrix as the processor multiplies by it.
pub(crate) struct PackedBody {
    numbers: Buffer<f32>,
}

impl PackedBody {
    pub(crate) fn bytes(&self) -> usize {
        self.numbers.bytes()
    }
}

impl Packed {
    fn cpu(&self) -> &PackedBody {
        let Body::Cpu(body) = &self.body;
        body
    }
}

impl Cpu {
    pub(crate) fn pack<W: Element>(&self, weight: Matrix<'_, W>, _format: WeightFormat) -> PackedBody {
        let weight = self.rows(weight);
        let mut numbers = self.zeros(weight.rows * weight.columns);
        let to = self.slice_mut(numbers.view_mut());
        for (row, to) in to.chunks_mut(weight.columns.max(1)).enumerate() {
            to.iter_mut().zip(weight.row(row)).for_each(|(to, from)| *to = from.widen());
        }
        PackedBody { numbers }
    }

    pub(crate) fn linear_packed<X: Element, O: Element>(
        &self,
        x: Matrix<'_, X>,
        weight: &Packed,
        bias: Option<View<'_, X>>,
        residual: Option<Matrix<'_, O>>,
        out: MatrixMut<'_, O>,
    ) {
        let (x, matrix) = (self.rows(x), self.matrix_of(weight));
        let (bias, residual) =
            (bias.map(|bias| self.slice(bias)), residual.map(|residual| self.rows(residual)));
        let (shape, out) = (out.shape(), self.rows_mut(out));
        inlined!(self.in_rows(shape, out, |row, out| {
            for (output, out) in out.iter_mut().enumerate() {
                let mut sum = 0.0;
                for (a, b) in x.row(row).iter().zip(matrix.row(output)) {
                    sum += a.widen() * b;
                }
                sum += bias.map_or(0.0, |bias| bias[output].widen());
                sum += residual.map_or(0.0, |residual| residual.row(row)[output].widen());
                *out = O::narrow(sum);
            }
        }));
    }

    pub(crate) fn expert_linear_packed<X: Element, O: Element>(
        &self,
        x: Matrix<'_, X>,
        offsets: View<'_, u32>,
        weights: &[Packed],
        out: MatrixMut<'_, O>,
    ) {
        let (x, offsets) = (self.rows(x), self.slice(offsets));
        let matrices: Vec<_> = weights.iter().map(|weight| self.matrix_of(weight)).collect();
        let (shape, out) = (out.shape(), self.rows_mut(out));
        inlined!(self.in_rows(shape, out, |row, out| {
            let expert = offsets.partition_point(|offset| *offset as usize <= row) - 1;
            let matrix = &matrices[expert];
            for (output, out) in out.iter_mut().enumerate() {
                let products = x.row(row).iter().zip(matrix.row(output)).map(|(a, b)| a.widen() * b);
                *out = O::narrow(products.sum());
            }
        }));
    }

    pub(crate) fn unpack_rows<O: Element>(
        &self,
        tokens: View<'_, u32>,
        table: &Packed,
        out: MatrixMut<'_, O>,
    ) {
        let (tokens, matrix) = (self.slice(tokens), self.matrix_of(table));
        let (shape, out) = (out.shape(), self.rows_mut(out));
        inlined!(self.in_rows(shape, out, |row, out| {
            out.iter_mut()
                .zip(matrix.row(tokens[row] as usize))
                .for_each(|(to, from)| *to = O::narrow(*from));
        }));
    }

    fn matrix_of<'a>(&self, weight: &'a Packed) -> Rows<&'a [f32]> {
        self.rows(weight.cpu().numbers.view().matrix(weight.outputs, weight.inputs))
    }
}
