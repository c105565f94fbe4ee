//! The reasons for the scheduler's decisions: refusals, waits, admissions, preemptions and drops as data.

use std::fmt;

use crate::{RequestId, SequenceId};

/// Why a request can never run on this replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestRefusal {
    NothingToDo { prompt_tokens: u32, output_tokens: u32, samples: u16 },
    ContextTooLong { tokens: u64, limit: u32 },
    MoreBlocksThanExist { needed: u64, blocks: u32 },
    MoreSamplesThanSlots { samples: u16, max_seqs: u32 },
}

impl fmt::Display for RequestRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestRefusal::NothingToDo { prompt_tokens, output_tokens, samples } => write!(
                f,
                "a prompt of {prompt_tokens} tokens, an output of {output_tokens} and {samples} samples leave nothing to generate"
            ),
            RequestRefusal::ContextTooLong { tokens, limit } => {
                write!(f, "prompt and output have {tokens} tokens, but the context holds at most {limit}")
            }
            RequestRefusal::MoreBlocksThanExist { needed, blocks } => {
                write!(f, "it needs {needed} KV blocks and the replica has {blocks}")
            }
            RequestRefusal::MoreSamplesThanSlots { samples, max_seqs } => {
                write!(f, "{samples} samples run together and the replica has {max_seqs} sequence slots")
            }
        }
    }
}

/// Why the first waiting sequence was not admitted in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitReason {
    /// The step's token budget is used up.
    BudgetUsed { token_budget: u32 },
    /// All sequence slots are taken.
    SlotsTaken { max_seqs: u32, wanted: u32 },
    /// Blocks are missing, counting those that may be evicted and those kept for running sequences.
    BlocksTaken { needed: u32, available: u32 },
    /// Sequences were preempted in this step, so nothing is admitted.
    AfterPreemption,
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitReason::BudgetUsed { token_budget } => {
                write!(f, "the step's budget of {token_budget} tokens is used up")
            }
            WaitReason::SlotsTaken { max_seqs, wanted } => {
                write!(f, "{wanted} of {max_seqs} sequence slots are needed and fewer are free")
            }
            WaitReason::BlocksTaken { needed, available } => {
                write!(f, "{needed} KV blocks are needed and {available} are available")
            }
            WaitReason::AfterPreemption => f.write_str("running sequences were preempted in this step"),
        }
    }
}

/// What an admitted sequence starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmitReason {
    /// Its turn came; this many tokens of its prompt were in the prefix tree.
    Turn { cached_tokens: u32 },
    /// It was preempted before and recomputes what the tree no longer has.
    Recompute { cached_tokens: u32 },
    /// Its KV comes back from host memory.
    SwapIn { tokens: u32 },
    /// Its KV came from another replica.
    Transferred { tokens: u32 },
}

impl fmt::Display for AdmitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdmitReason::Turn { cached_tokens } => write!(f, "its turn, {cached_tokens} tokens cached"),
            AdmitReason::Recompute { cached_tokens } => {
                write!(f, "recomputed after preemption, {cached_tokens} tokens cached")
            }
            AdmitReason::SwapIn { tokens } => write!(f, "{tokens} tokens back from host memory"),
            AdmitReason::Transferred { tokens } => write!(f, "{tokens} tokens from another replica"),
        }
    }
}

/// Why a running sequence was preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreemptReason {
    /// Running sequences needed blocks and this one was the least urgent.
    BlocksForDecode { missing: u32 },
    /// A waiting request of higher priority took its place.
    Priority { of: RequestId },
    /// It was to be forked from its prompt, and no block was left for it.
    NoBlockForSample,
}

impl fmt::Display for PreemptReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PreemptReason::BlocksForDecode { missing } => {
                write!(f, "{missing} KV blocks were missing and it was the least urgent")
            }
            PreemptReason::Priority { of } => write!(f, "request {} has a higher priority", of.0),
            PreemptReason::NoBlockForSample => f.write_str("no KV block was left for this sample"),
        }
    }
}

/// A sequence that starts to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    pub sequence: SequenceId,
    pub request: RequestId,
    pub reason: AdmitReason,
}

/// A sequence that was taken out and waits again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preemption {
    pub sequence: SequenceId,
    pub request: RequestId,
    pub reason: PreemptReason,
    /// Whether it was decoding rather than computing its prompt.
    pub was_decoding: bool,
    /// Whether its KV went to host memory.
    pub is_swapped: bool,
}

/// A request dropped because its deadline had passed while it waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drop {
    pub request: RequestId,
    pub deadline: u64,
    pub late_by: u64,
}

impl fmt::Display for Drop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its deadline passed {} ns ago while it waited", self.late_by)
    }
}

/// The sequence that would have come next, and what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    pub sequence: SequenceId,
    pub request: RequestId,
    pub reason: WaitReason,
}
