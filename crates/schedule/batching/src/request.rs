//! A request to a replica: a prompt, how much to generate, for which tenant and by when.

use crate::keys::BlockKeys;

/// A request, by the caller's own number. It must be unique among the requests that a replica holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A tenant, who shares a replica with others by weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct TenantId(pub u32);

/// A sequence that a replica generates; a request with several samples has several. The number is reused
/// for another sequence once this one has finished or was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SequenceId(pub u32);

/// What a sequence starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SequenceStart {
    /// From its prompt, which this replica computes.
    #[default]
    Prompt,
    /// From KV that another replica computed, together with the first token, and has sent here.
    Transferred,
}

/// One request to a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub id: RequestId,
    pub tenant: TenantId,
    /// Each level is worth the head start in the options; 0 is ordinary, negative is allowed.
    pub priority: i8,
    pub prompt_tokens: u32,
    /// Tokens after which a sequence ends; an engine may end it earlier with `Scheduler::stop`.
    pub output_tokens: u32,
    /// Sequences to generate from the one prompt.
    pub samples: u16,
    /// When the first token is due, in nanoseconds of the caller's clock.
    pub deadline: Option<u64>,
    /// Keys of the full blocks of the prompt and, where known, of the output after it. Empty: nothing is
    /// shared with other requests.
    pub keys: BlockKeys,
    /// Whether all of the prompt is computed here, also what others have computed already. What is computed is shared as ever.
    pub computes_all: bool,
    pub start: SequenceStart,
}

impl Request {
    /// An ordinary request that shares nothing.
    pub fn new(id: u64, prompt_tokens: u32, output_tokens: u32) -> Self {
        Self {
            id: RequestId(id),
            tenant: TenantId(0),
            priority: 0,
            prompt_tokens,
            output_tokens,
            samples: 1,
            deadline: None,
            keys: BlockKeys::default(),
            computes_all: false,
            start: SequenceStart::Prompt,
        }
    }
}
