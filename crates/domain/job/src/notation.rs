//! Durations and sizes as job files and Slurm write them, and why a text is none.

use std::str::FromStr;

use bedplate_document::slurm;
use bedplate_units::{Bytes, Seconds};

/// Why a text is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}: {reason}")]
pub struct NotationError {
    /// What was written, shortened where it is very long.
    pub text: String,
    /// What it should be, with an example.
    pub expected: &'static str,
    pub reason: String,
}

impl NotationError {
    pub(crate) fn new(text: &str, expected: &'static str, reason: impl Into<String>) -> Self {
        Self { text: Self::shown(text), expected, reason: reason.into() }
    }

    /// Errors quote what was typed, but not a megabyte of it.
    pub(crate) fn shown(text: &str) -> String {
        const LONGEST: usize = 60;
        match text.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text.to_owned(),
        }
    }
}

/// A time limit: a duration of ours (`36h`), or one of Slurm's with a colon or a dash (`1-12:00:00`).
pub(crate) struct TimeLimit(pub(crate) Seconds);

impl FromStr for TimeLimit {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        // A bare number means minutes to Slurm and nothing to us, so that it is asked for its unit.
        if text.contains([':', '-']) {
            return slurm_time(text).map(Self);
        }
        let expected = "a time limit such as `36h` or `1-12:00:00`";
        text.parse().map(Self).map_err(|error| NotationError::new(text, expected, format!("{error}")))
    }
}

/// A time as Slurm writes it, or with units as everywhere else in this program, which Slurm has no meaning for.
pub(crate) fn slurm_time(text: &str) -> Result<Seconds, NotationError> {
    let expected = "a time such as `90` (minutes), `4h`, `01:30:00` or `1-12:00:00`";
    let is_with_units =
        !text.contains([':', '-']) && text.trim_end().ends_with(|c: char| c.is_ascii_lowercase());
    if let (true, Ok(time)) = (is_with_units, text.trim().parse::<Seconds>()) {
        return Ok(Seconds::new(time.get().ceil()));
    }
    let seconds = slurm::seconds(text).map_err(|reason| NotationError::new(text, expected, reason))?;
    Ok(Seconds::new(seconds as f64))
}

/// Slurm's sizes of memory: a number and K, M, G or T, in powers of 1024; without a letter mebibytes.
pub(crate) fn slurm_size(text: &str) -> Result<Bytes, NotationError> {
    let trimmed = text.trim();
    let digits = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match trimmed[digits.len()..].to_ascii_uppercase().as_str() {
        "K" | "KB" => 1024.0,
        "" | "M" | "MB" => 1_048_576.0,
        "G" | "GB" => 1_073_741_824.0,
        "T" | "TB" => 1_099_511_627_776.0,
        _ => f64::NAN,
    };
    let is_number = (1..=12).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    match digits.parse::<f64>() {
        Ok(number) if is_number && !factor.is_nan() => Ok(Bytes::new(number * factor)),
        _ => Err(NotationError::new(text, "a size such as `64G`", "write a whole number and K, M, G or T")),
    }
}

/// A duration that reads back as the very same: in the largest unit that divides it, else in seconds.
pub(crate) fn written_duration(duration: Seconds) -> String {
    let (number, unit) = duration.exactly();
    format!("{number}{unit}")
}

/// A size that reads back as the very same.
pub(crate) fn written_size(size: Bytes) -> String {
    const UNITS: [(f64, &str); 4] =
        [(1_099_511_627_776.0, "TiB"), (1_073_741_824.0, "GiB"), (1e9, "GB"), (1_048_576.0, "MiB")];
    let divides = |unit: f64| {
        let count = size.get() / unit;
        count >= 1.0 && count.fract() == 0.0 && count * unit == size.get() && count < 1e9
    };
    match UNITS.iter().find(|(unit, _)| divides(*unit)) {
        Some((unit, symbol)) => format!("{} {symbol}", size.get() / unit),
        None => format!("{} B", size.get()),
    }
}
