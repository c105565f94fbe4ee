//! Products with packed weights, for any number of rows.
//!
//! Each sum is made in one order that depends on nothing but the unit and the number of inputs, whichever rows are computed with it. A
//! chunk of work is some rows of one product and some panels of its weight; a panel is unfolded block by block of the depth into the
//! nearest cache, where all rows of the chunk use it. Products with experts differ in their rows and go to the thread pool together.

mod lanes;
mod layout;
mod round;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod unfold;
mod unit;
#[cfg(target_arch = "x86_64")]
mod whole;
mod widen;
mod work;

pub(crate) use work::RowsJob;

use super::Cpu;
use super::expert_linear::Experts;
use super::linear::finish;
use super::memory::Addresses;
use crate::device::{ExpertForward, LinearForward, PackedStorage};
use crate::{Accumulate, Buffer, Element, Matrix, MatrixMut, Packed, PackedExperts, View, WeightFormat};
use layout::{LANES, Weight};

/// A matrix as the processor multiplies by it.
pub(crate) struct PackedBody {
    bytes: Buffer<u8>,
}

impl PackedBody {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.bytes()
    }
}

impl Cpu {
    pub(crate) fn pack<W: Element>(&self, weight: Matrix<'_, W>, format: WeightFormat) -> PackedBody {
        if format == WeightFormat::Fp8 {
            let rounded = self.rows_in_fp8(weight);
            return self.pack(rounded.view().matrix(weight.rows, weight.columns), stored(format));
        }
        let weight = self.rows(weight);
        let (panels, each) = (weight.rows.div_ceil(LANES), layout::panel_bytes(format, weight.columns));
        let mut bytes = self.zeros(panels * each);
        let to = self.shared(bytes.view_mut(), each);
        inlined!(self.in_chunks(panels, 1, to, |panel, to| {
            layout::write_panel(format, panel.start, weight, to);
        }));
        PackedBody { bytes }
    }

    pub(crate) fn linear_packed<X: Element, O: Element>(&self, layer: LinearForward<'_, X, &Packed, X, O>) {
        let LinearForward { x, weight, bias, residual, out } = layer;
        let bias = bias.map(|bias| self.slice(bias));
        let residual = residual.map(|residual| self.rows(residual));
        let (rows, weight) = (x.rows, weight.weight(&self.addresses));
        let product = (0..1).map(|_| (0, 0..rows));
        inlined!(self.multiply_packed(
            (self.rows(x), &|_| weight),
            (weight.format, product),
            out,
            |at, sums, out| finish(at, sums, bias, residual, out)
        ));
    }

    pub(crate) fn expert_linear_packed<X: Element, O: Element>(
        &self,
        layer: ExpertForward<'_, X, &PackedExperts, O>,
    ) {
        let ExpertForward { x, offsets, weights, out } = layer;
        let experts = Experts::new(self.slice(offsets), x.rows);
        let weights = &weights.each;
        let Some(first) = weights.first() else { return };
        let addresses = &self.addresses;
        let products = (0..weights.len()).map(|expert| (expert, experts.rows(expert)));
        inlined!(self.multiply_packed(
            (self.rows(x), &|expert| weights[expert].weight(addresses)),
            (stored(first.format), products),
            out,
            |_, sums, out| Accumulate::Replace.apply_all(sums, out)
        ));
    }

    pub(crate) fn unpack_rows<O: Element>(
        &self,
        tokens: View<'_, u32>,
        table: &Packed,
        out: MatrixMut<'_, O>,
    ) {
        let (tokens, table) = (self.slice(tokens), table.weight(&self.addresses));
        let (shape, out) = (out.shape(), self.rows_mut(out));
        inlined!(self.in_rows(shape, out, |row, out| {
            table.output(tokens[row] as usize, |input, number| out[input] = O::narrow(number));
        }));
    }
}

/// The format in which elements lie.
fn stored(format: WeightFormat) -> WeightFormat {
    if format == WeightFormat::Fp8 { WeightFormat::Bf16 } else { format }
}

impl Packed {
    fn weight(&self, addresses: &Addresses) -> Weight<'_> {
        let Self { outputs, inputs, format, body: PackedStorage::Cpu(body) } = self else {
            panic!("this matrix was packed by another device");
        };
        let bytes = addresses.slice(body.bytes.view());
        Weight { format: stored(*format), outputs: *outputs, inputs: *inputs, bytes }
    }
}
