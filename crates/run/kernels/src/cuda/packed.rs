//! Packed weights: dense formats as they are, whole numbers by rows with their scales behind.

use super::blas::Sums;
use super::driver::Argument::Words;
use super::grouped::{GroupedWeight, RowsOfExperts};
use super::kernel::{THREADS, address, blocks_of, float, word};
use super::linear::{ExpertSplit, Extras, Side, Steps};
use super::memory::MatrixLines;
use super::source::KernelFormat;
use super::source::KernelSource::{Packed as Few, Round, Stream, Vector};
use super::{Cuda, format_of};
use crate::device::{ExpertForward, LinearForward, PackedStorage};
use crate::{Buffer, Element, ExpertRows, Matrix, MatrixMut, Packed, PackedExperts, View, WeightFormat};

/// Whole numbers that share a scale.
const GROUP: usize = 32;
/// Rows up to which a product reads small numbers as they are.
const FEW_ROWS: usize = 8;
/// Rows up to which that is faster than rounding them to fp8: a step of Llama 3.1 8B with eight takes 10 ms so on an H200, with two 4.6.
const FEWEST_OF_FP8: usize = 2;
/// Shared memory for one or two rows of a product, of which a multiprocessor holds some blocks at once.
const STAGED: usize = 100 << 10;
const RESIDENT: usize = 2;

/// A matrix as the GPU multiplies by it.
pub(crate) struct PackedBody {
    bytes: Buffer<u8>,
    /// Where the scales begin.
    scales: usize,
}

impl PackedBody {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.bytes()
    }
}

/// What is done to rows before a product.
#[derive(Debug, Clone, Copy)]
enum Before {
    Nothing,
    Norm {
        weight: u64,
        epsilon: f32,
    },
    /// The first half of the columns is the gate of the second.
    Gate,
}

impl WeightFormat {
    fn kernel_format(self) -> KernelFormat {
        match self {
            WeightFormat::F32 => KernelFormat::F32,
            WeightFormat::Bf16 => KernelFormat::Bf16,
            WeightFormat::F16 => KernelFormat::F16,
            WeightFormat::Fp8 => KernelFormat::Fp8,
            WeightFormat::Int8 => KernelFormat::Int8,
            WeightFormat::Int4 => KernelFormat::Int4,
        }
    }

    fn is_whole(self) -> bool {
        matches!(self, WeightFormat::Int8 | WeightFormat::Int4)
    }

    /// Whether elements are smaller than those of products, and have scales.
    fn is_small(self) -> bool {
        self.is_whole() || self == WeightFormat::Fp8
    }

    /// Bytes of all scales.
    fn scale_bytes(self, outputs: usize, inputs: usize) -> usize {
        match self {
            WeightFormat::Fp8 => 4 * outputs,
            _ if self.is_whole() => 2 * outputs * inputs.div_ceil(GROUP),
            _ => 0,
        }
    }

    /// Bytes of a row.
    fn row_bytes(self, inputs: usize) -> usize {
        match self {
            WeightFormat::F32 => 4 * inputs,
            WeightFormat::Bf16 | WeightFormat::F16 => 2 * inputs,
            WeightFormat::Fp8 => inputs.next_multiple_of(16),
            WeightFormat::Int8 => inputs.next_multiple_of(GROUP),
            WeightFormat::Int4 => inputs.next_multiple_of(GROUP) / 2,
        }
    }
}

impl Cuda {
    pub(crate) fn pack<W: Element>(&self, weight: Matrix<'_, W>, format: WeightFormat) -> PackedBody {
        let (outputs, inputs) = weight.shape();
        let (elements, groups) = (outputs * format.row_bytes(inputs), inputs.div_ceil(GROUP));
        let scales = elements.next_multiple_of(16);
        let more = format.scale_bytes(outputs, inputs);
        let body = PackedBody { bytes: self.zeros(scales + more), scales };
        let (from, to) = (self.rows(&weight), self.at(body.bytes.view()));
        if format == WeightFormat::Fp8 {
            self.round_to_fp8(self.side(&weight), to, format.row_bytes(inputs), to + scales as u64);
        } else if format.is_whole() {
            let name = if format == WeightFormat::Int8 { "to_8_bits" } else { "to_4_bits" };
            let launch = blocks_of((outputs * groups).div_ceil(128), 128);
            self.kernel(Round, [format_of::<W>(); 3], name).launch(
                launch,
                &[
                    address(from.address),
                    word(from.stride),
                    word(outputs),
                    word(inputs),
                    word(groups),
                    address(to),
                    address(to + scales as u64),
                ],
            );
        } else {
            let kind = format.kernel_format();
            let arguments = [
                address(from.address),
                word(from.stride),
                address(to),
                word(inputs),
                word(outputs),
                word(inputs),
                word(0),
                word(0),
            ];
            let pieces = outputs * inputs.div_ceil(8);
            self.kernel(Stream, [format_of::<W>(), kind, kind], "put_rows").over(pieces, &arguments);
        }
        self.context.fence();
        body
    }

    pub(crate) fn linear_packed<X: Element, O: Element>(&self, layer: LinearForward<'_, X, &Packed, X, O>) {
        let (extras, weight) = (self.extras(&layer), layer.weight);
        let (x, out) = (self.side(&layer.x), self.side_mut(&layer.out));
        if x.rows == 0 {
            return;
        }
        if self.is_vector(x, weight) {
            return self.multiply_vectors(x, Before::Nothing, weight, extras, out);
        }
        if weight.format.is_whole() && self.multiply_grouped(x, None, self.alone(weight), extras, out) {
            return;
        }
        let is_fp8 = weight.format == WeightFormat::Fp8 && x.rows > FEWEST_OF_FP8;
        if is_fp8 && self.multiply_fp8(x, weight, extras, out) {
            return;
        }
        if x.rows <= FEW_ROWS && weight.format.is_small() {
            return self.multiply_few(x, weight, extras, out);
        }
        self.forward(x, self.dense(weight, x.format), extras, out);
    }

    /// Whether the kernel for one or two rows of bf16 can do it.
    fn is_vector(&self, x: Side, weight: &Packed) -> bool {
        let is_narrow = x.format == KernelFormat::Bf16 && weight.format == WeightFormat::Bf16;
        let fits = weight.inputs.is_multiple_of(256) && 2 * x.rows * weight.inputs <= STAGED;
        is_narrow && x.rows <= 2 && fits && x.lines.is_aligned()
    }

    /// The same with something done to the rows first; whether there is a kernel for it.
    fn multiply_after<X: Element, O: Element>(
        &self,
        x: Matrix<'_, X>,
        before: Before,
        weight: &Packed,
        [bias, residual]: [Option<MatrixLines>; 2],
        out: &MatrixMut<'_, O>,
    ) -> bool {
        let bias = bias.map(|lines| (lines.address, format_of::<X>()));
        let (x, out, extras) = (self.side(&x), self.side_mut(out), Extras { bias, residual, add: false });
        let can = x.rows > 0 && self.is_vector(x, weight);
        if can {
            self.multiply_vectors(x, before, weight, extras, out);
        }
        can
    }

    /// Whether a product with a norm before it was made in one go.
    pub(crate) fn rms_norm_linear<X: Element, O: Element>(
        &self,
        x: Matrix<'_, X>,
        (norm, epsilon): (View<'_, X>, f32),
        weight: &Packed,
        bias: Option<View<'_, X>>,
        out: &MatrixMut<'_, O>,
    ) -> bool {
        let norm = self.at(norm);
        let bias = bias.map(|bias| MatrixLines { address: self.at(bias), stride: 0, bytes: 0 });
        norm.is_multiple_of(16)
            && self.multiply_after(x, Before::Norm { weight: norm, epsilon }, weight, [bias, None], out)
    }

    /// Whether a product with a gate before it was made in one go.
    pub(crate) fn swiglu_linear<X: Element, O: Element>(
        &self,
        gate_up: Matrix<'_, X>,
        weight: &Packed,
        bias: Option<View<'_, X>>,
        residual: Option<Matrix<'_, O>>,
        out: &MatrixMut<'_, O>,
    ) -> bool {
        let bias = bias.map(|bias| MatrixLines { address: self.at(bias), stride: 0, bytes: 0 });
        let residual = residual.map(|residual| self.rows(&residual));
        self.multiply_after(gate_up, Before::Gate, weight, [bias, residual], out)
    }

    fn multiply_vectors(&self, x: Side, before: Before, weight: &Packed, extras: Extras, out: Side) {
        let warps = RESIDENT * self.context.processors * THREADS / 32;
        // The share of the warps that have work to the end, with so many outputs at a time.
        let share = |outputs: usize| {
            let each = weight.outputs.div_ceil(outputs) as f64 / warps as f64;
            each / each.ceil()
        };
        let is_by_one = share(2) < 0.9 * share(1);
        let names = match before {
            Before::Nothing => [["one_row", "one_row_by_one"], ["two_rows", "two_rows_by_one"]],
            Before::Norm { .. } => {
                [["one_row_normed", "one_row_normed_by_one"], ["two_rows_normed", "two_rows_normed_by_one"]]
            }
            Before::Gate => {
                [["one_row_gated", "one_row_gated_by_one"], ["two_rows_gated", "two_rows_gated_by_one"]]
            }
        };
        let name = names[x.rows - 1][usize::from(is_by_one)];
        let (norm, epsilon) = match before {
            Before::Norm { weight, epsilon } => (weight, epsilon),
            _ => (0, 0.0),
        };
        let groups = weight.outputs.div_ceil(if is_by_one { 1 } else { 2 });
        let blocks = groups.div_ceil(THREADS / 32).min(RESIDENT * self.context.processors);
        let mut launch = blocks_of(blocks, THREADS);
        launch.shared = 2 * x.rows * weight.inputs;
        let arguments = [address(self.elements(weight)), word(weight.outputs), word(weight.inputs)];
        let [w, n, k] = arguments;
        let (residual, distance) = extras.residual.map_or((0, 0), |lines| (lines.address, lines.stride));
        self.kernel(Vector, [x.format, out.format, KernelFormat::Bf16], name).launch(
            launch,
            &[
                w,
                n,
                k,
                address(x.lines.address),
                word(x.lines.stride),
                address(norm),
                float(epsilon),
                address(extras.bias.map_or(0, |(bias, _)| bias)),
                address(residual),
                word(distance),
                address(out.lines.address),
                word(out.lines.stride),
            ],
        );
    }

    fn multiply_few(&self, x: Side, weight: &Packed, extras: Extras, out: Side) {
        let outputs_of_warp = if weight.format == WeightFormat::Int4 && x.rows > 4 { 1 } else { 2 };
        let launch = blocks_of(weight.outputs.div_ceil(8 * outputs_of_warp), THREADS);
        let (residual, distance) = extras.residual.map_or((0, 0), |lines| (lines.address, lines.stride));
        let formats = [x.format, out.format, weight.format.kernel_format()];
        let is_whole = x.lines.is_aligned() && weight.inputs.is_multiple_of(GROUP);
        // Words of four bits that lie as the other kernel takes them are read one by one.
        let is_dealt = weight.format == WeightFormat::Int4 && weight.inputs.div_ceil(GROUP).is_multiple_of(4);
        self.kernel(Few, formats, "few_rows").launch(
            launch,
            &[
                Words(&self.weight_words(weight)),
                address(x.lines.address),
                word(x.lines.stride),
                word(x.rows),
                address(extras.bias.map_or(0, |(bias, _)| bias)),
                address(residual),
                word(distance),
                address(out.lines.address),
                word(out.lines.stride),
                word(if is_dealt {
                    0
                } else if is_whole {
                    2
                } else {
                    1
                }),
            ],
        );
    }

    /// Whether rows of bf16 could be rounded and multiplied as fp8.
    fn multiply_fp8(&self, x: Side, weight: &Packed, extras: Extras, out: Side) -> bool {
        let fits = [weight.inputs, weight.outputs].iter().all(|size| size.is_multiple_of(16));
        if x.format != KernelFormat::Bf16 || !fits || (self.context.major, self.context.minor) < (8, 9) {
            return false;
        }
        let [elements, scales, ..] = self.weight_words(weight);
        let lines = MatrixLines { address: elements, stride: weight.inputs, bytes: 1 };
        let (rows, columns) = (weight.outputs, weight.inputs);
        let weight = Side { lines, format: KernelFormat::Fp8, rows, columns, scales };
        self.forward_fp8(self.rows_in_fp8(0, x), weight, extras, out, Sums::Fast)
    }

    /// The matrix in a format that products take: as it is, or widened into scratch memory.
    fn dense(&self, weight: &Packed, format: KernelFormat) -> Side {
        let (outputs, inputs) = (weight.outputs, weight.inputs);
        let kind = weight.format.kernel_format();
        if weight.format.is_small() {
            let bytes = if format == KernelFormat::F32 { 4 } else { 2 };
            let to = self.sides[1].of(&self.context, bytes * outputs * inputs);
            self.widen(weight, 0, outputs, to, inputs, format);
            let lines = MatrixLines { address: to, stride: inputs, bytes };
            return Side { lines, format, rows: outputs, columns: inputs, scales: 0 };
        }
        let bytes = if kind == KernelFormat::F32 { 4 } else { 2 };
        let lines = MatrixLines { address: self.elements(weight), stride: inputs, bytes };
        let side = Side { lines, format: kind, rows: outputs, columns: inputs, scales: 0 };
        self.in_format(1, side, format)
    }

    /// Rows of a packed matrix: those of tokens, or all.
    fn widen(&self, weight: &Packed, tokens: u64, rows: usize, to: u64, stride: usize, format: KernelFormat) {
        let formats = [format, format, weight.format.kernel_format()];
        let arguments = [
            Words(&self.weight_words(weight)),
            address(tokens),
            address(to),
            word(stride),
            address(self.report.address()),
        ];
        self.kernel(Few, formats, "widen_rows").launch(blocks_of(rows, THREADS), &arguments);
    }

    pub(crate) fn expert_linear_packed<X: Element, O: Element>(
        &self,
        layer: ExpertForward<'_, X, &PackedExperts, O>,
    ) {
        let ExpertForward { x, offsets, weights, out } = layer;
        let (x, out, offsets) = (self.side(&x), self.side_mut(&out), self.at(offsets));
        let Some(first) = weights.each.first().filter(|_| x.rows > 0) else { return };
        let experts = weights.each.len();
        let rows = RowsOfExperts { offsets, experts, order: None };
        if self.multiply_grouped(x, Some(rows), self.grouped(weights), Extras::default(), out) {
            return;
        }
        let (each, bytes) = (first.outputs * first.inputs, x.lines.bytes);
        let is_like = first.format.kernel_format() == x.format;
        let address = if is_like { 0 } else { self.sides[1].of(&self.context, bytes * each * experts) };
        if !is_like {
            for (expert, weight) in weights.each.iter().enumerate() {
                let to = address + (bytes * each * expert) as u64;
                self.widen(weight, 0, first.outputs, to, first.inputs, x.format);
            }
            let weight = GroupedWeight {
                format: x.format,
                table: 0,
                first: address,
                each: bytes * each,
                ..self.grouped(weights)
            };
            if self.multiply_grouped(x, Some(rows), weight, Extras::default(), out) {
                return;
            }
        }
        let lines = MatrixLines { address, stride: first.inputs, bytes };
        let right = Side { lines, format: x.format, rows: first.outputs, columns: first.inputs, scales: 0 };
        let table = if is_like { self.table(weights) } else { 0 };
        let split = ExpertSplit { offsets, experts, each, table, is_deep: false };
        let steps = |side: Side| Steps { line: side.lines.stride, depth: 1 };
        let sizes = [x.rows, first.outputs, first.inputs];
        self.multiply_experts((x, steps(x)), (right, steps(right)), sizes, false, Some(split), out);
    }

    /// Whether gate, up and what is made of them were made in one go.
    pub(crate) fn swiglu_experts<E: Element>(
        &self,
        x: Matrix<'_, E>,
        rows: ExpertRows<'_>,
        weights: &PackedExperts,
        out: &MatrixMut<'_, E>,
    ) -> bool {
        if out.rows == 0 || weights.each.is_empty() {
            return false;
        }
        let order = Some((self.at(rows.order), rows.per_token));
        let rows = RowsOfExperts { offsets: self.at(rows.offsets), experts: weights.each.len(), order };
        self.multiply_gated(self.side(&x), rows, self.grouped(weights), self.side_mut(out))
    }

    /// Matrices of experts, of which there is one.
    fn grouped(&self, weights: &PackedExperts) -> GroupedWeight {
        GroupedWeight { table: self.table(weights), ..self.alone(&weights.each[0]) }
    }

    /// A matrix of its own.
    fn alone(&self, weight: &Packed) -> GroupedWeight {
        GroupedWeight {
            format: weight.format.kernel_format(),
            outputs: weight.outputs,
            inputs: weight.inputs,
            table: 0,
            first: self.elements(weight),
            each: 0,
            scales: self.body(weight).scales,
        }
    }

    fn table(&self, weights: &PackedExperts) -> u64 {
        self.at(weights.table.as_ref().expect("experts were put together by this device").view())
    }

    /// Where matrices begin, two words for each.
    pub(crate) fn table_of(&self, each: &[Packed]) -> Buffer<u32> {
        let addresses = each.iter().map(|weight| self.elements(weight));
        let words: Vec<u32> =
            addresses.flat_map(|address| [address as u32, (address >> 32) as u32]).collect();
        let mut table = self.zeros(words.len());
        self.write(table.view_mut(), &words);
        table
    }

    pub(crate) fn unpack_rows<O: Element>(
        &self,
        tokens: View<'_, u32>,
        table: &Packed,
        out: MatrixMut<'_, O>,
    ) {
        let to = self.rows_mut(&out);
        self.widen(table, self.at(tokens), tokens.len(), to.address, to.stride, format_of::<O>());
    }

    fn body<'a>(&self, weight: &'a Packed) -> &'a PackedBody {
        match &weight.body {
            PackedStorage::Cuda(body) => body,
            PackedStorage::Cpu(_) => panic!("this matrix was packed by another device"),
        }
    }

    fn elements(&self, weight: &Packed) -> u64 {
        self.at(self.body(weight).bytes.view())
    }

    /// As the kernel's struct has it.
    fn weight_words(&self, weight: &Packed) -> [u64; 5] {
        let elements = self.elements(weight);
        let scales = elements + self.body(weight).scales as u64;
        let groups = weight.inputs.div_ceil(GROUP);
        [elements, scales, weight.outputs as u64, weight.inputs as u64, groups as u64]
    }
}
