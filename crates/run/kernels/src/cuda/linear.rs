//! Linear layers: by cuBLASLt, and by our own kernels where it has no algorithm.

use super::blas::{BlasShape, Sides, Sums, WORKSPACE};
use super::driver::Argument::Words;
use super::driver::KernelLaunch;
use super::kernel::{address, blocks_of, two, word};
use super::memory::MatrixLines;
use super::source::KernelFormat;
use super::source::KernelSource::{Gemm, Stream};
use super::{Cuda, format_of};
use crate::device::{LinearBackwardInput, LinearBackwardWeight, LinearForward};
use crate::{Accumulate, Element, Matrix, MatrixMut};

/// A matrix with its format and size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Side {
    pub(super) lines: MatrixLines,
    pub(super) format: KernelFormat,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Of fp8: where the scales of its rows are.
    pub(super) scales: u64,
}

/// What is added to a product's rows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extras {
    pub(super) bias: Option<(u64, KernelFormat)>,
    /// In the output's format.
    pub(super) residual: Option<MatrixLines>,
    /// Whether the product is added to what the output holds.
    pub(super) add: bool,
}

/// How our own kernel reads a side: the steps from one line to the next, and from one number of the depth to the next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps {
    pub(super) line: usize,
    pub(super) depth: usize,
}

/// Rows of experts.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExpertSplit {
    pub(super) offsets: u64,
    pub(super) experts: usize,
    /// Elements from one expert's matrix to the next, or where the table of their addresses is.
    pub(super) each: usize,
    pub(super) table: u64,
    /// Whether experts share out the depth and not the rows.
    pub(super) is_deep: bool,
}

impl Cuda {
    pub(super) fn side<E: Element>(&self, matrix: &Matrix<'_, E>) -> Side {
        Side {
            lines: self.rows(matrix),
            format: format_of::<E>(),
            rows: matrix.rows,
            columns: matrix.columns,
            scales: 0,
        }
    }

    pub(super) fn side_mut<E: Element>(&self, matrix: &MatrixMut<'_, E>) -> Side {
        Side {
            lines: self.rows_mut(matrix),
            format: format_of::<E>(),
            rows: matrix.rows,
            columns: matrix.columns,
            scales: 0,
        }
    }

    pub(crate) fn linear<X: Element, W: Element, B: Element, O: Element>(
        &self,
        layer: LinearForward<'_, X, Matrix<'_, W>, B, O>,
    ) {
        let extras = self.extras(&layer);
        self.forward(self.side(&layer.x), self.side(&layer.weight), extras, self.side_mut(&layer.out));
    }

    /// What is added to the products of a layer.
    pub(super) fn extras<X, W, B: Element, O: Element>(
        &self,
        layer: &LinearForward<'_, X, W, B, O>,
    ) -> Extras {
        let bias = layer.bias.map(|bias| (self.at(bias), format_of::<B>()));
        let residual = layer.residual.map(|residual| self.rows(&residual));
        Extras { bias, residual, add: false }
    }

    /// `out = x W^T` and extras. Sides of different formats meet in the wider one.
    pub(super) fn forward(&self, x: Side, weight: Side, extras: Extras, out: Side) {
        let format = if x.format == weight.format { x.format } else { KernelFormat::F32 };
        let (x, weight) = (self.in_format(0, x, format), self.in_format(1, weight, format));
        let shape = Product {
            size: [out.columns, out.rows, x.columns],
            turned: [true, false],
            steps: [Steps { line: x.lines.stride, depth: 1 }, Steps { line: weight.lines.stride, depth: 1 }],
        };
        self.multiply(&shape, weight, x, extras, out);
    }

    /// Whether `out = x W^T` and extras could be made of two sides of fp8.
    pub(super) fn forward_fp8(&self, x: Side, weight: Side, extras: Extras, out: Side, sums: Sums) -> bool {
        let steps = |side: Side| Steps { line: side.lines.stride, depth: 1 };
        let shape = Product {
            size: [out.columns, out.rows, x.columns],
            turned: [true, false],
            steps: [steps(x), steps(weight)],
        };
        self.multiply_by_library(&shape, weight, x, extras, out, sums)
    }

    pub(crate) fn linear_backward_input<D: Element, W: Element, X: Element>(
        &self,
        layer: LinearBackwardInput<'_, D, W, X>,
    ) {
        let LinearBackwardInput { d_out, weight, mode, d_x } = layer;
        let (d, weight, out) = (self.side(&d_out), self.side(&weight), self.side_mut(&d_x));
        let format = if d.format == weight.format { d.format } else { KernelFormat::Bf16 };
        let (d, weight) = (self.in_format(0, d, format), self.in_format(1, weight, format));
        let shape = Product {
            size: [out.columns, out.rows, d.columns],
            turned: [false, false],
            steps: [Steps { line: d.lines.stride, depth: 1 }, Steps { line: 1, depth: weight.lines.stride }],
        };
        let extras = Extras { add: mode == Accumulate::Add, ..Extras::default() };
        self.multiply(&shape, weight, d, extras, out);
    }

    pub(crate) fn linear_backward_weight<D: Element, X: Element>(
        &self,
        layer: LinearBackwardWeight<'_, D, X>,
    ) {
        let LinearBackwardWeight { d_out, x, d_weight, d_bias } = layer;
        let (d, x, out) = (self.side(&d_out), self.side(&x), self.side_mut(&d_weight));
        if let Some(d_bias) = d_bias {
            self.add_sum_of_rows(d, self.at_mut(&d_bias));
        }
        let format = if d.format == x.format { d.format } else { KernelFormat::Bf16 };
        let (d, x) = (self.in_format(0, d, format), self.in_format(1, x, format));
        let shape = Product {
            size: [out.columns, out.rows, d.rows],
            turned: [false, true],
            steps: [Steps { line: 1, depth: d.lines.stride }, Steps { line: 1, depth: x.lines.stride }],
        };
        self.multiply(&shape, x, d, Extras { add: true, ..Extras::default() }, out);
    }

    pub(crate) fn add_sums<W: Element, O: Element>(&self, layer: LinearForward<'_, f32, (), W, O>) {
        self.finish(self.side(&layer.x), self.extras(&layer), self.side_mut(&layer.out));
    }

    /// `out = sums + bias + residual`
    fn finish(&self, sums: Side, extras: Extras, out: Side) {
        let (bias, bias_format) = extras.bias.unwrap_or((0, out.format));
        let (residual, distance) = extras.residual.map_or((0, 0), |lines| (lines.address, lines.stride));
        self.kernel(Stream, [sums.format, out.format, bias_format], "finish_rows").over(
            out.rows * out.columns.div_ceil(8),
            &[
                address(sums.lines.address),
                word(sums.lines.stride),
                address(bias),
                address(residual),
                word(distance),
                address(out.lines.address),
                word(out.lines.stride),
                word(out.rows),
                word(out.columns),
            ],
        );
    }

    fn add_sum_of_rows(&self, rows: Side, sums: u64) {
        let launch = KernelLaunch { grid: [rows.columns.div_ceil(32), 1, 1], block: [32, 32, 1], shared: 0 };
        let (lines, columns) = (rows.lines, rows.columns);
        let arguments =
            [address(lines.address), word(lines.stride), address(sums), word(rows.rows), word(columns)];
        self.kernel(Stream, [rows.format, KernelFormat::F32, KernelFormat::F32], "sum_rows")
            .launch(launch, &arguments);
    }

    /// The same elements in another format, in scratch memory where they are not in it already.
    pub(super) fn in_format(&self, which: usize, side: Side, format: KernelFormat) -> Side {
        if side.format == format {
            return side;
        }
        let bytes = if format == KernelFormat::F32 { 4 } else { 2 };
        let to = self.sides[which].of(&self.context, bytes * side.rows * side.columns);
        let lines = self.copied_rows(side, MatrixLines { address: to, stride: side.columns, bytes }, format);
        Side { lines, format, ..side }
    }

    /// Copies rows to others, in a format.
    pub(super) fn copied_rows(&self, side: Side, lines: MatrixLines, format: KernelFormat) -> MatrixLines {
        let wide = side.lines.is_aligned() && lines.is_aligned() && side.columns.is_multiple_of(8);
        self.kernel(Stream, [side.format, format, format], "put_rows").over(
            side.rows * side.columns.div_ceil(8),
            &[
                address(side.lines.address),
                word(side.lines.stride),
                address(lines.address),
                word(lines.stride),
                word(side.rows),
                word(side.columns),
                word(0),
                word(usize::from(wide)),
            ],
        );
        lines
    }

    /// `a` and `b` are the library's sides: our right and our left one.
    fn multiply(&self, product: &Product, a: Side, b: Side, extras: Extras, out: Side) {
        let [m, n, k] = product.size;
        if m == 0 || n == 0 || self.multiply_by_library(product, a, b, extras, out, Sums::Full) {
            return;
        }
        let [left, right] = product.steps;
        self.multiply_experts((b, left), (a, right), [n, m, k], extras.add, None, out);
        if extras.bias.is_some() || extras.residual.is_some() {
            self.finish(out, extras, out);
        }
    }

    /// Whether the library had an algorithm.
    fn multiply_by_library(
        &self,
        product: &Product,
        a: Side,
        b: Side,
        extras: Extras,
        out: Side,
        sums: Sums,
    ) -> bool {
        let [m, n, k] = product.size;
        let bias = extras.bias.filter(|(_, format)| *format == out.format).map(|(bias, _)| bias);
        let under = if extras.add { Some(out.lines) } else { extras.residual };
        let c = under.unwrap_or(out.lines);
        let places = [a.lines, b.lines, c, out.lines];
        let shape = BlasShape {
            m,
            n,
            k,
            turned: product.turned,
            strides: places.map(|lines| lines.stride),
            formats: [a.format, out.format],
            alignments: places.map(|lines| 1 << lines.address.trailing_zeros().min(4)),
            has_bias: bias.is_some(),
            sums,
        };
        let beta = if under.is_some() { 1.0 } else { 0.0 };
        let [a_at, b_at, c_at, d_at] = places.map(|lines| lines.address);
        let scales = [a.scales, b.scales];
        let sides = Sides { a: a_at, b: b_at, c: c_at, d: d_at, beta, bias: bias.unwrap_or(0), scales };
        let workspace = self.workspace.of(&self.context, WORKSPACE);
        let is_done = k > 0 && self.blas.multiply(&shape, &sides, workspace, self.context.stream());
        if is_done && extras.bias.is_some() && bias.is_none() {
            self.finish(out, Extras { bias: extras.bias, ..Extras::default() }, out);
        }
        is_done
    }

    /// Our own product: rows, columns and depth; experts may cut rows or depth.
    pub(super) fn multiply_experts(
        &self,
        (left, left_steps): (Side, Steps),
        (right, right_steps): (Side, Steps),
        [rows, columns, depth]: [usize; 3],
        add: bool,
        split: Option<ExpertSplit>,
        out: Side,
    ) {
        let is_narrow = [left, right].iter().all(|side| side.format == KernelFormat::Bf16);
        let (name, tile) = if is_narrow { ("multiply_tiles", 128) } else { ("multiply", 64) };
        let none = ExpertSplit { offsets: 0, experts: 0, each: 0, table: 0, is_deep: false };
        let (is_split, split) = (split.is_some(), split.unwrap_or(none));
        let across = is_split && !split.is_deep;
        let grid = [
            columns.div_ceil(tile),
            rows.div_ceil(tile) + if across { split.experts } else { 0 },
            if split.is_deep { split.experts } else { 1 },
        ];
        let words = [
            left.lines.address,
            left_steps.line as u64,
            left_steps.depth as u64,
            right.lines.address,
            right_steps.line as u64,
            right_steps.depth as u64,
            split.each as u64,
            out.lines.address,
            out.lines.stride as u64,
            rows as u64,
            columns as u64,
            depth as u64,
            split.offsets,
            split.experts as u64,
            split.table,
            two(u32::from(add), u32::from(split.is_deep)),
        ];
        let launch = KernelLaunch { grid, ..blocks_of(1, 256) };
        self.kernel(Gemm, [left.format, right.format, out.format], name).launch(launch, &[Words(&words)]);
    }
}

/// A product as the library has it (its `m`, `n` and `k`), and as our own kernel reads left and right.
struct Product {
    size: [usize; 3],
    turned: [bool; 2],
    steps: [Steps; 2],
}
