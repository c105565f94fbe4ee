//! `POST /v1/responses`: read as the chat that it stands for. Nothing is stored.

use serde_json::{Map, Value, json};

use super::chat;
use crate::fields::{self, Fields};
use crate::gateway::Gateway;
use crate::generation::Generation;
use crate::refusal::ApiError;
use crate::sampling;

/// Fields that mean the same in both.
const SAME: [&str; 14] = [
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "parallel_tool_calls",
    "logit_bias",
    "ignore_eos",
    "min_tokens",
    "chat_template_kwargs",
];

pub(crate) fn read(gateway: &Gateway, fields: &Fields<'_>) -> Result<Generation, ApiError> {
    for stored in ["previous_response_id", "conversation", "prompt"] {
        if fields.get(stored).is_some() {
            return Err(ApiError::field(
                stored,
                format!("`{stored}` is not supported: this server stores nothing; send all of `input`"),
            ));
        }
    }
    if fields.flag("background")? == Some(true) {
        return Err(ApiError::field(
            "background",
            "`background` is not supported: this server stores nothing",
        ));
    }
    sampling::refuse_ignored(fields)?;
    let chat = Value::Object(to_chat(fields)?);
    chat::read(gateway, &Fields::of_body(&chat, fields.client())?).map_err(renamed)
}

fn to_chat(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut chat = Map::new();
    for key in SAME {
        chat.extend(fields.get(key).map(|value| (key.to_owned(), value.clone())));
    }
    chat.insert("messages".into(), messages(fields)?.into());
    if let Some(most) = fields.get("max_output_tokens") {
        chat.insert("max_completion_tokens".into(), most.clone());
    }
    if let Some(tools) = fields.list("tools")? {
        chat.insert("tools".into(), tools.iter().map(tool).collect());
    }
    if let Some(choice) = fields.get("tool_choice") {
        let named =
            choice.get("name").map(|name| json!({ "type": "function", "function": { "name": name } }));
        chat.insert("tool_choice".into(), named.unwrap_or_else(|| choice.clone()));
    }
    if let Some(format) = fields.object("text")?.map(|text| text.object("format")).transpose()?.flatten() {
        let kind = format.get("type").cloned().unwrap_or_default();
        let schema = json!({ "schema": format.get("schema"), "name": format.get("name") });
        chat.insert("response_format".into(), json!({ "type": kind, "json_schema": schema }));
    }
    if fields.flag("stream")?.unwrap_or(false) {
        chat.insert("stream".into(), true.into());
    }
    Ok(chat)
}

/// Functions have one level less here.
fn tool(tool: &Value) -> Value {
    let mut function = tool.as_object().cloned().unwrap_or_default();
    let kind = function.remove("type").unwrap_or_default();
    json!({ "type": kind, "function": function })
}

fn messages(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::new();
    if let Some(instructions) = fields.text("instructions")? {
        messages.push(json!({ "role": "system", "content": instructions }));
    }
    match fields.required("input")? {
        Value::String(text) => messages.push(json!({ "role": "user", "content": text })),
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                messages.push(message(item, &format!("input[{at}]"))?);
            }
        }
        other => return Err(fields::wrong("input", "a string or a list of items", other)),
    }
    Ok(messages)
}

/// A message, a call that was made, or what came of it.
fn message(item: &Value, path: &str) -> Result<Value, ApiError> {
    let fields = Fields::of(item, path)?;
    let kind = fields.text("type")?.unwrap_or("message");
    match kind {
        "message" => Ok(item.clone()),
        "function_call" => {
            let call = json!({ "id": fields.required("call_id")?, "type": "function",
                               "function": { "name": fields.required("name")?, "arguments": fields.get("arguments") } });
            Ok(json!({ "role": "assistant", "content": "", "tool_calls": [call] }))
        }
        "function_call_output" => Ok(
            json!({ "role": "tool", "tool_call_id": fields.required("call_id")?, "content": fields.required("output")? }),
        ),
        other => Err(ApiError::field(
            fields.path("type"),
            format!(
                "`{path}.type` is `{other}`; items may be messages, function_call and function_call_output"
            ),
        )),
    }
}

/// Fields by the names that they have in this API.
fn renamed(error: ApiError) -> ApiError {
    let ApiError::Invalid { message, param: Some(param), code } = error else { return error };
    let names = [
        ("response_format.json_schema", "text.format"),
        ("response_format", "text.format"),
        ("messages", "input"),
        ("max_completion_tokens", "max_output_tokens"),
    ];
    let Some((chat, here)) = names.into_iter().find(|(chat, _)| param.starts_with(chat)) else {
        return ApiError::Invalid { message, param: Some(param), code };
    };
    ApiError::Invalid {
        message: message.replace(chat, here),
        param: Some(param.replacen(chat, here, 1)),
        code,
    }
}
