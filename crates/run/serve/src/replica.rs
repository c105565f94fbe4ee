//! One copy of a model that answers, as its callers see it.

use bedplate_batching::RequestRefusal;
use bedplate_kernels::DeviceFault;

use crate::{Answer, Ask};

/// A running copy of a model.
pub trait Replica: Send + Sync {
    fn about(&self) -> &About;

    /// Begins an answer, or says why there will be none.
    fn ask(&self, ask: Ask) -> Result<Answer, Refusal>;

    /// What it has done and what it holds.
    fn state(&self) -> EngineState;

    /// Takes no more requests and finishes those that it has. [`EngineState::requests`] falls to 0.
    fn drain(&self);
}

/// What does not change while a model is served.
#[derive(Debug, Clone, PartialEq)]
pub struct About {
    /// Most tokens of prompt and answer together.
    pub context_limit: u32,
    /// Tokens with lower numbers exist.
    pub vocabulary: u32,
    /// The model's own end tokens.
    pub end_tokens: Vec<u32>,
    /// Adapters that a request may name.
    pub adapters: Vec<String>,
    /// Numbers of an embedding.
    pub hidden: u32,
    pub blocks: u32,
    pub block_tokens: u32,
}

/// Why a request is not answered.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// It can never run here.
    #[error("{0}")]
    Never(RequestRefusal),
    #[error("the model has no token {token}: its vocabulary has {vocabulary}")]
    NoSuchToken { token: u32, vocabulary: u32 },
    #[error("there is no adapter `{name}`")]
    NoSuchAdapter { name: String },
    #[error("too many requests wait; the limit is {limit}")]
    Full { limit: u32 },
    #[error("the model takes no more requests: it is about to end")]
    Draining,
    #[error("the model has stopped: {reason}")]
    Stopped { reason: String },
}

/// Counters since the start, and what is held now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineState {
    /// Requests that are not finished, waiting or running.
    pub requests: u32,
    /// Sequences that wait and that run.
    pub waiting: u32,
    pub running: u32,
    /// Blocks that running sequences need, and those that only a later prompt may find again.
    pub used_blocks: u32,
    pub idle_blocks: u32,
    pub total_blocks: u32,
    pub steps: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub generated_tokens: u64,
    pub preemptions: u64,
    /// Tokens that were speculated, and those of them that were right.
    pub drafted_tokens: u64,
    pub accepted_tokens: u64,
    /// Nanoseconds of all steps, and what of them went into scheduling, preparing and sampling.
    pub step_nanoseconds: u64,
    pub host_nanoseconds: u64,
    /// Why it answers nothing any more, if it does not.
    pub stopped: Option<String>,
    /// The GPU that has failed, where that is why.
    pub fault: Option<Box<DeviceFault>>,
}
