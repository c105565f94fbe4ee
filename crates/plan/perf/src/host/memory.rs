//! What training on a host allocates, buffer by buffer as the runtime's workspace does.

use bedplate_layout::Recompute;
use bedplate_units::Bytes;

use super::operators::Linear;
use super::widths::Widths;
use super::{Host, WIDE, element_bytes};
use crate::{LayerKey, Memory};

impl Host {
    pub(crate) fn memory(&self, key: &LayerKey) -> Memory {
        let element = element_bytes(key.precision);
        let logits = self.logits_at_once(self.rows(key)) * self.vocab * WIDE;
        let state = self.state(element);
        Memory {
            weights: Bytes::new(self.parameters * element),
            gradients: Bytes::new(state.gradients),
            optimizer: Bytes::new(state.optimizer),
            activations: Bytes::new(self.activations(key)),
            logits: Bytes::new(logits),
            communication: Bytes::ZERO,
            workspace: Bytes::new(PROGRAM + self.packed(key)),
        }
    }

    pub(super) fn rows(&self, key: &LayerKey) -> f64 {
        f64::from(key.micro_batch) * self.sequence
    }

    /// Rows whose logits are made at once.
    pub(super) fn logits_at_once(&self, rows: f64) -> f64 {
        (LOGITS_AT_ONCE / self.vocab).floor().clamp(1.0, rows)
    }

    /// Everything of the workspace but the logits.
    pub(super) fn activations(&self, key: &LayerKey) -> f64 {
        let (rows, element) = (self.rows(key), element_bytes(key.precision));
        let room = Room { rows, element, hidden: self.hidden };
        let widest = self.kinds.iter().map(|kind| kind.widths).fold(Widths::default(), Widths::max);
        let of_all = |bytes: &dyn Fn(&Widths) -> f64| -> f64 {
            self.kinds.iter().map(|kind| kind.count * bytes(&kind.widths)).sum()
        };
        let kept = |widths: &Widths| room.kept(widths);
        let cheap = |widths: &Widths| room.cheap(widths);
        let layers = match key.recompute {
            Recompute::None => of_all(&kept) + of_all(&cheap),
            Recompute::Selective => of_all(&kept) + cheap(&widest),
            Recompute::Full => kept(&widest) + cheap(&widest),
        };
        let streams = (self.layers + 1.0) * self.hidden * element;
        let head = self.hidden * element + 2.0 * WIDE;
        // Tokens, targets, positions, losses, and first keys by reach.
        let indices = (4.0 + self.reaches) * WIDE;
        layers + room.gradients(&widest) + rows * (streams + head + indices)
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
        let (rows, hidden) = (self.rows(key), self.hidden);
        let head = Linear::new(self.logits_at_once(rows), self.vocab, hidden);
        let largest = |widths: &Widths| {
            let linears = [
                Linear::new(rows, widths.qkv, hidden),
                Linear::new(rows, hidden, widths.attended),
                Linear::new(rows, widths.gate_up, hidden),
            ];
            let experts =
                if widths.experts > 0.0 { widths.expert_linears(rows, hidden).to_vec() } else { Vec::new() };
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

/// The buffers of a layer for some rows.
struct Room {
    rows: f64,
    element: f64,
    hidden: f64,
}

impl Room {
    /// What is costly to make again: products and attention.
    fn kept(&self, widths: &Widths) -> f64 {
        let norms = 4.0;
        let of_heads = if widths.unnormed > 0.0 { widths.heads + widths.kv_heads } else { 0.0 };
        let statistics = norms + of_heads + widths.heads;
        let elements = widths.unnormed + widths.qkv + widths.attended + self.hidden + widths.gate_up;
        let mixture = if widths.experts > 0.0 { self.kept_mixture(widths) } else { 0.0 };
        self.rows * (WIDE * statistics + self.element * elements) + mixture
    }

    fn kept_mixture(&self, widths: &Widths) -> f64 {
        let shared = if widths.has_shared { 1.0 } else { 0.0 };
        let wide = 2.0 * widths.experts + 4.0 * widths.choices + shared;
        let elements = widths.expert_gate_up() + (widths.choices + shared) * self.hidden;
        self.rows * (WIDE * wide + self.element * elements) + WIDE * (widths.experts + 1.0)
    }

    /// Norms and activations.
    fn cheap(&self, widths: &Widths) -> f64 {
        let elements = (2.0 + widths.choices) * self.hidden + widths.activated + widths.expert_activated();
        self.rows * self.element * elements
    }

    /// The gradients of one layer's activations.
    fn gradients(&self, widths: &Widths) -> f64 {
        let elements = 2.0 * self.hidden + widths.attended + widths.qkv + widths.activated + widths.gate_up;
        let mixture = if widths.experts > 0.0 { self.mixture_gradients(widths) } else { 0.0 };
        self.rows * self.element * elements + mixture
    }

    fn mixture_gradients(&self, widths: &Widths) -> f64 {
        let shared = if widths.has_shared { 1.0 } else { 0.0 };
        let elements = (2.0 * widths.choices + shared) * self.hidden
            + widths.expert_activated()
            + widths.expert_gate_up();
        self.rows * (WIDE * (widths.choices + widths.experts + shared) + self.element * elements)
    }
}

/// Logits are made for about this many numbers at a time.
const LOGITS_AT_ONCE: f64 = 4.0 * 1024.0 * 1024.0;
/// Code, stacks of threads, batches that wait.
const PROGRAM: f64 = 32e6;
