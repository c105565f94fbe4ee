//! `POST /v1/completions`

use serde_json::Value;

use crate::fields::{self, Fields};
use crate::gateway::Gateway;
use crate::generation::{Echo, Generation, LogprobsShown};
use crate::model::{ServedModel, too_long};
use crate::refusal::ApiError;
use crate::sampling;

/// Tokens of an answer where the request does not say: OpenAI's.
const DEFAULT_TOKENS: u32 = 16;

/// Reads a request for completions.
pub(crate) fn read(gateway: &Gateway, fields: &Fields<'_>) -> Result<Generation, ApiError> {
    let (model, name, adapter) = gateway.model(fields)?;
    let bounds = &gateway.options.bounds;
    if fields.get("suffix").is_some_and(|suffix| suffix != "") {
        return Err(ApiError::field(
            "suffix",
            "`suffix` is not supported: these models write at the end only",
        ));
    }
    let how = InputLimits {
        is_marked: fields.flag("add_special_tokens")?.unwrap_or(true),
        texts: bounds.prompts,
        tokens: model.about().context_limit as usize,
        kept: sampling::kept_tokens(fields, &model)?,
    };
    let prompts = inputs(&model, fields.required("prompt")?, "prompt", how)?;
    let mut continuation = sampling::continuation(fields, bounds, &model)?;
    let shown = continuation.samples;
    let best_of =
        fields.whole("best_of", 1..=i64::from(bounds.choices))?.map_or(shown, |best_of| best_of as u16);
    let streaming = sampling::streaming(fields)?;
    if best_of < shown {
        return Err(ApiError::field(
            "best_of",
            format!("`best_of` is {best_of}, less than `n`, which is {shown}"),
        ));
    }
    if best_of > shown && streaming.is_some() {
        return Err(ApiError::field(
            "best_of",
            "`best_of` above `n` cannot be streamed: which are best is known at the end",
        ));
    }
    let names_ids = fields.flag("return_tokens_as_token_ids")?.unwrap_or(false);
    let logprobs = fields.whole("logprobs", 0..=20)?;
    let logprobs = logprobs.map(|top| LogprobsShown { top: top as u8, names_ids });
    let prompt_logprobs = sampling::prompt_logprobs(fields)?;
    continuation.samples = best_of;
    continuation.grammar = sampling::grammar(fields, &model)?;
    // The best ones are chosen by their log-probabilities.
    let ranked = (best_of > shown).then_some(0);
    continuation.logprobs = logprobs.map(|shown| shown.top).or(ranked);
    let has_echo = fields.flag("echo")?.unwrap_or(false);
    let tokenizer = model.tokenizer();
    let echoes = has_echo.then(|| prompts.iter().map(|prompt| Echo::of(tokenizer, prompt)).collect());
    let of_echo = logprobs.filter(|_| has_echo).map(|shown| shown.top);
    continuation.prompt_logprobs = of_echo.max(prompt_logprobs);
    // Without any the prompt is only scored.
    let most = fields.whole("max_tokens", 0..=i64::from(u32::MAX))?;
    let mut generation = Generation {
        model,
        name,
        adapter,
        prompts,
        continues: true,
        echoes,
        continuation,
        shown,
        stops: sampling::stops(fields, bounds)?,
        shows_special: !fields.flag("skip_special_tokens")?.unwrap_or(true),
        calls: None,
        logprobs,
        prompt_logprobs,
        streaming,
        priority: sampling::priority(fields)?,
    };
    generation.bound(most.map(|most| most as u32), Some(DEFAULT_TOKENS), "prompt")?;
    Ok(generation)
}

/// How texts become tokens, and how much of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InputLimits {
    /// Whether the tokenizer's marks stand around them.
    pub(crate) is_marked: bool,
    pub(crate) texts: usize,
    /// Of each.
    pub(crate) tokens: usize,
    /// Only so many of the last tokens of each are kept.
    pub(crate) kept: Option<usize>,
}

/// A text, token numbers, or a list of either.
pub(crate) fn inputs(
    model: &ServedModel,
    value: &Value,
    path: &str,
    limits: InputLimits,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let all = match value {
        Value::Array(listed) if listed.is_empty() => {
            return Err(ApiError::field(path, format!("`{path}` is empty")));
        }
        Value::Array(listed) if listed.iter().all(Value::is_number) => {
            vec![one(model, value, path, limits)?]
        }
        Value::Array(listed) if listed.len() > limits.texts => {
            let message = format!("`{path}` has {} texts, more than {}", listed.len(), limits.texts);
            return Err(ApiError::field(path, message));
        }
        Value::Array(listed) => {
            let each = |(at, value)| one(model, value, &format!("{path}[{at}]"), limits);
            listed.iter().enumerate().map(each).collect::<Result<Vec<_>, ApiError>>()?
        }
        single => vec![one(model, single, path, limits)?],
    };
    Ok(all)
}

/// Tokens of a text of which only the last are kept.
pub(crate) const MOST_TRUNCATED: usize = 1 << 20;

/// Leaves the last tokens of a prompt.
pub(crate) fn keep_last(tokens: &mut Vec<u32>, kept: Option<usize>) {
    if let Some(kept) = kept.filter(|kept| *kept < tokens.len()) {
        tokens.drain(..tokens.len() - kept);
    }
}

fn one(model: &ServedModel, value: &Value, path: &str, limits: InputLimits) -> Result<Vec<u32>, ApiError> {
    let most = if limits.kept.is_some() { limits.tokens.max(MOST_TRUNCATED) } else { limits.tokens };
    let mut tokens = match value {
        Value::String(text) => model.encode(text, limits.is_marked, most, path)?,
        Value::Array(listed) if listed.len() > most => return Err(too_long(most, path)),
        Value::Array(listed) => sampling::tokens(listed, path)?,
        other => return Err(fields::wrong(path, "a string or a list of tokens", other)),
    };
    keep_last(&mut tokens, limits.kept);
    let vocabulary = model.about().vocabulary;
    if let Some(token) = tokens.iter().find(|token| **token >= vocabulary) {
        return Err(ApiError::field(
            path,
            format!("`{path}` has the token {token}; the model has {vocabulary}"),
        ));
    }
    if tokens.is_empty() {
        return Err(ApiError::field(path, format!("`{path}` has no token")));
    }
    Ok(tokens)
}
