//! Choices of a completion.

use serde_json::{Value, json};

use super::chat::stop_reason;
use super::{Whole, logprobs};
use crate::choice::Finish;
use crate::generation::Generation;

/// A choice, or a piece of one.
pub(super) fn choice(generation: &Generation, whole: &Whole) -> Value {
    let logprobs = generation.logprobs.map(|shown| {
        let tokens = whole.echo.tokens.iter().chain(&whole.delta.tokens);
        logprobs::of_completion(generation.model.tokenizer(), tokens, shown)
    });
    let text = format!("{}{}", whole.echo.text, whole.delta.text);
    json!({ "index": whole.index, "text": text, "logprobs": logprobs,
            "finish_reason": whole.delta.finish.as_ref().map(Finish::name), "stop_reason": stop_reason(whole) })
}
