//! One request of a trace or a generator, before it reaches a replica.

use bedplate_batching::{BlockKey, BlockKeys};
use bedplate_random::mix;

use super::engine::Picoseconds;

/// What a prompt has in common with others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Prefix {
    /// Nothing is known, so nothing is shared.
    #[default]
    Unknown,
    /// The first tokens are those of a group, the others, and the output, those of one conversation.
    Conversation { group: u64, group_tokens: u32, conversation: u64 },
    /// Hashes of the prompt's blocks as a trace records them, each of a block and everything before it.
    Hashes { block_tokens: u32, hashes: Vec<u64> },
}

impl Prefix {
    /// Keys of the full blocks among the first `prompt` tokens and of the output after them.
    pub fn keys(&self, prompt: u32, output: u32, block_tokens: u32) -> BlockKeys {
        let mut keys = BlockKeys::default();
        match self {
            Prefix::Unknown => {}
            Prefix::Conversation { group, group_tokens, conversation } => {
                // The last token generated never enters the KV.
                let tokens = prompt.saturating_add(output.saturating_sub(1));
                let blocks = tokens / block_tokens;
                let group = mix(group ^ 0x67726f7570);
                let own = mix(mix(*conversation) ^ group ^ u64::from(*group_tokens));
                keys.push_run(group, (group_tokens / block_tokens).min(blocks));
                keys.push_run(own, blocks);
            }
            Prefix::Hashes { block_tokens: recorded, hashes } => {
                // Each key is made of all before it too, whatever the hashes were made of.
                let (mut last, mut tokens) = (BlockKey(0x68617368).then(u64::from(*recorded)), 0u32);
                for hash in hashes {
                    last = last.then(*hash);
                    tokens = tokens.saturating_add(*recorded);
                    keys.push_run(last.0, tokens.min(prompt) / block_tokens);
                }
            }
        }
        keys
    }
}

/// A future request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// When it arrives.
    pub at: Picoseconds,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    pub samples: u16,
    pub tenant: u32,
    pub priority: i8,
    /// How long after its arrival the first token is due.
    pub patience: Option<Picoseconds>,
    pub prefix: Prefix,
    /// Which turn of its conversation it is, from 0.
    pub turn: u32,
}

impl Planned {
    /// An ordinary request that shares nothing.
    pub fn new(at: Picoseconds, prompt_tokens: u32, output_tokens: u32) -> Self {
        Self {
            at,
            prompt_tokens,
            output_tokens,
            samples: 1,
            tenant: 0,
            priority: 0,
            patience: None,
            prefix: Prefix::Unknown,
            turn: 0,
        }
    }
}
