//! A step on a host: its layers, embedding and head, and the optimizer.

use bedplate_layout::Recompute;
use bedplate_transformer::Positions;
use bedplate_transformer::workspace::logits_at_once;
use bedplate_units::Bytes;

use super::layer::{LayerWork, Place};
use super::operators::{Stream, Work};
use super::{Host, WIDE, element_bytes};
use crate::kernel::Passes;
use crate::{LayerCosts, LayerKey};

/// Seconds of a step beyond its micro-batches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Update {
    pub(crate) compute: f64,
    pub(crate) memory: f64,
    pub(crate) optimizer: f64,
    /// Adding up the gradients of several ranks.
    pub(crate) scale_up: f64,
}

impl Host {
    pub(crate) fn layer_costs(&self, key: LayerKey) -> LayerCosts {
        let operators = self.operators(key.precision);
        let held = self.buffers(&key).activations;
        let place = Place {
            operators: &operators,
            rows: self.rows(&key) as f64,
            hidden: self.hidden,
            is_rotary: self.positions == Positions::Rotary,
            held,
        };
        let layer = self.mean_layer(&place);
        let again = match key.recompute {
            Recompute::None => Work::default(),
            Recompute::Selective => layer.cheap,
            Recompute::Full => layer.forward,
        };
        let backward = layer.backward + again;
        let around = self.around(&place);
        LayerCosts {
            compute: Passes { forward: layer.forward.compute, backward: backward.compute },
            memory: Passes { forward: layer.forward.memory, backward: backward.memory },
            layer_seconds: (layer.forward + backward).total(),
            head_compute: around.compute,
            head_memory: around.memory,
            ..LayerCosts::empty(key)
        }
    }

    fn mean_layer(&self, place: &Place<'_>) -> LayerWork {
        let mut mean = LayerWork::default();
        for kind in &self.kinds {
            let share = kind.count / self.widths.len() as f64;
            let work = place.layer(&kind.widths, kind.keys);
            mean.forward += work.forward * share;
            mean.backward += work.backward * share;
            mean.cheap += work.cheap * share;
        }
        mean
    }

    /// Embedding, last norm, logits and losses of a micro-batch, forward and backward.
    fn around(&self, place: &Place<'_>) -> Work {
        let is_frozen = self.adapters.is_some();
        let tables = if matches!(self.positions, Positions::Learned { .. }) { 2.0 } else { 1.0 };
        let mut work = place.stream(2 * self.hidden, 0) * tables
            + place.norm()
            + place.stream(2 * self.hidden, self.hidden)
            + self.head(place, is_frozen);
        if let Some(adapters) = &self.adapters {
            return work + adapters.project(place.operators);
        }
        // The gradient of the stream is added to rows of the tables, in fp32.
        let bytes = place.rows * self.hidden as f64 * (place.operators.element + 2.0 * WIDE);
        work += place.operators.stream(Stream { fresh: bytes, kept: 0.0 }, place.held) * tables;
        work
    }

    /// Logits of some rows at a time, their losses and their gradients.
    fn head(&self, place: &Place<'_>, is_frozen: bool) -> Work {
        let at_once = logits_at_once(self.vocab, place.rows as usize) as f64;
        let product = Place { rows: at_once, ..*place }.linear(self.vocab, self.hidden);
        let mut work = place.operators.product(product)
            + place.operators.losses(at_once * self.vocab as f64)
            + place.operators.input_gradient(product);
        if !is_frozen {
            work += place.operators.weight_gradient(product);
        }
        work * (place.rows / at_once)
    }

    /// Clearing and measuring the gradients, and AdamW.
    pub(crate) fn update(&self, key: &LayerKey) -> Update {
        let operators = self.operators(key.precision);
        let element = element_bytes(key.precision);
        let trained = self.adapters.as_ref().map_or(self.parameters, |adapters| adapters.parameters);
        let swept = operators.stream(Stream { fresh: trained * WIDE, kept: 0.0 }, 0.0) * 2.0;
        let merged = self.adapters.as_ref().map_or(Work::default(), |adapters| adapters.merge(&operators));
        let copy = if element < WIDE && self.adapters.is_none() { element } else { 0.0 };
        let work = swept + merged;
        Update {
            compute: work.compute,
            memory: work.memory,
            optimizer: operators.optimizer(trained * (ADAMW_BYTES + copy)),
            scale_up: self.all_reduce.map_or(0.0, |curve| curve.seconds(Bytes::new(trained * WIDE)).get()),
        }
    }
}

/// Weight, gradient and two moments read, all but the gradient written.
const ADAMW_BYTES: f64 = 7.0 * WIDE;
