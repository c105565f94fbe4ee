//! Which format a trace has, found from its content.

use bedplate_diag::Source;

use super::lines::lines;
use super::{Trace, TraceError, jsonl, openb, philly, sacct, swf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Standard Workload Format.
    Swf,
    /// The CSV of the Philly trace.
    Philly,
    /// The pod list of Alibaba's GPU trace of 2023.
    Openb,
    /// The history of a Slurm.
    Sacct,
    /// Our own: a JSON object per line.
    Jsonl,
}

impl Format {
    pub const ALL: [(&'static str, Format); 5] = [
        ("swf", Format::Swf),
        ("philly", Format::Philly),
        ("openb", Format::Openb),
        ("sacct", Format::Sacct),
        ("jsonl", Format::Jsonl),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// The format, detected from the first non-empty line.
pub fn detect(source: Source<'_>) -> Option<Format> {
    let first = lines(source).next()?.text;
    let has = |columns: &[&str]| {
        let titles: Vec<&str> = first.split(',').map(str::trim).collect();
        columns.iter().all(|column| titles.contains(column))
    };
    let is_sacct = || {
        let titles: Vec<&str> = first.split('|').map(str::trim).collect();
        sacct::COLUMNS.iter().all(|column| titles.contains(column))
    };
    let is_swf_row = || {
        let fields: Vec<&str> = first.split_whitespace().collect();
        fields.len() == 18 && fields.iter().all(|field| field.parse::<f64>().is_ok())
    };
    match first {
        json if json.starts_with('{') => Some(Format::Jsonl),
        comment if comment.starts_with(';') => Some(Format::Swf),
        _ if has(&philly::COLUMNS) => Some(Format::Philly),
        _ if has(&openb::COLUMNS) => Some(Format::Openb),
        _ if is_sacct() => Some(Format::Sacct),
        _ if is_swf_row() => Some(Format::Swf),
        _ => None,
    }
}

/// Reads a trace, in the given format or the one detected.
pub fn read(source: Source<'_>, format: Option<Format>) -> Result<Trace, TraceError> {
    if lines(source).next().is_none() {
        return Err(TraceError::Empty { place: source.whole() });
    }
    let format = format.or_else(|| detect(source));
    let trace = match format.ok_or_else(|| TraceError::UnknownFormat { place: source.line(1) })? {
        Format::Swf => swf::read(source)?,
        Format::Philly => philly::read(source)?,
        Format::Openb => openb::read(source)?,
        Format::Sacct => sacct::read(source)?,
        Format::Jsonl => jsonl::read(source)?,
    };
    match trace.jobs.is_empty() {
        true => Err(TraceError::Empty { place: source.whole() }),
        false => Ok(trace.finish()),
    }
}
