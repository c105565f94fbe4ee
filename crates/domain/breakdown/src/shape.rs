//! The work of one serving step as sums: the step's time depends on nothing else.
//!
//! The request scheduler makes it, the engine runs it and the performance model prices it.

/// Sums over the sequences of one step of a whole replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepShape {
    /// New prompt tokens.
    pub prefill_tokens: u64,
    /// Keys attended, summed over those tokens. See [`StepShape::chunk_pairs`].
    pub prefill_pairs: u64,
    /// Sequences that have prompt tokens in the step.
    pub prefill_sequences: u32,
    /// Sequences that decode.
    pub decodes: u32,
    /// Tokens in the KV cache, summed over those sequences.
    pub decode_context: u64,
}

impl StepShape {
    /// A step in which `decodes` sequences with `context` cached tokens in all decode.
    pub fn decode(decodes: u32, context: u64) -> Self {
        Self { decodes, decode_context: context, ..Self::default() }
    }

    /// A step with one chunk of one prompt: `tokens` new tokens after `prefix` cached ones.
    pub fn prefill(prefix: u64, tokens: u64) -> Self {
        Self {
            prefill_tokens: tokens,
            prefill_pairs: Self::chunk_pairs(prefix, tokens),
            prefill_sequences: u32::from(tokens > 0),
            ..Self::default()
        }
    }

    /// Keys attended by `tokens` prompt tokens after `prefix` cached ones: each sees itself and those before it.
    pub fn chunk_pairs(prefix: u64, tokens: u64) -> u64 {
        let own = u128::from(tokens) * (u128::from(tokens) + 1) / 2;
        let all = u128::from(tokens) * u128::from(prefix) + own;
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// Adds a prompt chunk to the step.
    pub fn add_prefill(&mut self, prefix: u64, tokens: u64) {
        self.prefill_tokens = self.prefill_tokens.saturating_add(tokens);
        self.prefill_pairs = self.prefill_pairs.saturating_add(Self::chunk_pairs(prefix, tokens));
        self.prefill_sequences = self.prefill_sequences.saturating_add(u32::from(tokens > 0));
    }

    pub fn is_empty(&self) -> bool {
        self.prefill_tokens == 0 && self.decodes == 0
    }

    pub fn is_decode_only(&self) -> bool {
        self.prefill_tokens == 0 && self.decodes > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_a_prompt_attend_to_as_many_pairs_as_the_whole() {
        let whole = StepShape::prefill(0, 100);
        assert_eq!(whole.prefill_pairs, 5050);
        let mut parts = StepShape::default();
        parts.add_prefill(0, 30);
        parts.add_prefill(30, 70);
        assert_eq!(parts.prefill_pairs, whole.prefill_pairs);
        assert_eq!(parts.prefill_sequences, 2);
        assert!(StepShape::decode(3, 90).is_decode_only() && !whole.is_decode_only());
    }
}
