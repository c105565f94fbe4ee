//! How a replica schedules: limits, modes and the weight of urgency.

use std::collections::BTreeMap;
use std::fmt;

use crate::TenantId;

/// Whether prompts share steps with decodes or get their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PrefillMode {
    /// One step holds decodes and chunks of prompts.
    #[default]
    Mixed,
    /// A step holds either prompts or decodes; decodes wait while there are prompts to compute.
    Separate,
}

/// What happens to a sequence preempted for lack of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PreemptionMode {
    /// Its KV is dropped and computed again later, except for what the prefix tree still has then.
    #[default]
    Recompute,
    /// Its KV goes to host memory as long as `host_blocks` are free, and comes back later.
    Swap,
}

/// What happens to a waiting request whose deadline has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LatePolicy {
    #[default]
    Serve,
    Drop,
}

/// How tenants share a replica.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Fairness {
    /// Requests are ordered by urgency alone.
    #[default]
    Off,
    /// The waiting tenant with the fewest tokens served per weight comes first; urgency orders the
    /// requests of one tenant. Tenants that are not listed weigh 1.
    Tenants(BTreeMap<TenantId, u32>),
}

/// The settings of one replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Tokens of one KV block.
    pub block_tokens: u32,
    /// KV blocks of the replica.
    pub blocks: u32,
    /// Most tokens in one step, decodes and prompts together.
    pub token_budget: u32,
    /// Most tokens of one prompt in one step.
    pub chunk_tokens: u32,
    /// Most sequences that run at once.
    pub max_seqs: u32,
    /// Longest prompt and output together.
    pub context_limit: u32,
    pub prefill: PrefillMode,
    pub preemption: PreemptionMode,
    /// Blocks in host memory for sequences that were swapped out.
    pub host_blocks: u32,
    /// Share of the output, in percent, for which blocks must be available when a sequence is admitted. With 100
    /// nothing is ever preempted for lack of blocks.
    pub reserve_percent: u32,
    /// Blocks that an admission leaves free, so that running sequences can grow.
    pub watermark_blocks: u32,
    /// Whether blocks stay in the prefix tree after their sequence has ended.
    pub keeps_prefixes: bool,
    pub fairness: Fairness,
    /// How much later a request may arrive and still go first, per level of priority, in nanoseconds. Finite,
    /// so that no request starves.
    pub priority_head_start: u64,
    /// How long a request without a deadline may wait, in nanoseconds, when it is compared with one that has a
    /// deadline.
    pub patience: u64,
    /// Whether a waiting request may preempt running ones of lower priority.
    pub preempts_for_priority: bool,
    pub late: LatePolicy,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self {
            block_tokens: 16,
            blocks: 16_384,
            token_budget: 8192,
            chunk_tokens: 8192,
            max_seqs: 256,
            context_limit: 131_072,
            prefill: PrefillMode::Mixed,
            preemption: PreemptionMode::Recompute,
            host_blocks: 0,
            reserve_percent: 0,
            watermark_blocks: 160,
            keeps_prefixes: true,
            fairness: Fairness::Off,
            priority_head_start: 1_000_000_000,
            patience: 10_000_000_000,
            preempts_for_priority: false,
            late: LatePolicy::Serve,
        }
    }
}

/// Why settings are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionsFlaw {
    Zero { what: &'static str },
    BudgetBelowMaxSeqs { token_budget: u32, max_seqs: u32 },
    ReserveAboveWhole { reserve_percent: u32 },
    ZeroWeight { tenant: TenantId },
}

impl fmt::Display for OptionsFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionsFlaw::Zero { what } => write!(f, "{what} is zero"),
            OptionsFlaw::BudgetBelowMaxSeqs { token_budget, max_seqs } => write!(
                f,
                "a budget of {token_budget} tokens per step cannot give {max_seqs} running sequences one each"
            ),
            OptionsFlaw::ReserveAboveWhole { reserve_percent } => {
                write!(f, "{reserve_percent} % of an output cannot be reserved")
            }
            OptionsFlaw::ZeroWeight { tenant } => write!(f, "tenant {} has weight 0", tenant.0),
        }
    }
}

impl std::error::Error for OptionsFlaw {}

impl SchedulerOptions {
    /// What is wrong with these settings, if anything.
    pub fn flaw(&self) -> Option<OptionsFlaw> {
        let positive = [
            ("block_tokens", self.block_tokens),
            ("blocks", self.blocks),
            ("token_budget", self.token_budget),
            ("chunk_tokens", self.chunk_tokens),
            ("max_seqs", self.max_seqs),
            ("context_limit", self.context_limit),
        ];
        if let Some((what, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
            return Some(OptionsFlaw::Zero { what });
        }
        let Self { token_budget, max_seqs, reserve_percent, .. } = *self;
        if token_budget < max_seqs {
            return Some(OptionsFlaw::BudgetBelowMaxSeqs { token_budget, max_seqs });
        }
        if reserve_percent > 100 {
            return Some(OptionsFlaw::ReserveAboveWhole { reserve_percent });
        }
        let Fairness::Tenants(weights) = &self.fairness else { return None };
        let weightless = weights.iter().find(|(_, weight)| **weight == 0);
        weightless.map(|(tenant, _)| OptionsFlaw::ZeroWeight { tenant: *tenant })
    }

    /// Blocks that hold this many tokens.
    pub(crate) fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_tokens)
    }

    /// Blocks that must be free or evictable for a sequence to be admitted.
    pub(crate) fn reserve_for(&self, prompt_tokens: u32, output_tokens: u32) -> u32 {
        let share = u64::from(output_tokens) * u64::from(self.reserve_percent) / 100;
        self.blocks_for(prompt_tokens.saturating_add(share as u32))
    }
}
