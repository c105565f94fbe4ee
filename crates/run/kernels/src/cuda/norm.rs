//! Norms of rows and of heads in them.

use super::driver::Argument::Words;
use super::driver::KernelLaunch;
use super::kernel::{address, flag, float, word};
use super::source::KernelSource::Norm;
use super::{Cuda, format_of};
use crate::device::{HeadNormBackward, NormBackward, NormForward};
use crate::{Accumulate, Element, Heads, Matrix, View, ViewMut};

/// Blocks that share the units of a backward pass, each with sums of its own.
const SHARERS: usize = 528;

/// Rows, heads of a row, elements of a head.
struct Units([usize; 3]);

impl Units {
    /// Whole rows.
    fn rows<E>(of: &Matrix<'_, E>) -> Self {
        Self([of.rows, 1, of.columns])
    }

    fn count(&self) -> usize {
        self.0[0] * self.0[1]
    }

    fn words(&self) -> [u64; 3] {
        self.0.map(|number| number as u64)
    }

    /// Threads of a unit, and units of a block.
    fn block(&self) -> [usize; 3] {
        let threads = (self.0[2].div_ceil(8).next_multiple_of(32)).min(256);
        [threads, if threads == 32 { 8 } else { 1 }, 1]
    }
}

/// How a norm differs from others.
struct Kind {
    forward: &'static str,
    /// For few elements a thread.
    forward_short: Option<&'static str>,
    backward: &'static str,
    /// Sums of gradients that each column has: weight, and bias.
    sums: usize,
}

const RMS: Kind = Kind {
    forward: "rms_norm",
    forward_short: Some("rms_norm_short"),
    backward: "rms_norm_backward",
    sums: 1,
};
const LAYER: Kind =
    Kind { forward: "layer_norm", forward_short: None, backward: "layer_norm_backward", sums: 2 };

impl Cuda {
    pub(crate) fn rms_norm<E: Element>(&self, norm: NormForward<'_, E>) {
        self.norm(&RMS, Units::rows(&norm.x), norm);
    }

    pub(crate) fn head_norm<E: Element>(&self, heads: &Heads, norm: NormForward<'_, E>) {
        self.norm(&RMS, Units([norm.x.rows, heads.count, heads.dim]), norm);
    }

    pub(crate) fn layer_norm<E: Element>(&self, norm: NormForward<'_, E>) {
        self.norm(&LAYER, Units::rows(&norm.x), norm);
    }

    fn norm<E: Element>(&self, kind: &Kind, units: Units, norm: NormForward<'_, E>) {
        let (from, to, weight) = (self.rows(&norm.x), self.rows_mut(&norm.out), self.at(norm.weight));
        let bias = norm.bias.map_or(0, |bias| self.at(bias));
        let wide = from.is_aligned() && to.is_aligned() && units.0[2].is_multiple_of(8);
        let wide = wide && weight.is_multiple_of(16) && bias.is_multiple_of(16);
        let block = units.block();
        let launch = KernelLaunch { grid: [units.count().div_ceil(block[1]), 1, 1], block, shared: 0 };
        let is_short = wide && units.0[2] <= 16 * block[0];
        let name = kind.forward_short.filter(|_| is_short).unwrap_or(kind.forward);
        self.kernel(Norm, [format_of::<E>(); 3], name).launch(
            launch,
            &[
                Words(&units.words()),
                address(from.address),
                word(from.stride),
                address(weight),
                address(bias),
                float(norm.epsilon),
                address(to.address),
                word(to.stride),
                address(self.at_mut(&norm.statistics)),
                flag(wide),
            ],
        );
    }

    pub(crate) fn rms_norm_backward<E: Element>(&self, norm: NormBackward<'_, E>) {
        self.norm_backward(&RMS, norm);
    }

    pub(crate) fn head_norm_backward<E: Element>(&self, heads: &Heads, norm: HeadNormBackward<'_, E>) {
        let HeadNormBackward { d_out_then_d_x: d, x, weight, inverses, d_weight, .. } = norm;
        let units = Units([x.rows, heads.count, heads.dim]);
        let (to, sides) = (self.rows_mut(&d), (d.matrix(), x, weight, inverses));
        self.norm_backward_to(&RMS, units, sides, Accumulate::Replace, to, [d_weight, None]);
    }

    pub(crate) fn layer_norm_backward<E: Element>(&self, norm: NormBackward<'_, E>) {
        self.norm_backward(&LAYER, norm);
    }

    fn norm_backward<E: Element>(&self, kind: &Kind, norm: NormBackward<'_, E>) {
        let NormBackward { d_out, x, weight, statistics, mode, d_x, d_weight, d_bias, .. } = norm;
        let (to, sides) = (self.rows_mut(&d_x), (d_out, x, weight, statistics));
        self.norm_backward_to(kind, Units::rows(&x), sides, mode, to, [d_weight, d_bias]);
    }

    fn norm_backward_to<E: Element>(
        &self,
        kind: &Kind,
        units: Units,
        (d_out, x, weight, statistics): (Matrix<'_, E>, Matrix<'_, E>, View<'_, E>, View<'_, f32>),
        mode: Accumulate,
        to: super::memory::MatrixLines,
        sums: [Option<ViewMut<'_, f32>>; 2],
    ) {
        let (d, from, weight, dim) = (self.rows(&d_out), self.rows(&x), self.at(weight), units.0[2]);
        let wide = [d, from, to].iter().all(super::memory::MatrixLines::is_aligned);
        let wide = wide && dim.is_multiple_of(8) && weight.is_multiple_of(16);
        let (block, columns) = (units.block(), kind.sums * dim);
        let sharers = units.count().div_ceil(block[1]).min(SHARERS);
        let partial = self.partial.of(&self.context, 4 * (sharers * columns).max(1));
        let launch = KernelLaunch { grid: [sharers, 1, 1], block, shared: 4 * block[1] * columns };
        let formats = [format_of::<E>(); 3];
        self.kernel(Norm, formats, kind.backward).launch(
            launch,
            &[
                Words(&units.words()),
                address(d.address),
                word(d.stride),
                address(from.address),
                word(from.stride),
                address(weight),
                address(self.at(statistics)),
                flag(mode == Accumulate::Add),
                address(to.address),
                word(to.stride),
                address(partial),
                flag(wide),
            ],
        );
        for (index, sums) in sums.iter().enumerate() {
            let Some(sums) = sums else { continue };
            let launch = KernelLaunch { grid: [dim.div_ceil(32), 1, 1], block: [32, 8, 1], shared: 0 };
            let arguments = [
                address(partial),
                word(sharers),
                word(columns),
                word(index * dim),
                word(dim),
                address(self.at_mut(sums)),
            ];
            self.kernel(Norm, formats, "add_partial").launch(launch, &arguments);
        }
    }
}
