//! What is asked of a model: a prompt in tokens, how to sample from it, and when to stop.

use std::sync::Arc;

use bedplate_batching::TenantId;

use crate::Sampling;

/// One request.
#[derive(Debug, Clone)]
pub struct Ask {
    pub prompt: Vec<u32>,
    pub wants: Wants,
    pub tenant: TenantId,
    /// Each level is worth a head start in the queue; 0 is ordinary.
    pub priority: i8,
    /// The adapter to answer with, by its name.
    pub adapter: Option<String>,
}

/// What comes back.
#[derive(Debug, Clone)]
pub enum Wants {
    Text(Continuation),
    /// One vector for the prompt, of length 1.
    Embedding,
    /// The keys and values of the prompt's full blocks, for an engine elsewhere.
    Blocks,
}

/// How a prompt is continued.
#[derive(Debug, Clone)]
pub struct Continuation {
    /// Most tokens of a sample.
    pub most: u32,
    /// Tokens before which no end is sampled.
    pub least: u32,
    /// Samples of the one prompt, each with a seed of its own.
    pub samples: u16,
    pub sampling: Sampling,
    /// Tokens that end a sample and are not part of it, beside the model's own.
    pub stop_tokens: Vec<u32>,
    /// Whether the model's own end tokens are sampled as any other.
    pub ignores_end: bool,
    /// With each token, its log-probability and that of this many most likely ones.
    pub logprobs: Option<u8>,
    /// What may be sampled next, where not everything may.
    pub grammar: Option<Arc<dyn Grammar>>,
}

impl Ask {
    pub fn text(prompt: Vec<u32>, continuation: Continuation) -> Self {
        Self {
            prompt,
            wants: Wants::Text(continuation),
            tenant: TenantId::default(),
            priority: 0,
            adapter: None,
        }
    }
}

impl Default for Continuation {
    fn default() -> Self {
        Self {
            most: 16,
            least: 0,
            samples: 1,
            sampling: Sampling::default(),
            stop_tokens: Vec::new(),
            ignores_end: false,
            logprobs: None,
            grammar: None,
        }
    }
}

/// A language that answers must be in. One for all samples of a request; each gets a [`Parser`] of its own.
pub trait Grammar: Send + Sync + std::fmt::Debug {
    fn parser(&self) -> Box<dyn Parser>;
}

/// Follows one sample through its grammar.
pub trait Parser: Send {
    /// Which tokens may come next: bit `t % 32` of word `t / 32`. The mask has room for the vocabulary and comes cleared. The
    /// model's end tokens are allowed where the text is complete.
    fn allow(&mut self, mask: &mut [u32]) -> Result<(), String>;

    /// Takes the token that was sampled.
    fn accept(&mut self, token: u32) -> Result<(), String>;
}
