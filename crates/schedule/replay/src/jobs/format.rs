//! Which format a trace has, found from its content.

use bedplate_diag::Source;

use super::lines::lines;
use super::{Trace, TraceError, jsonl, openb, philly, sacct, swf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFormat {
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

impl TraceFormat {
    pub const ALL: [(&'static str, TraceFormat); 5] = [
        ("swf", TraceFormat::Swf),
        ("philly", TraceFormat::Philly),
        ("openb", TraceFormat::Openb),
        ("sacct", TraceFormat::Sacct),
        ("jsonl", TraceFormat::Jsonl),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// The format, detected from the first non-empty line.
pub fn detect(source: Source<'_>) -> Option<TraceFormat> {
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
        json if json.starts_with('{') => Some(TraceFormat::Jsonl),
        comment if comment.starts_with(';') => Some(TraceFormat::Swf),
        _ if has(&philly::COLUMNS) => Some(TraceFormat::Philly),
        _ if has(&openb::COLUMNS) => Some(TraceFormat::Openb),
        _ if is_sacct() => Some(TraceFormat::Sacct),
        _ if is_swf_row() => Some(TraceFormat::Swf),
        _ => None,
    }
}

/// Reads a trace, in the given format or the one detected.
pub fn read(source: Source<'_>, format: Option<TraceFormat>) -> Result<Trace, TraceError> {
    if lines(source).next().is_none() {
        return Err(TraceError::Empty { place: source.whole() });
    }
    let format = format.or_else(|| detect(source));
    let trace = match format.ok_or_else(|| TraceError::UnknownFormat { place: source.line(1) })? {
        TraceFormat::Swf => swf::read(source)?,
        TraceFormat::Philly => philly::read(source)?,
        TraceFormat::Openb => openb::read(source)?,
        TraceFormat::Sacct => sacct::read(source)?,
        TraceFormat::Jsonl => jsonl::read(source)?,
    };
    match trace.jobs.is_empty() {
        true => Err(TraceError::Empty { place: source.whole() }),
        false => Ok(trace.finish()),
    }
}
