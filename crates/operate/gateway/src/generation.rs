//! What a request asks a model to write, after it has been read and checked.

use std::sync::Arc;

use bedplate_data::Tokenizer;
use bedplate_serve::Continuation;

use crate::calls::CallSettings;
use crate::model::ServedModel;
use crate::refusal::ApiError;
use crate::stops::Stops;

/// Text to be generated: for each prompt as many choices as were asked for.
pub(crate) struct Generation {
    pub(crate) model: Arc<ServedModel>,
    /// The name that the request used.
    pub(crate) name: String,
    pub(crate) adapter: Option<String>,
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Whether an answer continues the text of its prompt.
    pub(crate) continues: bool,
    /// What stands in front of the choices of each prompt, where prompts are repeated.
    pub(crate) echoes: Option<Vec<Echo>>,
    pub(crate) continuation: Continuation,
    /// Choices of a prompt that are shown, the best ones of the samples.
    pub(crate) shown: u16,
    pub(crate) stops: Stops,
    pub(crate) shows_special: bool,
    pub(crate) calls: Option<CallSettings>,
    pub(crate) logprobs: Option<LogprobsShown>,
    /// The most likely tokens that are shown beside each token of the prompt.
    pub(crate) prompt_logprobs: Option<u8>,
    pub(crate) streaming: Option<Streaming>,
    pub(crate) priority: i8,
}

/// Log-probabilities that the client wants to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogprobsShown {
    pub(crate) top: u8,
    /// Whether tokens are named by their numbers instead of their text.
    pub(crate) names_ids: bool,
}

/// A prompt that is repeated in front of its choices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Echo {
    pub(crate) text: String,
    /// Where the text of each token begins, in characters.
    pub(crate) offsets: Vec<usize>,
}

impl Echo {
    /// The text of a prompt without its marks.
    pub(crate) fn of(tokenizer: &Tokenizer, prompt: &[u32]) -> Self {
        let (mut pieces, mut text, mut characters) = (tokenizer.pieces(), String::new(), 0);
        let mut offsets = Vec::with_capacity(prompt.len());
        for token in prompt {
            offsets.push(characters);
            if !tokenizer.is_special(*token) {
                let piece = pieces.push(*token);
                characters += piece.chars().count();
                text.push_str(&piece);
            }
        }
        text.push_str(&pieces.finish());
        Self { text, offsets }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Streaming {
    pub(crate) shows_usage: bool,
    /// Usage so far in every chunk.
    pub(crate) shows_usage_always: bool,
}

impl Generation {
    /// Sets the most tokens of a sample to what was asked for, or to what fits.
    pub(crate) fn bound(
        &mut self,
        asked: Option<u32>,
        default: Option<u32>,
        param: &str,
    ) -> Result<(), ApiError> {
        let limit = self.model.about().context_limit;
        let longest = self.prompts.iter().map(Vec::len).max().unwrap_or(0);
        let longest = u32::try_from(longest).unwrap_or(u32::MAX);
        let room = limit.saturating_sub(longest);
        let wanted = asked.unwrap_or_else(|| default.unwrap_or(room).min(room.max(1)));
        if room == 0 || wanted > room {
            let message = format!(
                "this model's maximum context length is {limit} tokens, but {} tokens were requested ({longest} in the prompt, {wanted} for the answer); shorten either",
                u64::from(longest) + u64::from(wanted)
            );
            return Err(ApiError::coded(param, "context_length_exceeded", message));
        }
        self.continuation.most = wanted;
        self.continuation.least = self.continuation.least.min(wanted);
        Ok(())
    }

    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(Vec::len).sum()
    }
}
