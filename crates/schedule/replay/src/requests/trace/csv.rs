//! CSV traces: a header, then `TIMESTAMP,ContextTokens,GeneratedTokens`, as in Azure's LLM inference traces.

use std::borrow::Cow;

use bedplate_diag::{Source, shown};
use bedplate_document::csv::{self, CsvError};

use super::super::error::TraceError;
use super::super::planned::Planned;
use super::{LONGEST, malformed, tokens};
use crate::timestamp::Timestamp;

/// Columns by the names that they have in the traces of others.
const TIMESTAMP: &[&str] = &["TIMESTAMP", "arrived_at", "arrival_time"];
const PROMPT: &[&str] = &["ContextTokens", "num_prefill_tokens", "prompt_tokens", "input_length"];
const OUTPUT: &[&str] = &["GeneratedTokens", "num_decode_tokens", "output_tokens", "output_length"];

pub(super) fn read(source: Source<'_>) -> Result<Vec<Planned>, TraceError> {
    let bad = |error: CsvError| match error {
        CsvError::MissingColumn { column, line } => {
            TraceError::MissingColumn { column, place: source.line(line) }
        }
        other => malformed(source, other.line(), other.to_string()),
    };
    let mut rows = Vec::new();
    for row in csv::columns(source.text, [TIMESTAMP, PROMPT, OUTPUT]).map_err(bad)? {
        let (line, fields) = row.map_err(bad)?;
        rows.push((line, request(&fields).map_err(|reason| malformed(source, line, reason))?));
    }
    let Some(began) = rows.iter().map(|(_, (timestamp, ..))| *timestamp).min() else { return Ok(Vec::new()) };
    let planned = rows.into_iter().map(|(line, (timestamp, prompt, output))| {
        let at = timestamp.since(began).filter(|at| *at <= LONGEST);
        let at =
            at.ok_or_else(|| malformed(source, line, "it is more than 100 days after the first".into()))?;
        Ok(Planned::new(at, prompt, output))
    });
    planned.collect()
}

fn request([timestamp, prompt, output]: &[Cow<'_, str>; 3]) -> Result<(Timestamp, u32, u32), String> {
    let timestamp =
        Timestamp::parse(timestamp).ok_or_else(|| format!("`{}` is not a time", shown(timestamp)))?;
    let prompt = tokens("the prompt", prompt.parse().ok())?;
    let output = tokens("the output", output.parse().ok())?;
    Ok((timestamp, prompt, output))
}
