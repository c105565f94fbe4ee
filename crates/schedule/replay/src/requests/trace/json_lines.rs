//! JSON lines: one object per request, in the manner of Mooncake's traces.
//!
//! `timestamp` is in milliseconds, `input_length` and `output_length` in tokens; `hash_ids` are optional, one
//! per block of prompt tokens, each standing for that block and everything before it. `block_size`, `tenant`,
//! `priority` and `samples` may be given too. `measured` is what a server that wrote the trace says it took; it is not replayed.

use bedplate_diag::{Source, shown};
use serde_json::{Map, Value};

use super::super::engine::{Picoseconds, picoseconds};
use super::super::error::TraceError;
use super::super::planned::{Planned, Prefix};
use super::{LONGEST, TOKENS_PER_HASH, lines, malformed, tokens};

const KNOWN: [&str; 9] = [
    "timestamp",
    "input_length",
    "output_length",
    "hash_ids",
    "block_size",
    "tenant",
    "priority",
    "samples",
    "measured",
];

pub(super) fn read(source: Source<'_>) -> Result<Vec<Planned>, TraceError> {
    lines(source)
        .map(|(line, text)| request(text).map_err(|reason| malformed(source, line, reason)))
        .collect()
}

fn request(text: &str) -> Result<Planned, String> {
    let value: Value = serde_json::from_str(text).map_err(not_json)?;
    let Value::Object(object) = value else { return Err("it is not a JSON object".into()) };
    if let Some(unknown) = object.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        let shown = shown(unknown);
        return Err(format!("`{shown}` is not known; keys are {}", KNOWN.join(", ")));
    }
    let prompt_tokens = tokens("input_length", whole(&object, "input_length")?)?;
    let output_tokens = tokens("output_length", whole(&object, "output_length")?)?;
    Ok(Planned {
        samples: small(&object, "samples", 1, 1, u16::MAX.into())? as u16,
        tenant: small(&object, "tenant", 0, 0, u32::MAX.into())? as u32,
        priority: small(&object, "priority", 0, i8::MIN.into(), i8::MAX.into())? as i8,
        prefix: prefix(&object, prompt_tokens)?,
        ..Planned::new(timestamp(&object)?, prompt_tokens, output_tokens)
    })
}

/// The parser counts lines from this one, so only the column is reported.
fn not_json(error: serde_json::Error) -> String {
    match error.is_eof() {
        true => "it is JSON that stops in the middle".into(),
        false => format!("it is not JSON at column {}", error.column()),
    }
}

fn timestamp(object: &Map<String, Value>) -> Result<Picoseconds, String> {
    let milliseconds = object.get("timestamp").and_then(Value::as_f64);
    let milliseconds = milliseconds.ok_or("timestamp is not a number of milliseconds")?;
    let at = picoseconds(milliseconds / 1e3);
    if milliseconds < 0.0 || at > LONGEST {
        return Err(format!("timestamp {milliseconds} is not within 100 days from 0"));
    }
    Ok(at)
}

fn prefix(object: &Map<String, Value>, prompt_tokens: u32) -> Result<Prefix, String> {
    let Some(hashes) = object.get("hash_ids") else { return Ok(Prefix::Unknown) };
    let block_tokens = small(object, "block_size", TOKENS_PER_HASH.into(), 1, 1 << 20)? as u32;
    let hashes = hashes.as_array().ok_or("hash_ids is not a list")?;
    let hashes: Option<Vec<u64>> = hashes.iter().map(Value::as_u64).collect();
    let hashes = hashes.ok_or("hash_ids has an entry that is not a hash")?;
    let most = prompt_tokens.div_ceil(block_tokens) as usize;
    if hashes.len() > most {
        return Err(format!(
            "{} hashes are more than a prompt of {prompt_tokens} tokens has blocks of {block_tokens}",
            hashes.len()
        ));
    }
    Ok(Prefix::Hashes { block_tokens, hashes })
}

fn whole(object: &Map<String, Value>, key: &str) -> Result<Option<u64>, String> {
    object.get(key).map(Value::as_u64).ok_or_else(|| format!("{key} is missing"))
}

/// An optional whole number within bounds.
fn small(object: &Map<String, Value>, key: &str, default: i64, least: i64, most: i64) -> Result<i64, String> {
    let Some(value) = object.get(key) else { return Ok(default) };
    let value = value.as_i64().filter(|value| (least..=most).contains(value));
    value.ok_or_else(|| format!("{key} is not a whole number from {least} to {most}"))
}
