//! `POST /v1/chat/completions`

use std::sync::Arc;

use bedplate_serve::Grammar;

use super::completions::{MOST_TRUNCATED, keep_last};
use super::messages::{self, ToolChoice, Tools};
use crate::calls::{CallSettings, CallStyle, schema_of_calls};
use crate::fields::Fields;
use crate::gateway::Gateway;
use crate::generation::{Generation, LogprobsShown};
use crate::guide::Language;
use crate::model::ServedModel;
use crate::refusal::ApiError;
use crate::sampling;

/// Reads a request for a chat.
pub(crate) fn read(gateway: &Gateway, fields: &Fields<'_>) -> Result<Generation, ApiError> {
    let (model, name, adapter) = gateway.model(fields)?;
    let bounds = &gateway.options.bounds;
    if fields.flag("echo")? == Some(true) {
        return Err(ApiError::field("echo", "`echo` is for /v1/completions; a chat is not repeated"));
    }
    let tools = messages::tools(fields)?;
    let mut continuation = sampling::continuation(fields, bounds, &model)?;
    continuation.grammar = grammar(&model, fields, &tools)?;
    let logprobs = logprobs(fields)?;
    continuation.logprobs = logprobs.map(|shown| shown.top);
    continuation.prompt_logprobs = sampling::prompt_logprobs(fields)?;
    let shown_tools = if tools.choice == ToolChoice::None { &[][..] } else { &tools.shown[..] };
    let kept = sampling::kept_tokens(fields, &model)?;
    let limit = model.about().context_limit as usize;
    let most = if kept.is_some() { limit.max(MOST_TRUNCATED) } else { limit };
    let mut prompt = messages::prompt(&model, fields, shown_tools, most)?;
    keep_last(&mut prompt, kept);
    let style = match tools.choice {
        ToolChoice::None => None,
        ToolChoice::Auto => Some(model.call_style()),
        ToolChoice::Required => Some(CallStyle::Forced),
    };
    let settings = |style| CallSettings {
        style,
        functions: tools.functions.clone().into(),
        is_parallel: tools.is_parallel,
    };
    let calls = style.map(settings);
    // Mistral and Llama mark calls by special tokens.
    let shows_special = calls.is_some() || !fields.flag("skip_special_tokens")?.unwrap_or(true);
    let most = fields.whole("max_completion_tokens", 1..=i64::from(u32::MAX))?;
    let most = most.or(fields.whole("max_tokens", 1..=i64::from(u32::MAX))?);
    let mut generation = Generation {
        model,
        name,
        adapter,
        prompts: vec![prompt],
        continues: messages::continues(fields)?,
        echoes: None,
        shown: continuation.samples,
        prompt_logprobs: continuation.prompt_logprobs,
        continuation,
        stops: sampling::stops(fields, bounds)?,
        shows_special,
        calls,
        logprobs,
        streaming: sampling::streaming(fields)?,
        priority: sampling::priority(fields)?,
    };
    generation.bound(most.map(|most| most as u32), None, "messages")?;
    Ok(generation)
}

fn logprobs(fields: &Fields<'_>) -> Result<Option<LogprobsShown>, ApiError> {
    let top = fields.whole("top_logprobs", 0..=20)?;
    match (fields.flag("logprobs")?.unwrap_or(false), top) {
        (false, Some(1..)) => {
            Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs` to be true"))
        }
        (false, _) => Ok(None),
        (true, top) => {
            let names_ids = fields.flag("return_tokens_as_token_ids")?.unwrap_or(false);
            Ok(Some(LogprobsShown { top: top.unwrap_or(0) as u8, names_ids }))
        }
    }
}

/// A call that must be made is enforced; otherwise the format that was asked for is.
fn grammar(
    model: &ServedModel,
    fields: &Fields<'_>,
    tools: &Tools,
) -> Result<Option<Arc<dyn Grammar>>, ApiError> {
    if tools.choice != ToolChoice::Required {
        return sampling::grammar(fields, model);
    }
    if let Some((_, param)) = sampling::language(fields)? {
        return Err(ApiError::field(
            &param,
            format!("`{param}` and a `tool_choice` that asks for a call exclude each other"),
        ));
    }
    let is_named = fields.get("tool_choice").is_some_and(serde_json::Value::is_object);
    let most = (is_named || !tools.is_parallel).then_some(1);
    let schema = schema_of_calls(&tools.functions, most);
    model.compile(Language::Calls(schema), "tools", fields.client()).map(Some)
}
