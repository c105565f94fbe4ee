//! Messages of a chat and the tools it may use, as templates of models expect them.

use bedplate_data::Conversation;
use serde_json::{Map, Value, json};

use crate::fields::{self, Fields};
use crate::model::ServedModel;
use crate::refusal::ApiError;

const MOST_TOOLS: usize = 256;

/// The tokens of a chat that asks for an answer.
pub(crate) fn prompt(
    model: &ServedModel,
    fields: &Fields<'_>,
    tools: &[Value],
    most: usize,
) -> Result<Vec<u32>, ApiError> {
    let listed = fields.list("messages")?;
    let listed = listed.ok_or_else(|| ApiError::field("messages", "`messages` is missing"))?;
    if listed.is_empty() {
        return Err(ApiError::field("messages", "`messages` is empty"));
    }
    let one = |(at, value)| message(value, &format!("messages[{at}]"));
    let messages = listed.iter().enumerate().map(one).collect::<Result<Vec<Value>, ApiError>>()?;
    let continues = continues(fields)?;
    let conversation = Conversation {
        messages: &messages,
        tools: (!tools.is_empty()).then_some(tools),
        asks: fields.flag("add_generation_prompt")?.unwrap_or(!continues),
        variables: fields.object("chat_template_kwargs")?.map(|more| more.map().clone()).unwrap_or_default(),
    };
    let refused = |error: bedplate_data::DataError| {
        ApiError::field("messages", format!("the chat template refuses these messages: {error}"))
    };
    let mut text = model.template()?.render_conversation(&conversation).map_err(refused)?;
    if continues {
        open_last(&mut text, &messages)?;
    }
    model.encode(&text, false, most, "messages")
}

/// Whether the answer goes on with the last message.
pub(crate) fn continues(fields: &Fields<'_>) -> Result<bool, ApiError> {
    let continues = fields.flag("continue_final_message")?.unwrap_or(false);
    if continues && fields.flag("add_generation_prompt")? == Some(true) {
        return Err(ApiError::field(
            "continue_final_message",
            "`continue_final_message` and `add_generation_prompt` exclude each other",
        ));
    }
    Ok(continues)
}

/// Ends a conversation with the text of its last message, as transformers does.
fn open_last(text: &mut String, messages: &[Value]) -> Result<(), ApiError> {
    let last = messages.last().and_then(|message| message["content"].as_str()).unwrap_or_default();
    let refused = |why: &str| Err(ApiError::field("continue_final_message", why));
    if last.trim().is_empty() {
        return refused("`continue_final_message` needs a last message with a text");
    }
    let Some(at) = text.rfind(last.trim()) else {
        return refused("`continue_final_message`: the chat template changes the text of the last message");
    };
    // White space at the end stays where the template leaves it.
    let whole = last.trim_start();
    let kept = if text[at..].starts_with(whole) { whole.len() } else { last.trim().len() };
    text.truncate(at + kept);
    Ok(())
}

/// A message with its content as one text, and with the arguments of calls as values.
fn message(value: &Value, path: &str) -> Result<Value, ApiError> {
    let fields = Fields::of(value, path)?;
    let role = fields::text(fields.required("role")?, &fields.path("role"))?;
    let mut message: Map<String, Value> = fields.map().clone();
    // Templates know the older name.
    message.insert("role".into(), if role == "developer" { "system" } else { role }.into());
    message.insert("content".into(), content(&fields)?.into());
    if let Some(calls) = fields.list("tool_calls")? {
        let one = |(at, value)| call(value, &format!("{path}.tool_calls[{at}]"));
        let calls = calls.iter().enumerate().map(one).collect::<Result<Vec<Value>, ApiError>>()?;
        message.insert("tool_calls".into(), calls.into());
    }
    Ok(Value::Object(message))
}

/// A text, or texts in parts; a message of calls alone has none.
fn content(fields: &Fields<'_>) -> Result<String, ApiError> {
    let path = fields.path("content");
    match fields.get("content") {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let one = |(at, value)| part(value, &format!("{path}[{at}]"));
            let texts = parts.iter().enumerate().map(one).collect::<Result<Vec<&str>, ApiError>>()?;
            Ok(texts.join("\n"))
        }
        Some(other) => Err(fields::wrong(&path, "a string or a list of parts", other)),
        None if fields.get("tool_calls").is_some() => Ok(String::new()),
        None => Err(ApiError::field(&path, format!("`{path}` is missing"))),
    }
}

fn part<'a>(value: &'a Value, path: &str) -> Result<&'a str, ApiError> {
    let fields = Fields::of(value, path)?;
    match fields.text("type")? {
        Some("text" | "input_text" | "output_text") => {
            fields::text(fields.required("text")?, &fields.path("text"))
        }
        Some(other) => Err(ApiError::field(
            fields.path("type"),
            format!("`{}` is `{other}`; this model reads parts of type text only", fields.path("type")),
        )),
        None => Err(ApiError::field(fields.path("type"), format!("`{}` is missing", fields.path("type")))),
    }
}

/// Clients send arguments as a text of JSON; templates write them out as a value.
fn call(value: &Value, path: &str) -> Result<Value, ApiError> {
    let fields = Fields::of(value, path)?;
    let function = fields.object("function")?;
    let function = function.ok_or_else(|| {
        ApiError::field(fields.path("function"), format!("`{}` is missing", fields.path("function")))
    })?;
    fields::text(function.required("name")?, &function.path("name"))?;
    let arguments = match function.get("arguments") {
        Some(Value::String(text)) if text.trim().is_empty() => json!({}),
        Some(Value::String(text)) => {
            serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone()))
        }
        Some(other) => other.clone(),
        None => json!({}),
    };
    let mut call = value.clone();
    call["function"]["arguments"] = arguments;
    Ok(call)
}

/// Functions that the model may call, and whether it must.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// Definitions as the client sent them.
    pub(crate) shown: Vec<Value>,
    pub(crate) choice: ToolChoice,
    /// Names with the schemas of their parameters: those that may be called.
    pub(crate) functions: Vec<(String, Value)>,
    pub(crate) is_parallel: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    #[default]
    None,
    Auto,
    Required,
}

pub(crate) fn tools(fields: &Fields<'_>) -> Result<Tools, ApiError> {
    let shown = fields.list("tools")?.unwrap_or_default().to_vec();
    if shown.len() > MOST_TOOLS {
        return Err(ApiError::field(
            "tools",
            format!("`tools` has {} functions, more than {MOST_TOOLS}", shown.len()),
        ));
    }
    let one = |(at, value)| function(value, &format!("tools[{at}]"));
    let mut functions = shown.iter().enumerate().map(one).collect::<Result<Vec<_>, ApiError>>()?;
    let choice = choice(fields, &mut functions)?;
    let is_parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    Ok(Tools { shown, choice, functions, is_parallel })
}

fn function(value: &Value, path: &str) -> Result<(String, Value), ApiError> {
    let fields = Fields::of(value, path)?;
    let kind = fields.text("type")?.unwrap_or("function");
    if kind != "function" {
        return Err(ApiError::field(
            fields.path("type"),
            format!("`{}` must be `function` and is `{kind}`", fields.path("type")),
        ));
    }
    let function = fields.object("function")?;
    let function = function.ok_or_else(|| {
        ApiError::field(fields.path("function"), format!("`{}` is missing", fields.path("function")))
    })?;
    let name = fields::text(function.required("name")?, &function.path("name"))?;
    let parameters = function.object("parameters")?;
    let parameters =
        parameters.map_or_else(|| json!({ "type": "object" }), |fields| Value::Object(fields.map().clone()));
    Ok((name.to_owned(), parameters))
}

fn choice(fields: &Fields<'_>, functions: &mut Vec<(String, Value)>) -> Result<ToolChoice, ApiError> {
    let needs_tools = |choice| match functions.is_empty() {
        true => Err(ApiError::field("tool_choice", "`tool_choice` asks for a call, but `tools` is empty")),
        false => Ok(choice),
    };
    match fields.get("tool_choice") {
        None if functions.is_empty() => Ok(ToolChoice::None),
        None => Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "none" => Ok(ToolChoice::None),
            "auto" if functions.is_empty() => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" => needs_tools(ToolChoice::Required),
            other => Err(ApiError::field(
                "tool_choice",
                format!("`tool_choice` is `{other}`; it may be none, auto, required or a function"),
            )),
        },
        Some(named) => {
            let named = Fields::of(named, "tool_choice")?;
            let function = named.object("function")?;
            let function = function.ok_or_else(|| {
                ApiError::field("tool_choice.function", "`tool_choice.function` is missing")
            })?;
            let name = fields::text(function.required("name")?, "tool_choice.function.name")?;
            functions.retain(|(known, _)| known == name);
            functions.truncate(1);
            match functions.is_empty() {
                true => Err(ApiError::field(
                    "tool_choice.function.name",
                    format!("`tools` has no function `{name}`"),
                )),
                false => Ok(ToolChoice::Required),
            }
        }
    }
}
