//! Lines of fields, with errors that name the line.

use std::borrow::Cow;

use bedplate_diag::{Source, shown};
use bedplate_document::csv::{self, CsvError};

use super::TraceError;

/// A line of a trace, counted from 1.
#[derive(Clone, Copy)]
pub(crate) struct JobLine<'a> {
    pub(crate) source: Source<'a>,
    pub(crate) number: usize,
    pub(crate) text: &'a str,
}

/// The non-empty lines of a text, without a byte order mark.
pub(crate) fn lines<'a>(source: Source<'a>) -> impl Iterator<Item = JobLine<'a>> {
    let text = source.text.strip_prefix('\u{feff}').unwrap_or(source.text);
    let lines =
        text.lines().zip(1..).map(move |(text, number)| JobLine { source, number, text: text.trim() });
    lines.filter(|line| !line.text.is_empty())
}

impl JobLine<'_> {
    pub(crate) fn bad(&self, reason: impl Into<String>) -> TraceError {
        TraceError::BadLine { reason: reason.into(), near: None, place: self.source.line(self.number) }
    }

    pub(crate) fn bad_near(&self, reason: impl Into<String>, near: Option<&str>) -> TraceError {
        let near = near.map(str::to_owned);
        TraceError::BadLine { reason: reason.into(), near, place: self.source.line(self.number) }
    }
}

/// A line with its fields in the wanted columns.
type Row<'a, const N: usize> = Result<(JobLine<'a>, [Cow<'a, str>; N]), TraceError>;

/// The wanted columns of a CSV trace, row by row.
pub(crate) fn columns<'a, const N: usize>(
    source: Source<'a>,
    wanted: [&'static str; N],
) -> Result<impl Iterator<Item = Row<'a, N>>, TraceError> {
    let line = move |number| JobLine { source, number, text: "" };
    let bad = move |error: CsvError| match error {
        CsvError::MissingColumn { column, line } => {
            TraceError::MissingColumn { column, place: source.line(line) }
        }
        other => line(other.line()).bad(other.to_string()),
    };
    let rows = csv::columns(source.text, wanted.each_ref().map(std::slice::from_ref)).map_err(bad)?;
    Ok(rows.map(move |row| row.map(|(number, fields)| (line(number), fields)).map_err(bad)))
}

/// A finite number that is not negative.
pub(crate) fn number(line: JobLine<'_>, field: &str, what: &str) -> Result<f64, TraceError> {
    let number: Option<f64> = field.parse().ok();
    number
        .filter(|number| number.is_finite() && *number >= 0.0 && *number < 1e12)
        .ok_or_else(|| line.bad(format!("the {what} `{}` is not a number of 0 or more", shown(field))))
}

/// A whole number up to a limit.
pub(crate) fn whole(line: JobLine<'_>, field: &str, what: &str, most: u32) -> Result<u32, TraceError> {
    let number = number(line, field, what)?;
    if number.fract() != 0.0 || number > f64::from(most) {
        return Err(line.bad(format!("the {what} `{}` is not a whole number up to {most}", shown(field))));
    }
    Ok(number as u32)
}
