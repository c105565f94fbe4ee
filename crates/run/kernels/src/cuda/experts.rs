//! Tokens on their way to experts and back.

use super::driver::KernelLaunch;
use super::kernel::{THREADS, address, blocks_of, flag, word};
use super::source::{KernelFormat, KernelSource::Experts};
use super::{Cuda, format_of};
use crate::device::{CombineBackward, Dispatch, GateBackward, GateForward, GatherRows, SumSlots};
use crate::{Accumulate, Element};

impl Cuda {
    pub(crate) fn dispatch(&self, choices: Dispatch<'_>) {
        let Dispatch { experts, order, slots, offsets } = choices;
        let count = offsets.len() - 1;
        self.kernel(Experts, [KernelFormat::F32; 3], "dispatch").launch(
            blocks_of(count + 1, 256),
            &[
                address(self.at(experts)),
                word(experts.len()),
                word(count),
                address(self.at_mut(&order)),
                address(self.at_mut(&slots)),
                address(self.at_mut(&offsets)),
                address(self.report.address()),
            ],
        );
    }

    pub(crate) fn gather_rows<E: Element>(&self, gather: GatherRows<'_, E>) {
        let GatherRows { x, order, per_token, out } = gather;
        let (from, to, columns) = (self.rows(&x), self.rows_mut(&out), x.columns);
        let wide = from.is_aligned() && to.is_aligned() && columns.is_multiple_of(8);
        self.kernel(Experts, [format_of::<E>(); 3], "gather_rows").launch(
            blocks_of(order.len(), 128),
            &[
                address(from.address),
                word(from.stride),
                word(x.rows),
                address(self.at(order)),
                word(per_token),
                address(to.address),
                word(to.stride),
                word(columns),
                flag(wide),
                address(self.report.address()),
            ],
        );
    }

    pub(crate) fn sum_slots<E: Element, O: Element>(&self, sum: SumSlots<'_, E, O>) {
        let SumSlots { y, slots, weights, per_token, mode, out } = sum;
        let (from, to) = (self.rows(&y), self.rows_mut(&out));
        let formats = [format_of::<E>(), format_of::<O>(), format_of::<O>()];
        let wide = from.is_aligned() && to.is_aligned() && out.columns.is_multiple_of(8);
        let grid = [out.rows, out.columns.div_ceil(8 * 128), 1];
        self.kernel(Experts, formats, "sum_slots").launch(
            KernelLaunch { grid, ..blocks_of(1, 128) },
            &[
                address(from.address),
                word(from.stride),
                word(y.rows),
                address(self.at(slots)),
                address(weights.map_or(0, |weights| self.at(weights))),
                word(per_token),
                flag(mode == Accumulate::Add),
                address(to.address),
                word(to.stride),
                word(out.columns),
                flag(wide),
                address(self.report.address()),
            ],
        );
    }

    pub(crate) fn combine_backward<E: Element>(&self, combine: CombineBackward<'_, E>) {
        let CombineBackward { d_out, y, slots, weights, per_token, d_y, d_weights } = combine;
        let (d, from, to) = (self.rows(&d_out), self.rows(&y), self.rows_mut(&d_y));
        self.kernel(Experts, [format_of::<E>(); 3], "combine_backward").launch(
            blocks_of(slots.len(), THREADS),
            &[
                address(d.address),
                word(d.stride),
                address(from.address),
                word(from.stride),
                address(self.at(slots)),
                address(self.at(weights)),
                word(per_token),
                word(y.columns),
                address(to.address),
                word(to.stride),
                address(self.at_mut(&d_weights)),
                word(y.rows),
                address(self.report.address()),
            ],
        );
    }

    pub(crate) fn gate_rows<E: Element, O: Element>(&self, gate: GateForward<'_, E, O>) {
        let GateForward { x, logits, mode, out } = gate;
        let (from, to) = (self.rows(&x), self.rows_mut(&out));
        let formats = [format_of::<E>(), format_of::<O>(), format_of::<O>()];
        self.kernel(Experts, formats, "gate_rows").launch(
            blocks_of(x.rows, THREADS),
            &[
                address(from.address),
                word(from.stride),
                address(self.at(logits)),
                flag(mode == Accumulate::Add),
                address(to.address),
                word(to.stride),
                word(x.columns),
            ],
        );
    }

    pub(crate) fn gate_rows_backward<E: Element>(&self, gate: GateBackward<'_, E>) {
        let GateBackward { d_out, x, logits, d_x, d_logits } = gate;
        let (d, from, to) = (self.rows(&d_out), self.rows(&x), self.rows_mut(&d_x));
        self.kernel(Experts, [format_of::<E>(); 3], "gate_rows_backward").launch(
            blocks_of(x.rows, THREADS),
            &[
                address(d.address),
                word(d.stride),
                address(from.address),
                word(from.stride),
                address(self.at(logits)),
                address(to.address),
                word(to.stride),
                address(self.at_mut(&d_logits)),
                word(x.columns),
            ],
        );
    }
}
