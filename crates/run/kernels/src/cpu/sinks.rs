//! Attention sinks.

use super::Cpu;
use super::elementary::{exp, sigmoid};
use super::sum::sum2;
use crate::device::SinkBackward;
use crate::{Element, MatrixMut, View, ViewMut};

impl Cpu {
    pub(crate) fn sink<E: Element>(
        &self,
        sinks: View<'_, E>,
        out: MatrixMut<'_, E>,
        log_sums: ViewMut<'_, f32>,
    ) {
        let (sinks, shape) = (self.slice(sinks), out.shape());
        let dim = shape.1 / sinks.len().max(1);
        let outputs = (self.rows_mut(out), self.shared(log_sums, sinks.len()));
        inlined!(self.in_rows(shape, outputs, |_, (out, log_sums)| {
            for ((out, log_sum), sink) in out.chunks_exact_mut(dim).zip(log_sums).zip(sinks) {
                let sink = sink.widen();
                let share = sigmoid(*log_sum - sink);
                out.iter_mut().for_each(|number| *number = E::narrow(number.widen() * share));
                let (most, least) = if sink > *log_sum { (sink, *log_sum) } else { (*log_sum, sink) };
                *log_sum = most + exp(least - most).ln_1p();
            }
        }));
    }

    pub(crate) fn sink_backward<E: Element>(&self, sink: SinkBackward<'_, E>) {
        let SinkBackward { sinks, out, d_out, log_sums, d_sinks } = sink;
        let (sinks, out, d_out) = (self.slice(sinks), self.rows(out), self.rows(d_out));
        let (log_sums, dim) = (self.slice(log_sums), out.columns / sinks.len().max(1));
        inlined!(self.sum_over_rows(out.rows, (), [self.slice_mut(d_sinks)], |row, (), [sums]| {
            let heads = out.row(row).chunks_exact(dim).zip(d_out.row(row).chunks_exact(dim));
            let log_sums = &log_sums[row * sinks.len()..][..sinks.len()];
            for (head, (out, d_out)) in heads.enumerate() {
                let share = exp(sinks[head].widen() - log_sums[head]);
                sums[head] -= share * sum2(out, d_out, product);
            }
        }));
    }
}

#[inline(always)]
fn product<E: Element>(a: E, b: E) -> f32 {
    a.widen() * b.widen()
}
