//! Choices of a completion.

use serde_json::{Value, json};

use super::chat::stop_reason;
use super::{Whole, logprobs};
use crate::choice::Finish;
use crate::generation::Generation;

/// A choice, or a piece of one. `offset` is the characters of the choice before it.
pub(super) fn choice(generation: &Generation, whole: &Whole, offset: &mut usize) -> Value {
    let logprobs = generation.logprobs.map(|shown| {
        let tokenizer = generation.model.tokenizer();
        logprobs::of_completion(tokenizer, &whole.delta.tokens, usize::from(shown.top), offset)
    });
    json!({ "index": whole.index, "text": format!("{}{}", whole.echo, whole.delta.text), "logprobs": logprobs,
            "finish_reason": whole.delta.finish.as_ref().map(Finish::name), "stop_reason": stop_reason(whole) })
}

/// The prompt, in front of a choice of a stream.
pub(super) fn echo(whole: &Whole) -> Value {
    json!({ "index": whole.index, "text": whole.echo, "logprobs": null, "finish_reason": null })
}
