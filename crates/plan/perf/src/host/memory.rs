//! What training on a host allocates: weights and their state, and the runtime's workspace buffer by buffer.

use std::cell::Cell;

use bedplate_layout::Recompute;
use bedplate_transformer::workspace::{self, Make, Rooms, Stage, Widths, logits_at_once};
use bedplate_units::Bytes;

use super::layer::expert_linears;
use super::operators::Linear;
use super::{Host, WIDE, element_bytes};
use crate::{LayerKey, Memory};

/// Bytes of the workspace.
pub(super) struct Buffers {
    pub(super) activations: f64,
    logits: f64,
}

impl Host {
    pub(crate) fn memory(&self, key: &LayerKey) -> Memory {
        let element = element_bytes(key.precision);
        let (state, buffers) = (self.state(element), self.buffers(key));
        Memory {
            weights: Bytes::new(self.parameters * element),
            gradients: Bytes::new(state.gradients),
            optimizer: Bytes::new(state.optimizer),
            activations: Bytes::new(buffers.activations),
            logits: Bytes::new(buffers.logits),
            communication: Bytes::ZERO,
            workspace: Bytes::new(PROGRAM + self.packed(key)),
        }
    }

    pub(super) fn rows(&self, key: &LayerKey) -> usize {
        key.micro_batch as usize * self.sequence
    }

    pub(super) fn buffers(&self, key: &LayerKey) -> Buffers {
        let stage = Stage {
            hidden: self.hidden,
            vocab: self.vocab,
            layers: &self.widths,
            model_layers: self.widths.len(),
            reaches: self.reaches,
            rows: self.rows(key),
            in_flight: 1,
            recompute: match key.recompute {
                Recompute::None => workspace::Recompute::None,
                // What the runtime has between all and nothing.
                Recompute::Selective => workspace::Recompute::Cheap,
                Recompute::Full => workspace::Recompute::Full,
            },
            has_gradients: true,
            has_embedding: true,
            has_head: true,
            is_sliced: false,
        };
        let (total, element) = (Cell::new(0), element_bytes(key.precision) as usize);
        let add = |bytes: usize| {
            total.set(total.get() + bytes);
            bytes
        };
        let wide = |len| add(WIDE as usize * len);
        let make = Make::<usize> { element: &|len| add(element * len), wide: &wide, index: &wide };
        let logits = Rooms::new(&make, &stage).shared.head.map_or(0, |head| head.logits);
        Buffers { activations: (total.get() - logits) as f64, logits: logits as f64 }
    }

    /// Gradients and what the optimizer keeps beside the weights to compute with.
    fn state(&self, element: f64) -> State {
        // In fp32 the weights to compute with are the master weights.
        let master = if element < WIDE { self.parameters * WIDE } else { 0.0 };
        match &self.adapters {
            None => State {
                gradients: self.parameters * WIDE,
                optimizer: master + self.parameters * self.moments,
            },
            // The weights before adaptation stay beside the merged ones.
            Some(adapters) => State {
                gradients: (adapters.parameters + adapters.largest_block) * WIDE,
                optimizer: master + self.parameters * element + adapters.parameters * (WIDE + self.moments),
            },
        }
    }

    /// Products copy one of their operands into panels first; the largest one decides.
    fn packed(&self, key: &LayerKey) -> f64 {
        let (rows, hidden) = (self.rows(key), self.hidden as f64);
        let head = Linear::new(logits_at_once(self.vocab, rows) as f64, self.vocab as f64, hidden);
        let rows = rows as f64;
        let largest = |widths: &Widths| {
            let linears = [
                Linear::new(rows, widths.qkv as f64, hidden),
                Linear::new(rows, hidden, widths.attended as f64),
                Linear::new(rows, widths.gate_up as f64, hidden),
            ];
            let experts = if widths.experts > 0 { expert_linears(widths, rows).to_vec() } else { Vec::new() };
            linears.into_iter().chain(experts).map(|linear| linear.packed()).fold(0.0, f64::max)
        };
        let layers = self.kinds.iter().map(|kind| largest(&kind.widths)).fold(head.packed(), f64::max);
        layers * element_bytes(key.precision)
    }
}

struct State {
    gradients: f64,
    optimizer: f64,
}

/// Code, stacks of threads, batches that wait.
const PROGRAM: f64 = 32e6;
