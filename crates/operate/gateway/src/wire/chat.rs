//! Messages of a chat.

use serde_json::{Value, json};

use super::{Head, Whole, logprobs};
use crate::choice::{CallDelta, Finish};
use crate::generation::Generation;

/// The choice of a whole answer.
pub(super) fn message(head: &Head, generation: &Generation, whole: &Whole) -> Value {
    let delta = &whole.delta;
    let mut message = json!({ "role": "assistant", "content": delta.text, "refusal": null });
    if !delta.calls.is_empty() {
        message["tool_calls"] = calls(head, whole, &mut 0).into();
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
        delta["tool_calls"] = calls(head, whole, calls_before).into();
    }
    let mut choice = json!({ "index": whole.index, "delta": delta, "logprobs": logprobs_of(generation, whole),
                             "finish_reason": whole.delta.finish.as_ref().map(Finish::name) });
    if whole.delta.finish.is_some() {
        choice["stop_reason"] = stop_reason(whole);
    }
    choice
}

/// Calls that begin here, and more of the arguments of the one before. `before` counts those that have begun.
fn calls(head: &Head, whole: &Whole, before: &mut usize) -> Vec<Value> {
    let unique = head.id.rsplit('-').next().unwrap_or_default();
    let one = |call: &CallDelta| {
        let Some(begun) = &call.head else {
            let number = before.saturating_sub(1);
            return json!({ "index": number, "function": { "arguments": call.arguments } });
        };
        let number = *before;
        *before += 1;
        let id = begun.id.clone().unwrap_or_else(|| format!("call_{unique}_{}_{number}", whole.index));
        json!({ "index": number, "id": id, "type": "function",
                "function": { "name": begun.name, "arguments": call.arguments } })
    };
    whole.delta.calls.iter().map(one).collect()
}

fn logprobs_of(generation: &Generation, whole: &Whole) -> Value {
    match generation.logprobs {
        Some(shown) => logprobs::of_chat(generation.model.tokenizer(), &whole.delta.tokens, shown),
        None => Value::Null,
    }
}

pub(super) fn stop_reason(whole: &Whole) -> Value {
    match &whole.delta.finish {
        Some(Finish::Stop(Some(string))) => Value::String(string.clone()),
        _ => Value::Null,
    }
}
