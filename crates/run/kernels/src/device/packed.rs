//! Weights laid out once for products with any number of rows, in their own format or a smaller one.
//!
//! Training changes its weights at every step and reads them as they lie; a model that answers requests multiplies by the same
//! matrix millions of times, often with a single row. A packed matrix is in the order in which the device's product reads it. The sum
//! behind an output depends on its row of `x` and on the matrix alone, not on how many other rows there are: an answer
//! does not change with the requests beside it.

use crate::device::{Backend, ExpertForward, LinearForward};
use crate::{Buffer, Device, Element, Matrix, MatrixMut, NormWeight, View, ViewMut};
use crate::{cpu, cuda};
use bedplate_breakdown::Part;

/// The elements of a packed matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    F32,
    Bf16,
    F16,
    /// Elements of 8 bits, four of them an exponent (e4m3), with a power of two for each output as scale. The processor keeps them in bf16, which
    /// holds them exactly; a GPU that can multiplies more than two rows of bf16 as e4m3 too, each rounded with a scale of its own.
    Fp8,
    /// Whole numbers of 8 bits with an f16 scale for every 32 neighbours of a row.
    Int8,
    /// Whole numbers of 4 bits with an f16 scale for every 32 neighbours of a row.
    Int4,
}

impl WeightFormat {
    pub const ALL: [WeightFormat; 6] = [Self::F32, Self::Bf16, Self::F16, Self::Fp8, Self::Int8, Self::Int4];

    /// As configurations and command lines spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }
}

/// The weight of a linear layer, `outputs x inputs`, laid out for products.
pub struct Packed {
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
    pub(crate) format: WeightFormat,
    pub(crate) body: PackedStorage,
}

/// What the device's backend keeps of it.
pub(crate) enum PackedStorage {
    Cpu(cpu::PackedBody),
    Cuda(cuda::PackedBody),
}

/// The matrices of a layer's experts, all of one size and format.
pub struct PackedExperts {
    pub(crate) each: Vec<Packed>,
    /// On a GPU, where each begins: two words for each.
    pub(crate) table: Option<Buffer<u32>>,
}

/// Which rows experts take: slots of tokens, as [`Device::dispatch`] sorts them.
#[derive(Clone, Copy)]
pub struct ExpertRows<'a> {
    pub order: View<'a, u32>,
    pub per_token: usize,
    pub offsets: View<'a, u32>,
}

impl Packed {
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Bytes of memory that it takes, and that a product with one row reads.
    pub fn bytes(&self) -> usize {
        match &self.body {
            PackedStorage::Cpu(body) => body.bytes(),
            PackedStorage::Cuda(body) => body.bytes(),
        }
    }
}

impl PackedExperts {
    fn check(&self, offsets: View<'_, u32>, outputs: usize, inputs: usize) {
        assert_eq!(offsets.len(), self.each.len() + 1, "offsets of experts");
        let is_fitting = |weight: &Packed| (weight.outputs, weight.inputs) == (outputs, inputs);
        assert!(self.each.first().is_none_or(is_fitting), "weights of experts");
    }
}

impl Device {
    /// Lays out a matrix of `outputs` rows. Elements are rounded to the format.
    pub fn pack<W: Element>(&self, weight: View<'_, W>, outputs: usize, format: WeightFormat) -> Packed {
        let inputs = weight.len() / outputs.max(1);
        let weight = weight.matrix(outputs, inputs);
        let body = match &self.backend {
            Backend::Cpu(cpu) => PackedStorage::Cpu(cpu.time(Part::Memory, || cpu.pack(weight, format))),
            Backend::Cuda(cuda) => PackedStorage::Cuda(cuda.time(Part::Memory, || cuda.pack(weight, format))),
        };
        Packed { outputs, inputs, format, body }
    }

    /// `out = x W^T + bias + residual`, as [`Device::linear`] does.
    pub fn linear_packed<X: Element, O: Element>(
        &self,
        x: Matrix<'_, X>,
        weight: &Packed,
        bias: Option<View<'_, X>>,
        residual: Option<Matrix<'_, O>>,
        out: MatrixMut<'_, O>,
    ) {
        assert_eq!((out.columns, x.columns), (weight.outputs, weight.inputs), "the weight of a linear layer");
        let layer = LinearForward { x, weight, bias, residual, out }.checked();
        on_backend!(self, Compute, linear_packed(layer));
    }

    /// A linear layer of the [norm](Device::rms_norm) of `x`. What is normed, and its statistics, may go to the room that is given, or nowhere.
    #[expect(clippy::too_many_arguments, reason = "two operators in one")]
    pub fn rms_norm_linear<'a, X: Element, O: Element>(
        &self,
        x: Matrix<'_, X>,
        norm: impl Into<NormWeight<'a, X>>,
        epsilon: f32,
        weight: &Packed,
        bias: Option<View<'_, X>>,
        (mut normed, inverses): (MatrixMut<'_, X>, ViewMut<'_, f32>),
        out: MatrixMut<'_, O>,
    ) {
        assert_eq!((x.rows, x.columns), (out.rows, weight.inputs), "what is normed");
        let norm = norm.into();
        assert_eq!(norm.kept.len(), x.columns, "the weight of a norm");
        if let Backend::Cuda(cuda) = &self.backend
            && norm.offset == 0.0
        {
            let fused = || cuda.rms_norm_linear(x, (norm.kept, epsilon), weight, bias, &out);
            if cuda.time(Part::Compute, fused) {
                return;
            }
        }
        self.rms_norm(x, norm, epsilon, normed.reborrow(), inverses);
        self.linear_packed(normed.matrix(), weight, bias, None, out);
    }

    /// A linear layer of what [`swiglu`](Device::swiglu) makes of `gate_up`, which may go to the room that is given, or nowhere.
    pub fn swiglu_linear<X: Element, O: Element>(
        &self,
        gate_up: Matrix<'_, X>,
        weight: &Packed,
        bias: Option<View<'_, X>>,
        residual: Option<Matrix<'_, O>>,
        mut activated: MatrixMut<'_, X>,
        out: MatrixMut<'_, O>,
    ) {
        assert_eq!((gate_up.rows, gate_up.columns), (out.rows, 2 * weight.inputs), "gate and up");
        if let Backend::Cuda(cuda) = &self.backend {
            let fused = || cuda.swiglu_linear(gate_up, weight, bias, residual, &out);
            if cuda.time(Part::Compute, fused) {
                return;
            }
        }
        self.swiglu(gate_up, activated.reborrow());
        self.linear_packed(activated.matrix(), weight, bias, residual, out);
    }

    /// Puts the matrices of experts together, which have one size and format.
    pub fn pack_experts(&self, each: Vec<Packed>) -> PackedExperts {
        let kind = |weight: &Packed| (weight.outputs, weight.inputs, weight.format);
        assert!(each.windows(2).all(|two| kind(&two[0]) == kind(&two[1])), "experts are alike");
        let table = match &self.backend {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => Some(cuda.table_of(&each)),
        };
        PackedExperts { each, table }
    }

    /// `out[r] = x[r] W_e^T` for the rows `r` of each expert `e`: `offsets[e]..offsets[e + 1]`.
    pub fn expert_linear_packed<X: Element, O: Element>(
        &self,
        x: Matrix<'_, X>,
        offsets: View<'_, u32>,
        weights: &PackedExperts,
        out: MatrixMut<'_, O>,
    ) {
        assert_eq!(x.rows, out.rows, "rows of experts");
        weights.check(offsets, out.columns, x.columns);
        let layer = ExpertForward { x, offsets, weights, out };
        on_backend!(self, Compute, expert_linear_packed(layer));
    }

    /// What [`swiglu`](Device::swiglu) makes of the experts' products with the rows of the tokens in their slots. The tokens' rows and
    /// the products may go to the rooms that are given, or nowhere.
    pub fn swiglu_experts<E: Element>(
        &self,
        x: Matrix<'_, E>,
        rows: ExpertRows<'_>,
        weights: &PackedExperts,
        (mut gathered, mut gate_up): (MatrixMut<'_, E>, MatrixMut<'_, E>),
        activated: MatrixMut<'_, E>,
    ) {
        assert_eq!(activated.rows, rows.order.len(), "slots of experts");
        weights.check(rows.offsets, 2 * activated.columns, x.columns);
        if let Backend::Cuda(cuda) = &self.backend {
            let fused = || cuda.swiglu_experts(x, rows, weights, &activated);
            if cuda.time(Part::Compute, fused) {
                return;
            }
        }
        self.gather_rows(x, rows.order, rows.per_token, gathered.reborrow());
        self.expert_linear_packed(gathered.matrix(), rows.offsets, weights, gate_up.reborrow());
        self.swiglu(gate_up.matrix(), activated);
    }

    /// `out[t] = W[tokens[t]]`: rows of a packed matrix that is also a table. Panics at a token beyond it.
    pub fn unpack_rows<O: Element>(&self, tokens: View<'_, u32>, table: &Packed, out: MatrixMut<'_, O>) {
        assert_eq!(out.shape(), (tokens.len(), table.inputs), "rows of a packed matrix");
        on_backend!(self, Memory, unpack_rows(tokens, table, out));
    }
}

#[cfg(test)]
mod tests;
