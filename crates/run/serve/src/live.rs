//! Requests and sequences that are being answered.

use bedplate_batching::{BlockKey, BlockKeys};

use crate::ask::{Continuation, Parser, Wants};
use crate::keys::EngineKeys;
use crate::sampler::Sampler;
use crate::{Ask, SampleEvent, Teller};

/// A request that has samples left.
pub(crate) struct LiveRequest {
    pub(crate) ask: Ask,
    pub(crate) teller: Teller,
    pub(crate) seed: u64,
    pub(crate) adapter: Option<usize>,
    /// Samples that have a sequence, and those that have not ended.
    pub(crate) begun: u16,
    pub(crate) left: u16,
    pub(crate) is_admitted: bool,
    /// Blocks that were told to whoever wants them.
    pub(crate) told_blocks: usize,
    /// Tokens of the prompt whose log-probabilities were told. The first has none.
    pub(crate) told_prompt: usize,
}

impl LiveRequest {
    pub(crate) fn continuation(&self) -> Option<&Continuation> {
        match &self.ask.wants {
            Wants::Text(continuation) => Some(continuation),
            Wants::Embedding | Wants::Blocks => None,
        }
    }

    /// The next of its samples.
    pub(crate) fn begin_sample(&mut self, request: u64, keys: &BlockKeys) -> LiveSequence {
        let sample = self.begun;
        self.begun += 1;
        let prompt = &self.ask.prompt;
        let text = self.continuation();
        LiveSequence {
            request,
            sample,
            prompt: prompt.len(),
            sampler: text.map(|text| Sampler::new(text.sampling.clone(), self.seed, sample, prompt)),
            parser: text.and_then(|text| text.grammar.as_ref()).map(|grammar| grammar.parser()),
            tokens: prompt.clone(),
            ahead: 0,
            is_behind: false,
            keyed: keys.len() as usize,
            last_key: keys.last(),
            adapter: self.adapter,
            seen: 0,
            spare: None,
        }
    }
}

/// A block that stands in for one that the scheduler has not given yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spare {
    /// Which block of the table it stands in for.
    pub(crate) index: usize,
    pub(crate) block: u32,
}

/// A sequence that waits or runs.
pub(crate) struct LiveSequence {
    pub(crate) request: u64,
    pub(crate) sample: u16,
    pub(crate) prompt: usize,
    /// The prompt and what was generated.
    pub(crate) tokens: Vec<u32>,
    /// Generated tokens that the scheduler does not count yet: speculative tokens that were right.
    pub(crate) ahead: usize,
    /// Their keys and values were lost by a preemption.
    pub(crate) is_behind: bool,
    pub(crate) sampler: Option<Sampler>,
    pub(crate) parser: Option<Box<dyn Parser>>,
    /// Blocks whose keys the scheduler knows, and the last of them.
    keyed: usize,
    last_key: Option<BlockKey>,
    pub(crate) adapter: Option<usize>,
    /// Tokens that the draft model has seen.
    pub(crate) seen: usize,
    /// Holds keys and values of right speculative tokens that lie behind its blocks.
    pub(crate) spare: Option<Spare>,
}

impl LiveSequence {
    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Tokens that the scheduler counts.
    pub(crate) fn counted(&self) -> usize {
        self.tokens.len() - self.ahead
    }

    /// Keys of blocks that are full once the first `computed` tokens are in the pool.
    pub(crate) fn take_keys(
        &mut self,
        keys: &EngineKeys,
        block_tokens: usize,
        computed: usize,
    ) -> Vec<BlockKey> {
        let mut new = Vec::new();
        while (self.keyed + 1) * block_tokens <= computed {
            let block = &self.tokens[self.keyed * block_tokens..(self.keyed + 1) * block_tokens];
            let key = keys.next(self.last_key, block, self.adapter);
            (self.keyed, self.last_key) = (self.keyed + 1, Some(key));
            new.push(key);
        }
        new
    }
}

impl LiveRequest {
    pub(crate) fn tell(&self, event: SampleEvent) {
        self.teller.tell(event);
    }
}
