//! How the next token is sampled.

/// The settings of a sample, under the names that clients know.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token.
    pub temperature: f32,
    /// Samples from so many most likely tokens; 0 is all of them.
    pub top_k: u32,
    /// Samples from the most likely tokens that together have this probability.
    pub top_p: f32,
    /// Samples from tokens at least this probable, compared with the most likely one.
    pub min_p: f32,
    /// Divides the logits of tokens of prompt and answer above 0, multiplies those below; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Taken from the logits of tokens that the answer has.
    pub presence_penalty: f32,
    /// The same for each time that the answer has them.
    pub frequency_penalty: f32,
    /// Added to the logits of tokens.
    pub bias: Vec<(u32, f32)>,
    /// Equal seeds sample equal answers; without one the engine picks one.
    pub seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            bias: Vec::new(),
            seed: None,
        }
    }
}

impl Sampling {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }
}
