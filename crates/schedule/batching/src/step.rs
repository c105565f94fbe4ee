//! One step and its result, as the engine and the simulator see them.

use bedplate_breakdown::StepShape;

use crate::blocks::BlockId;
use crate::reason::{Admission, Drop, Preemption, Wait};
use crate::request::{RequestId, SequenceId};

/// A part of a prompt that is computed in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptChunk {
    pub sequence: SequenceId,
    /// Tokens already in the KV.
    pub start: u32,
    pub tokens: u32,
}

/// A sequence whose KV goes to host memory before a step, and the blocks that it had, in the order of its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwapOut {
    pub sequence: SequenceId,
    pub blocks: Vec<BlockId>,
}

/// One step to be run, or several equal ones that hold decodes only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Step {
    /// The work of the first step; each repeat adds one token to the context of each decode.
    pub shape: StepShape,
    /// How often the step may be run before the scheduler must be called again; 1 unless it only decodes.
    pub repeats: u32,
    /// Whether the sequences of `Scheduler::decoding` get a token; they wait while prompts have their own step.
    pub decodes: bool,
    pub chunks: Vec<PromptChunk>,
    pub admitted: Vec<Admission>,
    pub preempted: Vec<Preemption>,
    pub dropped: Vec<Drop>,
    /// The sequence that would have been admitted next, and why it was not.
    pub wait: Option<Wait>,
    /// Tokens of KV to bring from host memory before the step.
    pub swapped_in_tokens: u64,
    /// Tokens of KV to bring to host memory before the step.
    pub swapped_out_tokens: u64,
    /// Whose they are. Their blocks may have been given to others already: they are copied before anything is written.
    pub swapped_out: Vec<SwapOut>,
}

impl Step {
    /// Whether there is nothing to run.
    pub fn is_idle(&self) -> bool {
        self.shape.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.shape = StepShape::default();
        self.repeats = 0;
        self.decodes = false;
        self.chunks.clear();
        self.admitted.clear();
        self.preempted.clear();
        self.dropped.clear();
        self.wait = None;
        self.swapped_in_tokens = 0;
        self.swapped_out_tokens = 0;
        self.swapped_out.clear();
    }
}

/// A sequence and its number of generated tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceProgress {
    pub sequence: SequenceId,
    pub request: RequestId,
    pub generated: u32,
}

/// What a completed step changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Completion {
    /// Sequences whose prompt is complete and which thereby got a token: the first one, or after a
    /// recomputation the next one. Those that end with it are in `finished` as well.
    pub started: Vec<SequenceProgress>,
    pub finished: Vec<SequenceProgress>,
    /// Samples that could not be forked and wait.
    pub preempted: Vec<Preemption>,
}

impl Completion {
    pub(crate) fn clear(&mut self) {
        self.started.clear();
        self.finished.clear();
        self.preempted.clear();
    }
}
