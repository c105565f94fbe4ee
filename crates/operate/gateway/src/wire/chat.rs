//! Messages of a chat.

use serde_json::{Value, json};

use super::{Head, Whole, logprobs};
use crate::calls::FunctionCall;
use crate::choice::Finish;
use crate::generation::Generation;

/// The choice of a whole answer.
pub(super) fn message(head: &Head, generation: &Generation, whole: &Whole) -> Value {
    let delta = &whole.delta;
    let mut message = json!({ "role": "assistant", "content": delta.text, "refusal": null });
    if !delta.calls.is_empty() {
        message["tool_calls"] = calls(head, whole, 0).into();
        if delta.text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    json!({ "index": whole.index, "message": message, "logprobs": logprobs_of(generation, whole),
            "finish_reason": delta.finish.as_ref().map(Finish::name), "stop_reason": stop_reason(whole) })
}

/// The first piece of a choice.
pub(super) fn role(index: usize) -> Value {
    json!({ "index": index, "delta": { "role": "assistant", "content": "" }, "logprobs": null, "finish_reason": null })
}

/// A later piece. `calls_before` counts the calls of the choice.
pub(super) fn delta(head: &Head, generation: &Generation, whole: &Whole, calls_before: &mut usize) -> Value {
    let mut delta = json!({});
    if !whole.delta.text.is_empty() {
        delta["content"] = whole.delta.text.clone().into();
    }
    if !whole.delta.calls.is_empty() {
        delta["tool_calls"] = calls(head, whole, *calls_before).into();
        *calls_before += whole.delta.calls.len();
    }
    let mut choice = json!({ "index": whole.index, "delta": delta, "logprobs": logprobs_of(generation, whole),
                             "finish_reason": whole.delta.finish.as_ref().map(Finish::name) });
    if whole.delta.finish.is_some() {
        choice["stop_reason"] = stop_reason(whole);
    }
    choice
}

fn calls(head: &Head, whole: &Whole, before: usize) -> Vec<Value> {
    let unique = head.id.rsplit('-').next().unwrap_or_default();
    let one = |(at, call): (usize, &FunctionCall)| {
        let number = before + at;
        json!({ "index": number, "id": format!("call_{unique}_{}_{number}", whole.index), "type": "function",
                "function": { "name": call.name, "arguments": call.arguments } })
    };
    whole.delta.calls.iter().enumerate().map(one).collect()
}

fn logprobs_of(generation: &Generation, whole: &Whole) -> Value {
    match generation.logprobs {
        Some(shown) => {
            logprobs::of_chat(generation.model.tokenizer(), &whole.delta.tokens, usize::from(shown.top))
        }
        None => Value::Null,
    }
}

pub(super) fn stop_reason(whole: &Whole) -> Value {
    match &whole.delta.finish {
        Some(Finish::Stop(Some(string))) => Value::String(string.clone()),
        _ => Value::Null,
    }
}
