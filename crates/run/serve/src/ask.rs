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
    /// Most tokens of a sample; with 0 a sample ends when the prompt has been computed.
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
    /// The same for the tokens of the prompt, which is then computed anew, whatever is cached of it.
    pub prompt_logprobs: Option<u8>,
    /// The only tokens that are sampled, the ends among them or not, where not all are: bit `t % 32` of word `t / 32`.
    pub allowed: Option<Arc<[u32]>>,
    /// Runs of tokens of which no answer has the last behind the others.
    pub bad_words: Vec<Vec<u32>>,
    /// What may be sampled next, where not everything may.
    pub grammar: Option<Arc<dyn Grammar>>,
}

impl Ask {
    /// How many most likely tokens are wanted beside each of the prompt's, where its log-probabilities are.
    pub(crate) fn wants_prompt(&self) -> Option<u8> {
        match &self.wants {
            Wants::Text(text) => text.prompt_logprobs,
            Wants::Embedding | Wants::Blocks => None,
        }
    }

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

impl Continuation {
    /// Tokens for which the scheduler makes room: the step that computes the prompt counts as one.
    pub(crate) fn counted_tokens(&self) -> u32 {
        self.most.max(1)
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
            prompt_logprobs: None,
            allowed: None,
            bad_words: Vec::new(),
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
