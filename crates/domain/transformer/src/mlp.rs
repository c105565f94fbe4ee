//! The feed-forward half of a layer: dense, or a mixture of experts.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mlp {
    Dense(Dense),
    Mixture(Mixture),
    /// The layer only mixes tokens (Nemotron-H).
    Absent,
}

/// A plain MLP (`up`, `down`) or a gated one (`gate`, `up`, `down`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dense {
    pub width: u64,
    pub is_gated: bool,
    pub has_bias: bool,
}

/// A router that sends each token to `per_token` of `experts` experts, with an optional shared expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mixture {
    pub experts: u64,
    /// At most `experts`.
    pub per_token: u64,
    /// One routed expert.
    pub expert: Dense,
    /// What every token passes through; several shared experts count as one of their total width.
    pub shared: Option<Dense>,
    /// The shared expert's output is weighed by a learned gate of one column (Qwen2-MoE).
    pub has_shared_gate: bool,
    pub has_router_bias: bool,
    /// One load-balancing bias per expert, moved by a rule and not by gradients (DeepSeek-V3).
    pub has_correction_bias: bool,
}

impl Mlp {
    pub fn mixture(&self) -> Option<&Mixture> {
        match self {
            Mlp::Dense(_) | Mlp::Absent => None,
            Mlp::Mixture(mixture) => Some(mixture),
        }
    }
}
