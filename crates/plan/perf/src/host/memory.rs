//! What training on a host allocates: weights and their state, and the runtime's workspace buffer by buffer.

use std::cell::Cell;

use bedplate_layout::Recompute;
use bedplate_transformer::workspace::{self, Make, Ranks, Rooms, Stage};
use bedplate_units::Bytes;

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
            workspace: Bytes::new(PROGRAM + element * workspace::packed(&self.stage(key))),
        }
    }

    pub(super) fn rows(&self, key: &LayerKey) -> usize {
        key.micro_batch as usize * self.sequence
    }

    fn stage(&self, key: &LayerKey) -> Stage<'_> {
        Stage {
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
            ranks: Ranks::ONE,
        }
    }

    pub(super) fn buffers(&self, key: &LayerKey) -> Buffers {
        let (total, element) = (Cell::new(0), element_bytes(key.precision) as usize);
        let add = |bytes: usize| {
            total.set(total.get() + bytes);
            bytes
        };
        let wide = |len| add(WIDE as usize * len);
        let make = Make::<usize> { element: &|len| add(element * len), wide: &wide, index: &wide };
        let logits = Rooms::new(&make, &self.stage(key)).shared.head.map_or(0, |head| head.logits);
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
}

struct State {
    gradients: f64,
    optimizer: f64,
}

/// Code, stacks of threads, batches that wait.
const PROGRAM: f64 = 32e6;
