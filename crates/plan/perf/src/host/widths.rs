//! Numbers per row of everything that a layer computes, as the runtime lays its buffers out.

use bedplate_transformer::{Attention, Layer, Mixture, Mlp};

use super::operators::Linear;

/// Widths of a layer's buffers; matrices lie between them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Widths {
    pub(super) heads: f64,
    pub(super) kv_heads: f64,
    pub(super) head_dim: f64,
    /// Queries, keys and values side by side.
    pub(super) qkv: f64,
    /// Queries and keys before their norms; 0 without such norms.
    pub(super) unnormed: f64,
    /// Queries and keys that are rotated by their positions.
    pub(super) rotated: f64,
    pub(super) attended: f64,
    /// Of a dense MLP or of the shared expert: gate and up, or up alone.
    pub(super) gate_up: f64,
    pub(super) activated: f64,
    /// Experts that a token visits.
    pub(super) choices: f64,
    pub(super) experts: f64,
    /// Width of one routed expert.
    pub(super) expert: f64,
    pub(super) has_shared: bool,
    pub(super) has_shared_gate: bool,
}

impl Widths {
    pub(super) fn of(layer: &Layer, is_rotary: bool) -> Self {
        let attention = &layer.attention;
        let (heads, kv_heads) = (attention.heads() as f64, attention.kv_heads() as f64);
        let head_dim = attention.query_dim() as f64;
        let has_norms = matches!(attention, Attention::GroupedQuery(grouped) if grouped.has_qk_norm);
        let queries_and_keys = (heads + kv_heads) * head_dim;
        let plain = Self {
            heads,
            kv_heads,
            head_dim,
            qkv: (heads + 2.0 * kv_heads) * head_dim,
            unnormed: if has_norms { queries_and_keys } else { 0.0 },
            rotated: if is_rotary { queries_and_keys } else { 0.0 },
            attended: heads * head_dim,
            ..Self::default()
        };
        match &layer.mlp {
            Mlp::Dense(dense) => {
                let width = dense.width as f64;
                Self { gate_up: if dense.is_gated { 2.0 * width } else { width }, activated: width, ..plain }
            }
            Mlp::Mixture(mixture) => plain.with_mixture(mixture),
        }
    }

    fn with_mixture(self, mixture: &Mixture) -> Self {
        let shared = mixture.shared.map_or(0.0, |shared| shared.width as f64);
        let gates = mixture.shared.map_or(0.0, |shared| if shared.is_gated { 2.0 } else { 1.0 });
        Self {
            gate_up: gates * shared,
            activated: shared,
            choices: mixture.per_token as f64,
            experts: mixture.experts as f64,
            expert: mixture.expert.width as f64,
            has_shared: mixture.shared.is_some(),
            has_shared_gate: mixture.has_shared_gate,
            ..self
        }
    }

    /// Gate and up of all experts that a token visits.
    pub(super) fn expert_gate_up(&self) -> f64 {
        2.0 * self.expert_activated()
    }

    pub(super) fn expert_activated(&self) -> f64 {
        self.choices * self.expert
    }

    /// The products of all experts over so many rows: gate and up, and down.
    pub(super) fn expert_linears(&self, rows: f64, hidden: f64) -> [Linear; 2] {
        let slots = rows * self.choices;
        let rows = (slots / self.experts).max(1.0);
        let groups = slots / rows;
        [
            Linear { rows, outputs: 2.0 * self.expert, inputs: hidden, groups },
            Linear { rows, outputs: hidden, inputs: self.expert, groups },
        ]
    }

    /// Room that serves either of two layers.
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            heads: self.heads.max(other.heads),
            kv_heads: self.kv_heads.max(other.kv_heads),
            head_dim: self.head_dim.max(other.head_dim),
            qkv: self.qkv.max(other.qkv),
            unnormed: self.unnormed.max(other.unnormed),
            rotated: self.rotated.max(other.rotated),
            attended: self.attended.max(other.attended),
            gate_up: self.gate_up.max(other.gate_up),
            activated: self.activated.max(other.activated),
            choices: self.choices.max(other.choices),
            experts: self.experts.max(other.experts),
            expert: self.expert.max(other.expert),
            has_shared: self.has_shared || other.has_shared,
            has_shared_gate: self.has_shared_gate || other.has_shared_gate,
        }
    }
}
