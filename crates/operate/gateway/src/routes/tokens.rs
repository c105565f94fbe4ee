//! `POST /tokenize` and `POST /detokenize`, as vLLM has them.

use bedplate_data::ChatTemplate;
use bedplate_http::{Answer, StatusCode, json};
use serde_json::json;

use super::completions::{self, InputLimits};
use super::messages;
use crate::fields::Fields;
use crate::gateway::Gateway;
use crate::refusal::ApiError;
use crate::sampling;

/// Tokens of a text that are told, whatever the model takes.
const MOST_COUNTED: usize = 1 << 20;

/// The tokens of a text or of a chat.
pub(crate) fn tokenize(gateway: &Gateway, fields: &Fields<'_>) -> Result<Answer, ApiError> {
    let (model, ..) = gateway.model_or_only(fields)?;
    let most = MOST_COUNTED.max(model.about().context_limit as usize);
    let is_marked = fields.flag("add_special_tokens")?;
    let tokens = if fields.get("messages").is_some() {
        messages::prompt(&model, fields, &messages::tools(fields)?.shown, most)?
    } else {
        let prompt = fields.required("prompt")?;
        let is_text = prompt.is_string();
        if !is_text {
            return Err(crate::fields::wrong("prompt", "a string", prompt));
        }
        let limits = InputLimits { is_marked: is_marked.unwrap_or(true), texts: 1, tokens: most, kept: None };
        completions::inputs(&model, prompt, "prompt", limits)?.concat()
    };
    let spelled = fields.flag("return_token_strs")?.unwrap_or(false).then(|| {
        tokens
            .iter()
            .map(|token| model.tokenizer().spelled(*token).unwrap_or_default())
            .collect::<Vec<String>>()
    });
    let limit = model.about().context_limit;
    let body =
        json!({ "count": tokens.len(), "max_model_len": limit, "tokens": tokens, "token_strs": spelled });
    Ok(json(StatusCode::OK, &body))
}

/// What evaluation harnesses ask about the tokenizer of the first model, under the names of its configuration.
pub(crate) fn info(gateway: &Gateway) -> Result<Answer, ApiError> {
    let model = gateway.models().next().ok_or(ApiError::NoReplica)?;
    let tokenizer = model.tokenizer();
    let spelled = |token: Option<u32>| token.and_then(|token| tokenizer.spelled(token));
    let body = json!({
        "bos_token": spelled(tokenizer.begin()), "eos_token": spelled(tokenizer.end()), "pad_token": null,
        "chat_template": ChatTemplate::source_of(tokenizer), "model_max_length": model.about().context_limit,
    });
    Ok(json(StatusCode::OK, &body))
}

/// The text of tokens.
pub(crate) fn detokenize(gateway: &Gateway, fields: &Fields<'_>) -> Result<Answer, ApiError> {
    let (model, ..) = gateway.model_or_only(fields)?;
    fields.required("tokens")?;
    let listed = fields.list("tokens")?.unwrap_or_default();
    if listed.len() > MOST_COUNTED {
        let message = format!("`tokens` has {} tokens, more than {MOST_COUNTED}", listed.len());
        return Err(ApiError::field("tokens", message));
    }
    let tokens = sampling::tokens(listed, "tokens")?;
    let text =
        model.tokenizer().decode(&tokens).map_err(|error| ApiError::field("tokens", error.to_string()))?;
    Ok(json(StatusCode::OK, &json!({ "prompt": text })))
}
