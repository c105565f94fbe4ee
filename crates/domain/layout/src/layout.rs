//! The parts of a layout.

use crate::Ends;

/// How a training step is spread over accelerators. Degrees are at least 1; [`Layout::refusals`] checks them.
///
/// Tensor, context, data and pipeline degrees multiply to the world. Experts are carved out of the same
/// ranks: inside one pipeline stage `expert_tensor * expert` divides `tensor * context * data`, and what
/// remains replicates the experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    /// `dp`: ranks that see different samples.
    pub data: u32,
    /// `tp`: ranks that share every matrix.
    pub tensor: u32,
    /// `sp`: norms and residuals are split along the sequence inside a tensor group.
    pub is_sequence_parallel: bool,
    /// `cp`: ranks that share one long sequence.
    pub context: u32,
    /// `pp`: stages.
    pub pipeline: u32,
    /// `vpp`: chunks of layers that each stage holds in turn (interleaved schedule).
    pub virtual_stages: u32,
    /// `first7`, `last6`: layers of the first and the last stage, where they are set by hand.
    pub ends: Ends,
    pub schedule: Schedule,
    /// `ep`: ranks over which routed experts are spread.
    pub expert: u32,
    /// `etp`: ranks that share the matrices of one expert.
    pub expert_tensor: u32,
    pub sharding: Sharding,
    /// `mb`: sequences per micro-batch and data rank.
    pub micro_batch: u32,
    pub recompute: Recompute,
    pub precision: ComputePrecision,
}

/// In which order the stages of a pipeline work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Schedule {
    /// One forward, one backward; interleaved where a stage has several chunks.
    #[default]
    Alternating,
    /// `zero-bubble`: gradients of weights are computed where a stage would wait (Qi et al., arXiv:2401.10241, ZB-H1).
    ZeroBubble,
    /// `dualpipe`: micro-batches enter at both ends, so every rank holds two stages, and the exchange of one direction
    /// hides behind the work of the other (DeepSeek-V3, arXiv:2412.19437).
    DualPipe,
}

/// What data-parallel ranks split instead of holding copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Sharding {
    /// Every data rank holds everything.
    #[default]
    None,
    /// `zero1`: optimizer state.
    Optimizer,
    /// `zero2`: optimizer state and gradients.
    Gradients,
    /// `zero3` or `fsdp`: weights too, gathered block by block.
    Weights,
    /// `hsdp8`: as `Weights`, inside groups of 8; the groups hold copies.
    WeightsWithin(u32),
}

/// Which activations are computed again in the backward pass instead of kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Recompute {
    #[default]
    None,
    /// What is cheap to make again: the attention core, and depending on the stack norms, activation functions and
    /// what latent attention projects up.
    Selective,
    /// Whole blocks, from their inputs.
    Full,
}

/// The number format of the large matrix products; the rest stays in bf16 or fp32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ComputePrecision {
    Fp32,
    #[default]
    Bf16,
    Fp16,
    Fp8,
    Fp4,
}

impl Default for Layout {
    fn default() -> Self {
        Self::ONE
    }
}

impl Layout {
    /// One rank that does everything.
    pub const ONE: Self = Self {
        data: 1,
        tensor: 1,
        is_sequence_parallel: false,
        context: 1,
        pipeline: 1,
        virtual_stages: 1,
        ends: Ends { first: None, last: None },
        schedule: Schedule::Alternating,
        expert: 1,
        expert_tensor: 1,
        sharding: Sharding::None,
        micro_batch: 1,
        recompute: Recompute::None,
        precision: ComputePrecision::Bf16,
    };

    /// Accelerators used. Saturates; the rules refuse such layouts.
    pub fn world(&self) -> u64 {
        let degrees = [self.data, self.tensor, self.context, self.pipeline];
        degrees.into_iter().fold(1, |product: u64, degree| product.saturating_mul(degree.into()))
    }

    /// Ranks of one pipeline stage. Saturates; the rules refuse such layouts.
    pub fn stage_ranks(&self) -> u32 {
        self.data.saturating_mul(self.tensor).saturating_mul(self.context)
    }

    /// Copies of each expert inside a stage (`edp`).
    pub fn expert_data(&self) -> u32 {
        self.stage_ranks() / self.expert.saturating_mul(self.expert_tensor).max(1)
    }

    /// Ranks over which weights or states are split: context ranks hold the same weights as data ranks.
    pub fn shard_ranks(&self) -> u32 {
        match self.sharding {
            Sharding::None => 1,
            Sharding::WeightsWithin(group) => group,
            _ => self.data.saturating_mul(self.context),
        }
    }
}
