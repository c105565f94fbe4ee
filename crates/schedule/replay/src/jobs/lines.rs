//! Lines of fields, with errors that name the line.

use bedplate_diag::{Source, shown};

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

/// Columns of a CSV trace by the names in its header.
pub(crate) struct Header<const N: usize> {
    places: [usize; N],
    columns: usize,
}

impl<const N: usize> Header<N> {
    pub(crate) fn read(line: JobLine<'_>, wanted: [&'static str; N]) -> Result<Self, TraceError> {
        let titles: Vec<&str> = line.text.split(',').map(str::trim).collect();
        let mut places = [0; N];
        for (place, column) in places.iter_mut().zip(wanted) {
            *place = titles
                .iter()
                .position(|title| *title == column)
                .ok_or_else(|| TraceError::MissingColumn { column, place: line.source.line(line.number) })?;
        }
        Ok(Self { places, columns: titles.len() })
    }

    /// The wanted fields of a row.
    pub(crate) fn fields<'a>(&self, line: JobLine<'a>) -> Result<[&'a str; N], TraceError> {
        let fields: Vec<&str> = line.text.split(',').map(str::trim).collect();
        if fields.len() != self.columns {
            let (found, expected) = (fields.len(), self.columns);
            return Err(line.bad(format!("it has {found} fields and the header {expected}")));
        }
        Ok(self.places.map(|place| fields[place]))
    }
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
