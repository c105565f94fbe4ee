//! Attention sinks: a learned score of each head that takes its share of the weights and gives nothing (gpt-oss).
//!
//! Attention is computed without them first; what it gave and the logarithms of its sums are then brought to what they are with the
//! sink among the keys. The way back through attention needs no more than these, so sinks work over ranks that share the keys as well.

use bedplate_breakdown::Part;

use super::Backend;
use crate::{Device, Element, Matrix, MatrixMut, View, ViewMut};

pub(crate) struct SinkBackward<'a, E> {
    pub(crate) sinks: View<'a, E>,
    pub(crate) out: Matrix<'a, E>,
    pub(crate) d_out: Matrix<'a, E>,
    pub(crate) log_sums: View<'a, f32>,
    pub(crate) d_sinks: ViewMut<'a, f32>,
}

impl Device {
    /// Has each head's sink take its share of what [`attention`](Device::attention) gave. On the processor only.
    pub fn sink<E: Element>(&self, sinks: View<'_, E>, out: MatrixMut<'_, E>, log_sums: ViewMut<'_, f32>) {
        assert_eq!(log_sums.len(), out.rows * sinks.len(), "sums of attention");
        match &self.backend {
            Backend::Cpu(cpu) => cpu.time(Part::Memory, || cpu.sink(sinks, out, log_sums)),
            Backend::Cuda(_) => unreachable!("a GPU has no attention sinks"),
        }
    }

    /// Adds to `d_sinks`; `out` and `log_sums` are those after [`sink`](Device::sink).
    pub fn sink_backward<E: Element>(
        &self,
        sinks: View<'_, E>,
        out: Matrix<'_, E>,
        d_out: Matrix<'_, E>,
        log_sums: View<'_, f32>,
        d_sinks: ViewMut<'_, f32>,
    ) {
        assert_eq!(
            (log_sums.len(), d_sinks.len()),
            (out.rows * sinks.len(), sinks.len()),
            "sums of attention"
        );
        assert_eq!(out.shape(), d_out.shape(), "attention's output");
        let sink = SinkBackward { sinks, out, d_out, log_sums, d_sinks };
        match &self.backend {
            Backend::Cpu(cpu) => cpu.time(Part::Memory, || cpu.sink_backward(sink)),
            Backend::Cuda(_) => unreachable!("a GPU has no attention sinks"),
        }
    }
}

#[cfg(test)]
mod tests;
