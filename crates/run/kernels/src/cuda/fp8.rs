//! Sides rounded to fp8, and the linear layers of training that multiply by them.

use super::Cuda;
use super::blas::Sums;
use super::driver::KernelLaunch;
use super::kernel::{THREADS, address, blocks_of, word};
use super::linear::{Extras, Side};
use super::memory::MatrixLines;
use super::source::KernelFormat;
use super::source::KernelSource::Round;
use crate::device::{LinearBackwardInput, LinearForward};
use crate::{Accumulate, Element, Matrix};

/// Rows that a block of the kernel for columns looks at.
const STRIP: usize = 256;
/// Rows and columns that are turned at once.
const TILE: usize = 64;

impl Cuda {
    /// Whether cuBLASLt may multiply fp8 with a scale for each line: on Hopper, from 12.9 on.
    pub(crate) fn has_fp8(&self) -> bool {
        self.is_hopper() && self.blas.scales_lines()
    }

    pub(crate) fn linear_fp8<X: Element, W: Element, O: Element>(
        &self,
        layer: LinearForward<'_, X, Matrix<'_, W>, W, O>,
    ) {
        let extras = self.extras(&layer);
        let (x, weight, out) = (self.side(&layer.x), self.side(&layer.weight), self.side_mut(&layer.out));
        if self.multiplies_fp8(x, weight) {
            let sides = (self.rows_in_fp8(0, x), self.rows_in_fp8(1, weight));
            if self.forward_fp8(sides.0, sides.1, extras, out, Sums::Fast) {
                return;
            }
        }
        self.forward(x, weight, extras, out);
    }

    pub(crate) fn linear_fp8_backward_input<D: Element, W: Element, X: Element>(
        &self,
        layer: LinearBackwardInput<'_, D, W, X>,
    ) {
        let (d, side, out) = (self.side(&layer.d_out), self.side(&layer.weight), self.side_mut(&layer.d_x));
        let extras = Extras { add: layer.mode == Accumulate::Add, ..Extras::default() };
        if self.multiplies_fp8(d, side) {
            let sides = (self.rows_in_fp8(0, d), self.turned_in_fp8(1, side));
            if self.forward_fp8(sides.0, sides.1, extras, out, Sums::Full) {
                return;
            }
        }
        self.linear_backward_input(layer);
    }

    /// Whether the sizes and addresses are such that the library has a product of fp8 for them.
    fn multiplies_fp8(&self, x: Side, weight: Side) -> bool {
        let fits = [weight.rows, weight.columns].iter().all(|size| size.is_multiple_of(16));
        let is_narrow =
            [x, weight].iter().all(|side| side.format == KernelFormat::Bf16 && side.lines.is_aligned());
        self.has_fp8() && x.rows > 0 && fits && is_narrow
    }

    /// Rows in scratch memory, each rounded with a scale of its own.
    pub(super) fn rows_in_fp8(&self, which: usize, side: Side) -> Side {
        let bytes = (side.rows * side.columns).next_multiple_of(16);
        let to = self.sides[which].of(&self.context, bytes + 4 * side.rows);
        let scales = to + bytes as u64;
        self.round_to_fp8(side, to, side.columns, scales);
        let lines = MatrixLines { address: to, stride: side.columns, bytes: 1 };
        Side { lines, format: KernelFormat::Fp8, scales, ..side }
    }

    /// Rows as bytes, and their scales.
    pub(super) fn round_to_fp8(&self, x: Side, to: u64, stride: usize, scales: u64) {
        let is_wide = x.lines.is_aligned() && x.columns.is_multiple_of(8) && stride == x.columns;
        let name = if is_wide { "to_fp8_wide" } else { "to_fp8" };
        let arguments = [
            address(x.lines.address),
            word(x.lines.stride),
            word(x.columns),
            address(to),
            word(stride),
            address(scales),
        ];
        self.kernel(Round, [x.format; 3], name).launch(blocks_of(x.rows, THREADS), &arguments);
    }

    /// Columns as the rows of a matrix in scratch memory, each rounded with a scale of its own. Rows and columns are multiples of 16.
    fn turned_in_fp8(&self, which: usize, side: Side) -> Side {
        let Side { lines, rows, columns, format, .. } = side;
        let bytes = rows * columns;
        let to = self.sides[which].of(&self.context, bytes + 8 * columns);
        let (scales, most) = (to + bytes as u64, to + (bytes + 4 * columns) as u64);
        let kernel = |name| self.kernel(Round, [format; 3], name);
        let [elements, stride, height, width] =
            [address(lines.address), word(lines.stride), word(rows), word(columns)];
        kernel("no_columns").over(columns, &[address(most), word(columns)]);
        let strips =
            KernelLaunch { grid: [columns.div_ceil(256), rows.div_ceil(STRIP), 1], ..blocks_of(1, THREADS) };
        kernel("most_of_columns").launch(strips, &[elements, stride, height, width, address(most)]);
        let tiles =
            KernelLaunch { grid: [columns.div_ceil(TILE), rows.div_ceil(TILE), 1], ..blocks_of(1, THREADS) };
        let arguments = [elements, stride, height, width, address(most), address(to), address(scales)];
        kernel("to_fp8_turned").launch(tiles, &arguments);
        let lines = MatrixLines { address: to, stride: rows, bytes: 1 };
        Side { lines, format: KernelFormat::Fp8, rows: columns, columns: rows, scales }
    }
}
