//! Keys of blocks: equal tokens after equal tokens, through the same adapter, have equal keys and values.

use bedplate_batching::{BlockKey, BlockKeys};
use bedplate_random::mix;

/// Keys of one engine. They follow from a secret, so that nobody can make up tokens whose keys are those of another's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EngineKeys {
    secret: u64,
    block_tokens: usize,
}

impl EngineKeys {
    pub(crate) fn new(secret: u64, block_tokens: usize) -> Self {
        Self { secret: mix(secret), block_tokens }
    }

    /// What the first key follows from.
    fn root(&self, adapter: Option<usize>) -> BlockKey {
        BlockKey(self.secret).then(adapter.map_or(0, |adapter| adapter as u64 + 1))
    }

    /// The keys of all full blocks.
    pub(crate) fn of(&self, tokens: &[u32], adapter: Option<usize>) -> BlockKeys {
        let mut last = self.root(adapter);
        let blocks = tokens.chunks_exact(self.block_tokens);
        blocks
            .map(|block| {
                last = last.then(self.content(block));
                last
            })
            .collect()
    }

    /// The key of the block behind those that are known.
    pub(crate) fn next(&self, known: Option<BlockKey>, block: &[u32], adapter: Option<usize>) -> BlockKey {
        known.unwrap_or_else(|| self.root(adapter)).then(self.content(block))
    }

    fn content(&self, block: &[u32]) -> u64 {
        block.iter().fold(self.secret, |content, token| mix(content ^ u64::from(*token)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_beginnings_have_equal_keys_and_adapters_have_their_own() {
        let keys = EngineKeys::new(7, 4);
        let (long, short) = (keys.of(&[1, 2, 3, 4, 5, 6, 7, 8, 9], None), keys.of(&[1, 2, 3, 4, 5], None));
        assert_eq!((long.len(), short.len()), (2, 1));
        assert_eq!(long.first(1), short);
        assert_eq!(Some(keys.next(short.last(), &[5, 6, 7, 8], None)), long.last());
        assert_ne!(keys.of(&[1, 2, 3, 4], Some(0)), short);
        assert_ne!(EngineKeys::new(8, 4).of(&[1, 2, 3, 4], None), short);
    }
}
