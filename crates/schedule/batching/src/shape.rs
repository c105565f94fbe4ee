//! What one engine step holds, in sums: the time of a step depends on these only.

/// The work of one engine step, summed over its sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepShape {
    /// Prompt tokens computed in this step.
    pub prefill_tokens: u64,
    /// Sum over those tokens of the keys each attends to, itself included.
    pub prefill_pairs: u64,
    /// Sequences of which a part of the prompt is computed.
    pub prefill_sequences: u32,
    /// Sequences that get one more token.
    pub decodes: u32,
    /// Sum over the decodes of the tokens in their KV before the step.
    pub decode_context: u64,
}

impl StepShape {
    pub fn is_empty(&self) -> bool {
        self.prefill_tokens == 0 && self.decodes == 0
    }

    pub fn is_decode_only(&self) -> bool {
        self.prefill_tokens == 0 && self.decodes > 0
    }

    /// Adds a chunk of a prompt that stands behind `before` tokens already in the KV.
    pub(crate) fn add_chunk(&mut self, before: u32, tokens: u32) {
        let (before, tokens) = (u64::from(before), u64::from(tokens));
        self.prefill_tokens += tokens;
        self.prefill_pairs += tokens * before + tokens * (tokens + 1) / 2;
        self.prefill_sequences += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_a_prompt_attend_to_as_many_pairs_as_the_whole() {
        let mut whole = StepShape::default();
        whole.add_chunk(0, 100);
        assert_eq!(whole.prefill_pairs, 5050);
        let mut parts = StepShape::default();
        parts.add_chunk(0, 30);
        parts.add_chunk(30, 70);
        assert_eq!(parts.prefill_pairs, whole.prefill_pairs);
        assert_eq!(parts.prefill_sequences, 2);
    }
}
