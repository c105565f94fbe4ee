//! CSV traces: a header, then `TIMESTAMP,ContextTokens,GeneratedTokens`, as in Azure's LLM inference traces.

use bedplate_diag::{Source, shown};

use super::super::error::TraceError;
use super::super::planned::Planned;
use super::{LONGEST, lines, malformed, tokens};
use crate::timestamp::Timestamp;

/// Columns and their accepted names.
const TIMESTAMP: (&str, &[&str]) = ("TIMESTAMP", &["timestamp", "arrived_at", "arrival_time"]);
const PROMPT: (&str, &[&str]) =
    ("ContextTokens", &["contexttokens", "num_prefill_tokens", "prompt_tokens", "input_length"]);
const OUTPUT: (&str, &[&str]) =
    ("GeneratedTokens", &["generatedtokens", "num_decode_tokens", "output_tokens", "output_length"]);

struct Columns {
    count: usize,
    timestamp: usize,
    prompt: usize,
    output: usize,
}

pub(super) fn read(source: Source<'_>) -> Result<Vec<Planned>, TraceError> {
    let mut lines = lines(source);
    let Some((line, header)) = lines.next() else { return Ok(Vec::new()) };
    let columns =
        columns(header).map_err(|column| TraceError::MissingColumn { column, place: source.line(line) })?;
    let mut rows = Vec::new();
    for (line, text) in lines {
        let row = row(text, &columns).map_err(|reason| malformed(source, line, reason))?;
        rows.push((line, row));
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

fn columns(header: &str) -> Result<Columns, &'static str> {
    let names: Vec<String> = fields(header).map(str::to_ascii_lowercase).collect();
    let find = |(name, known): (&'static str, &[&str])| {
        names.iter().position(|each| known.contains(&each.as_str())).ok_or(name)
    };
    Ok(Columns {
        count: names.len(),
        timestamp: find(TIMESTAMP)?,
        prompt: find(PROMPT)?,
        output: find(OUTPUT)?,
    })
}

fn row(text: &str, columns: &Columns) -> Result<(Timestamp, u32, u32), String> {
    let fields: Vec<&str> = fields(text).collect();
    if fields.len() != columns.count {
        return Err(format!("it has {} fields and the header {}", fields.len(), columns.count));
    }
    let timestamp = fields[columns.timestamp];
    let timestamp =
        Timestamp::parse(timestamp).ok_or_else(|| format!("`{}` is not a time", shown(timestamp)))?;
    let prompt = tokens("the prompt", fields[columns.prompt].parse().ok())?;
    let output = tokens("the output", fields[columns.output].parse().ok())?;
    Ok((timestamp, prompt, output))
}

fn fields(line: &str) -> impl Iterator<Item = &str> {
    line.trim_start_matches('\u{feff}').split(',').map(|field| field.trim().trim_matches('"'))
}
