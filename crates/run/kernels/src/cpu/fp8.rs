//! Rounding to e4m3: a sign, four bits of exponent and three more of the number; and linear layers of numbers so rounded.
//!
//! A line has a power of two as scale, so that what stands for a number is a bf16 exactly, and products are those of bf16.
//! The rounded sides of a layer are allocated for each product, unlike anything else in a step: this shows what fp8 does to a model, not speed.

use crate::cpu::Cpu;
use crate::device::{LinearBackwardInput, LinearForward};
use crate::{Bf16, Buffer, Element, Matrix};

/// The exponent of the largest number, 448, and its bits below the leading one.
const TOP: i32 = 8;
const TOP_FRACTION: u32 = 0x60_0000;
/// The exponent of the smallest number that has a leading one, and its bits below it.
const LEAST: i32 = -6;
const BITS: i32 = 3;
/// Columns whose scales are found at once: some cache lines of neighbours.
const COLUMNS: usize = 64;

impl Cpu {
    pub(crate) fn linear_fp8<X: Element, W: Element, O: Element>(
        &self,
        layer: LinearForward<'_, X, Matrix<'_, W>, W, O>,
    ) {
        let LinearForward { x, weight, bias, residual, out } = layer;
        let (left, right) = (self.rows_in_fp8(x), self.rows_in_fp8(weight));
        let sides = [(&left, x.shape()), (&right, weight.shape())];
        let [x, weight] = sides.map(|(side, (rows, columns))| side.view().matrix(rows, columns));
        self.linear(LinearForward { x, weight, bias, residual, out });
    }

    pub(crate) fn linear_fp8_backward_input<D: Element, W: Element, X: Element>(
        &self,
        layer: LinearBackwardInput<'_, D, W, X>,
    ) {
        let LinearBackwardInput { d_out, weight, mode, d_x } = layer;
        let (left, right) = (self.rows_in_fp8(d_out), self.columns_in_fp8(weight));
        let sides = [(&left, d_out.shape()), (&right, weight.shape())];
        let [d_out, weight] = sides.map(|(side, (rows, columns))| side.view().matrix(rows, columns));
        self.linear_backward_input(LinearBackwardInput { d_out, weight, mode, d_x });
    }

    /// Each row rounded with a scale of its own.
    pub(super) fn rows_in_fp8<E: Element>(&self, matrix: Matrix<'_, E>) -> Buffer<Bf16> {
        let (shape, matrix) = (matrix.shape(), self.rows(matrix));
        let mut rounded = self.zeros::<Bf16>(shape.0 * shape.1);
        let to = self.rows_mut(rounded.view_mut().matrix(shape.0, shape.1));
        self.in_rows(shape, to, |row, to| {
            let most = matrix.row(row).iter().fold(0.0f32, |most, number| most.max(number.widen().abs()));
            let scale = scale_of(most);
            for (to, number) in to.iter_mut().zip(matrix.row(row)) {
                *to = round(number.widen(), scale);
            }
        });
        rounded
    }

    /// Each column rounded with a scale of its own.
    fn columns_in_fp8<E: Element>(&self, matrix: Matrix<'_, E>) -> Buffer<Bf16> {
        let (shape, matrix) = (matrix.shape(), self.rows(matrix));
        let mut scales = self.zeros::<f32>(shape.1);
        self.in_chunks(shape.1, COLUMNS, self.shared(scales.view_mut(), 1), |range, scales| {
            for row in 0..matrix.rows {
                let numbers = &matrix.row(row)[range.clone()];
                scales
                    .iter_mut()
                    .zip(numbers)
                    .for_each(|(most, number)| *most = most.max(number.widen().abs()));
            }
            scales.iter_mut().for_each(|most| *most = scale_of(*most));
        });
        let scales = self.slice(scales.view());
        let mut rounded = self.zeros::<Bf16>(shape.0 * shape.1);
        let to = self.rows_mut(rounded.view_mut().matrix(shape.0, shape.1));
        self.in_rows(shape, to, |row, to| {
            for ((to, number), scale) in to.iter_mut().zip(matrix.row(row)).zip(scales) {
                *to = round(number.widen(), *scale);
            }
        });
        rounded
    }
}

fn round(number: f32, scale: f32) -> Bf16 {
    Bf16::narrow(nearest(number / scale) * scale)
}

/// The smallest power of two with which numbers up to `most` are at most 448; 1 for zeros. A line with an infinite number
/// becomes NaN.
fn scale_of(most: f32) -> f32 {
    if most == 0.0 || most == f32::INFINITY {
        return 1.0f32.max(most);
    }
    let (exponent, fraction) = ((most.to_bits() >> 23) as i32 - 127, most.to_bits() & 0x7f_ffff);
    let exponent = exponent - TOP + i32::from(fraction > TOP_FRACTION);
    power(exponent.clamp(-100, 100))
}

/// The nearest number of e4m3, of two the even one; for numbers up to 448.
fn nearest(number: f32) -> f32 {
    let exponent = (number.to_bits() >> 23 & 0xff) as i32 - 127;
    let step = power(exponent.max(LEAST) - BITS);
    (number / step).round_ties_even() * step
}

fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number of the format, by its definition.
    fn all() -> Vec<f32> {
        let value = |code: i32| match (code >> 3, code & 7) {
            (0, fraction) => fraction as f32 / 512.0,
            (exponent, fraction) => (1.0 + fraction as f32 / 8.0) * power(exponent - 7),
        };
        (0..0x7f).map(value).collect()
    }

    #[test]
    fn numbers_go_to_the_nearest_one_and_those_of_the_format_stay() {
        let all = all();
        assert_eq!(all.last(), Some(&448.0));
        for pair in all.windows(2) {
            let (low, high) = (pair[0], pair[1]);
            assert_eq!([low, high].map(nearest), [low, high]);
            assert_eq!([-low, -high].map(nearest), [-low, -high]);
            let middle = (low + high) / 2.0;
            assert_eq!([middle - 1e-6 * high, middle + 1e-6 * high].map(nearest), [low, high]);
        }
    }

    #[test]
    fn a_scale_uses_the_whole_range() {
        for (most, scale) in [(448.0, 1.0), (449.0, 2.0), (224.0, 0.5), (1.75, 1.0 / 256.0), (0.0, 1.0)] {
            assert_eq!(scale_of(most), scale, "{most}");
        }
    }
}
