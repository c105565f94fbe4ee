//! The object of a response and its items.

use serde_json::{Value, json};

use super::{Head, Usage};
use crate::calls::CallHead;
use crate::choice::Finish;
use crate::generation::Generation;

/// Where a response has got to.
pub(crate) struct ResponseProgress<'a> {
    pub(crate) items: &'a [Value],
    /// None while it runs.
    pub(crate) finish: Option<&'a Finish>,
    pub(crate) usage: Option<Usage>,
}

pub(crate) fn object(head: &Head, generation: &Generation, progress: &ResponseProgress<'_>) -> Value {
    let is_cut = progress.finish == Some(&Finish::Length);
    let status = match progress.finish {
        None => "in_progress",
        Some(_) if is_cut => "incomplete",
        Some(_) => "completed",
    };
    let sampling = &generation.continuation.sampling;
    json!({
        "id": head.id, "object": "response", "created_at": head.created, "status": status, "error": null,
        "incomplete_details": is_cut.then(|| json!({ "reason": "max_output_tokens" })),
        "instructions": null, "metadata": {}, "model": head.model, "output": progress.items, "parallel_tool_calls": true,
        "temperature": sampling.temperature, "top_p": sampling.top_p, "tool_choice": "auto", "tools": [],
        "max_output_tokens": generation.continuation.most, "previous_response_id": null, "store": false,
        "text": { "format": { "type": "text" } }, "usage": progress.usage.map(usage),
    })
}

fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt, "input_tokens_details": { "cached_tokens": usage.cached },
        "output_tokens": usage.completion, "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": usage.prompt + usage.completion,
    })
}

fn unique(head: &Head) -> &str {
    head.id.split_once('_').map_or(head.id.as_str(), |(_, unique)| unique)
}

/// A part of a message.
pub(crate) fn part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

/// The item of a text; one that has just begun has no content.
pub(crate) fn message(head: &Head, index: usize, text: Option<&str>) -> Value {
    let content: Vec<Value> = text.map(part).into_iter().collect();
    let status = if text.is_some() { "completed" } else { "in_progress" };
    json!({ "type": "message", "id": format!("msg_{}_{index}", unique(head)), "status": status, "role": "assistant", "content": content })
}

/// The item of a call; one that has just begun has no arguments.
pub(crate) fn call(head: &Head, index: usize, call: &CallHead, arguments: Option<&str>) -> Value {
    let unique = unique(head);
    let id = call.id.clone().unwrap_or_else(|| format!("call_{unique}_{index}"));
    let status = if arguments.is_some() { "completed" } else { "in_progress" };
    json!({ "type": "function_call", "id": format!("fc_{unique}_{index}"), "call_id": id, "name": call.name,
            "arguments": arguments.unwrap_or_default(), "status": status })
}
