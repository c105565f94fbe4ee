//! Settings that all generating requests share, under OpenAI's and vLLM's names.

use std::sync::Arc;

use bedplate_serve::{Continuation, Grammar, Sampling};
use serde_json::Value;

use crate::fields::{self, Fields};
use crate::generation::Streaming;
use crate::guide::Language;
use crate::model::ServedModel;
use crate::options::Bounds;
use crate::refusal::ApiError;
use crate::stops::Stops;

const LONGEST_STOP: usize = 1024;
const MOST_BIASES: usize = 1024;

/// Reads what the engine samples by; `most` is set later, when the prompt is known.
pub(crate) fn continuation(
    fields: &Fields<'_>,
    bounds: &Bounds,
    model: &ServedModel,
) -> Result<Continuation, ApiError> {
    refuse_ignored(fields)?;
    let samples = fields.whole("n", 1..=i64::from(bounds.choices))?.unwrap_or(1);
    Ok(Continuation {
        most: 1,
        least: fields.whole("min_tokens", 0..=i64::from(u32::MAX))?.unwrap_or(0) as u32,
        samples: samples as u16,
        sampling: sampling(fields, model)?,
        stop_tokens: stop_tokens(fields)?,
        ignores_end: fields.flag("ignore_eos")?.unwrap_or(false),
        logprobs: None,
        prompt_logprobs: None,
        allowed: allowed(fields, model)?,
        bad_words: bad_words(fields, model)?,
        grammar: None,
    })
}

/// Fields of OpenAI and vLLM that change an answer and that this server does not know.
const CHANGING: [&str; 6] =
    ["documents", "function_call", "functions", "use_beam_search", "length_penalty", "prompt_embeds"];

/// What is asked for is done or refused.
pub(crate) fn refuse_ignored(fields: &Fields<'_>) -> Result<(), ApiError> {
    let is_asked = |value: &Value| match value {
        Value::Bool(is_asked) => *is_asked,
        Value::Array(listed) => !listed.is_empty(),
        Value::Object(keys) => !keys.is_empty(),
        _ => true,
    };
    let changes = |field: &&str| {
        let value = fields.get(field);
        value.is_some_and(|value| {
            is_asked(value) && !(*field == "length_penalty" && value.as_f64() == Some(1.0))
        })
    };
    match CHANGING.into_iter().find(changes) {
        Some(field) => {
            Err(ApiError::field(field, format!("`{field}` is not supported, and would change the answer")))
        }
        None => Ok(()),
    }
}

fn sampling(fields: &Fields<'_>, model: &ServedModel) -> Result<Sampling, ApiError> {
    let defaults = model.sampling();
    let number = |key, range, default: f32| {
        Ok::<f32, ApiError>(fields.number(key, range)?.map_or(default, |read| read as f32))
    };
    Ok(Sampling {
        temperature: number("temperature", 0.0..=2.0, defaults.temperature)?,
        // vLLM spells "all of them" as -1.
        top_k: fields
            .whole("top_k", -1..=i64::from(u32::MAX))?
            .map_or(defaults.top_k, |top_k| top_k.max(0) as u32),
        top_p: number("top_p", 0.0..=1.0, defaults.top_p)?.max(f32::MIN_POSITIVE),
        min_p: number("min_p", 0.0..=1.0, defaults.min_p)?,
        repetition_penalty: number("repetition_penalty", 1e-3..=100.0, defaults.repetition_penalty)?,
        presence_penalty: number("presence_penalty", -2.0..=2.0, defaults.presence_penalty)?,
        frequency_penalty: number("frequency_penalty", -2.0..=2.0, defaults.frequency_penalty)?,
        bias: bias(fields, model.about().vocabulary)?,
        seed: fields.whole("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64),
    })
}

fn bias(fields: &Fields<'_>, vocabulary: u32) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(biases) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    if biases.map().len() > MOST_BIASES {
        return Err(ApiError::field(
            "logit_bias",
            format!("`logit_bias` has more than {MOST_BIASES} tokens"),
        ));
    }
    let one = |(token, value): (&String, &Value)| {
        let path = biases.path(token);
        let not_a_token =
            || ApiError::field(&path, format!("`{path}` must have a token's number as its name"));
        let token: u32 = token.parse().map_err(|_| not_a_token())?;
        if token >= vocabulary {
            let message = format!("`{path}`: the model's tokens are numbered below {vocabulary}");
            return Err(ApiError::field(&path, message));
        }
        Ok((token, fields::number(value, &path, &(-100.0..=100.0))? as f32))
    };
    biases.map().iter().map(one).collect()
}

/// The mask of the only tokens that may be sampled.
fn allowed(fields: &Fields<'_>, model: &ServedModel) -> Result<Option<Arc<[u32]>>, ApiError> {
    let Some(listed) = fields.list("allowed_token_ids")? else { return Ok(None) };
    let vocabulary = model.about().vocabulary;
    let mut mask = vec![0; vocabulary.div_ceil(32) as usize];
    for (at, token) in tokens(listed, "allowed_token_ids")?.into_iter().enumerate() {
        if token >= vocabulary {
            let path = format!("allowed_token_ids[{at}]");
            let message = format!("`{path}` is {token}: the model's tokens are numbered below {vocabulary}");
            return Err(ApiError::field(path, message));
        }
        mask[token as usize / 32] |= 1 << (token % 32);
    }
    if listed.is_empty() {
        return Err(ApiError::field(
            "allowed_token_ids",
            "`allowed_token_ids` is empty: nothing could be sampled",
        ));
    }
    Ok(Some(mask.into()))
}

const MOST_BAD_WORDS: usize = 256;

/// The tokens of words that no answer has: as they are, and where that is another token behind a space.
fn bad_words(fields: &Fields<'_>, model: &ServedModel) -> Result<Vec<Vec<u32>>, ApiError> {
    let listed = fields.list("bad_words")?.unwrap_or_default();
    if listed.len() > MOST_BAD_WORDS {
        let message = format!("`bad_words` has {} words, more than {MOST_BAD_WORDS}", listed.len());
        return Err(ApiError::field("bad_words", message));
    }
    let mut runs: Vec<Vec<u32>> = Vec::new();
    for (at, word) in listed.iter().enumerate() {
        let path = format!("bad_words[{at}]");
        let word = fields::text(word, &path)?;
        if word.trim().is_empty() || word.len() > LONGEST_STOP {
            let message =
                format!("`{path}` must have 1 to {LONGEST_STOP} bytes that are not all white space");
            return Err(ApiError::field(path, message));
        }
        let encode = |text: &str| model.encode(text, false, LONGEST_STOP, &path);
        let (plain, spaced) = (encode(word)?, encode(&format!(" {}", word.trim_start()))?);
        let is_one_word = spaced.len() == plain.len() && spaced.first() != plain.first();
        runs.extend([plain].into_iter().chain(is_one_word.then_some(spaced)).filter(|run| !run.is_empty()));
    }
    Ok(runs)
}

/// How many of the last tokens of a prompt are kept, where not all are.
pub(crate) fn kept_tokens(fields: &Fields<'_>, model: &ServedModel) -> Result<Option<usize>, ApiError> {
    let limit = i64::from(model.about().context_limit);
    let kept = fields.whole("truncate_prompt_tokens", -1..=i64::from(u32::MAX))?;
    match kept {
        Some(0) => {
            Err(ApiError::field("truncate_prompt_tokens", "`truncate_prompt_tokens` is 0: no prompt is left"))
        }
        // vLLM's word for as many as the model takes, of which one place is for the answer.
        Some(-1) => Ok(Some((limit - 1).max(1) as usize)),
        Some(kept) if kept > limit => {
            let message = format!("`truncate_prompt_tokens` is {kept}, and the model takes {limit} tokens");
            Err(ApiError::field("truncate_prompt_tokens", message))
        }
        kept => Ok(kept.map(|kept| kept as usize)),
    }
}

fn stop_tokens(fields: &Fields<'_>) -> Result<Vec<u32>, ApiError> {
    let listed = fields.list("stop_token_ids")?.unwrap_or_default();
    if listed.len() > 256 {
        return Err(ApiError::field("stop_token_ids", "`stop_token_ids` has more than 256 tokens"));
    }
    tokens(listed, "stop_token_ids")
}

/// Token numbers.
pub(crate) fn tokens(listed: &[Value], path: &str) -> Result<Vec<u32>, ApiError> {
    let one = |(at, value): (usize, &Value)| {
        let read = value.as_u64().and_then(|token| u32::try_from(token).ok());
        read.ok_or_else(|| fields::wrong(&format!("{path}[{at}]"), "the number of a token", value))
    };
    listed.iter().enumerate().map(one).collect()
}

pub(crate) fn stops(fields: &Fields<'_>, bounds: &Bounds) -> Result<Stops, ApiError> {
    let strings = match fields.get("stop") {
        None => Vec::new(),
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(listed)) => {
            let one = |(at, value)| fields::text(value, &format!("stop[{at}]")).map(str::to_owned);
            listed.iter().enumerate().map(one).collect::<Result<Vec<String>, ApiError>>()?
        }
        Some(other) => return Err(fields::wrong("stop", "a string or a list of strings", other)),
    };
    if strings.len() > bounds.stops {
        return Err(ApiError::field(
            "stop",
            format!("`stop` has {} strings, more than {}", strings.len(), bounds.stops),
        ));
    }
    if let Some(at) = strings.iter().position(|string| string.is_empty() || string.len() > LONGEST_STOP) {
        return Err(ApiError::field(
            format!("stop[{at}]"),
            format!("stop strings have 1 to {LONGEST_STOP} bytes"),
        ));
    }
    Ok(Stops { strings, are_shown: fields.flag("include_stop_str_in_output")?.unwrap_or(false) })
}

pub(crate) fn streaming(fields: &Fields<'_>) -> Result<Option<Streaming>, ApiError> {
    let options = fields.object("stream_options")?;
    let flag = |key| options.as_ref().map_or(Ok(None), |options| options.flag(key));
    let (usage, always) = (flag("include_usage")?, flag("continuous_usage_stats")?);
    if !fields.flag("stream")?.unwrap_or(false) {
        return match options {
            Some(_) => {
                Err(ApiError::field("stream_options", "`stream_options` is for requests with `stream` set"))
            }
            None => Ok(None),
        };
    }
    let always = always.unwrap_or(false);
    Ok(Some(Streaming { shows_usage: usage.unwrap_or(false), shows_usage_always: always }))
}

/// How many most likely tokens are shown beside each token of the prompt.
pub(crate) fn prompt_logprobs(fields: &Fields<'_>) -> Result<Option<u8>, ApiError> {
    let top = fields.whole("prompt_logprobs", 0..=20)?.map(|top| top as u8);
    match top {
        Some(_) if fields.flag("stream")? == Some(true) => Err(ApiError::field(
            "prompt_logprobs",
            "`prompt_logprobs` cannot be streamed; ask without `stream`, or for `echo` with `logprobs`",
        )),
        top => Ok(top),
    }
}

pub(crate) fn priority(fields: &Fields<'_>) -> Result<i8, ApiError> {
    Ok(fields.whole("priority", i64::from(i8::MIN)..=i64::from(i8::MAX))?.unwrap_or(0) as i8)
}

/// The language that an answer must be in, and the field that said so. A request has at most one.
pub(crate) fn language(fields: &Fields<'_>) -> Result<Option<(Language, String)>, ApiError> {
    let mut found = Vec::new();
    found.extend(response_format(fields)?);
    found.extend(guided(fields, "guided_")?);
    if let Some(outputs) = fields.object("structured_outputs")? {
        found.extend(guided(&outputs, "")?);
    }
    if let [(_, first), (_, second), ..] = &found[..] {
        return Err(ApiError::field(second, format!("`{second}` and `{first}` exclude each other")));
    }
    Ok(found.pop())
}

fn response_format(fields: &Fields<'_>) -> Result<Option<(Language, String)>, ApiError> {
    let Some(format) = fields.object("response_format")? else { return Ok(None) };
    let path = "response_format".to_owned();
    match format.text("type")? {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some((Language::any_object(), path))),
        Some("json_schema") => {
            let wrapped = format.object("json_schema")?;
            let wrapped = wrapped.ok_or_else(|| {
                ApiError::field("response_format.json_schema", "`response_format.json_schema` is missing")
            })?;
            let schema = wrapped.required("schema")?.clone();
            Ok(Some((Language::Schema(schema), wrapped.path("schema"))))
        }
        other => {
            let found = other.unwrap_or("missing");
            Err(ApiError::field(
                "response_format.type",
                format!("`response_format.type` is `{found}`; it may be text, json_object or json_schema"),
            ))
        }
    }
}

/// vLLM's fields: `guided_json` and so on, or the same names without the prefix.
fn guided(fields: &Fields<'_>, prefix: &str) -> Result<Vec<(Language, String)>, ApiError> {
    let mut found = Vec::new();
    let key = |name: &str| format!("{prefix}{name}");
    if let Some(schema) = fields.get(&key("json")) {
        let path = fields.path(&key("json"));
        // A schema may come as a text.
        let schema = match schema.as_str() {
            Some(text) => serde_json::from_str(text).map_err(|error| {
                ApiError::field(&path, format!("`{path}` is a string that is not JSON: {error}"))
            })?,
            None => schema.clone(),
        };
        found.push((Language::Schema(schema), path));
    }
    if let Some(text) = fields.text(&key("regex"))? {
        found.push((Language::Regex(text.to_owned()), fields.path(&key("regex"))));
    }
    if let Some(text) = fields.text(&key("grammar"))? {
        found.push((Language::Lark(text.to_owned()), fields.path(&key("grammar"))));
    }
    if let Some(listed) = fields.list(&key("choice"))? {
        let path = fields.path(&key("choice"));
        let one = |(at, value)| fields::text(value, &format!("{path}[{at}]")).map(str::to_owned);
        found.push((Language::Choice(listed.iter().enumerate().map(one).collect::<Result<_, _>>()?), path));
    }
    if fields.flag(&key("json_object"))? == Some(true) {
        found.push((Language::any_object(), fields.path(&key("json_object"))));
    }
    Ok(found)
}

/// The grammar of the request's language, if it has one.
pub(crate) fn grammar(
    fields: &Fields<'_>,
    model: &ServedModel,
) -> Result<Option<Arc<dyn Grammar>>, ApiError> {
    language(fields)?.map(|(language, param)| model.compile(language, &param, fields.client())).transpose()
}
