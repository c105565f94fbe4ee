//! When a job may start at the earliest.

use std::fmt;
use std::str::FromStr;

use bedplate_units::{Seconds, UtcTime, WrittenTime};

use crate::NotationError;
use crate::notation::written_duration;

/// The last second of the year 9999.
pub(crate) const LATEST: u64 = 253_402_300_799;

/// Not before this. The crate knows no clock, so the caller resolves both kinds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Begin {
    /// So long after submission: `2h`.
    After(Seconds),
    /// At a time of the calendar, in seconds since 1970 UTC: `2026-11-16T02:00:00Z`.
    At { unix_seconds: u64 },
}

impl Begin {
    /// The time in seconds since 1970, for a job submitted at `submitted` of the same clock.
    pub fn unix_seconds(&self, submitted: f64) -> f64 {
        match self {
            Begin::After(wait) => submitted + wait.get(),
            Begin::At { unix_seconds } => *unix_seconds as f64,
        }
    }

    /// A date with or without a time of day; without a zone it is read as UTC. `None` where it is no date.
    pub(crate) fn from_calendar(text: &str) -> Option<Calendar> {
        let time = WrittenTime::read(text).filter(|time| time.picoseconds == 0)?;
        let unix_seconds = u64::try_from(time.unix_seconds).ok()?;
        Some(Calendar { begin: Begin::At { unix_seconds }, has_zone: time.has_zone })
    }
}

pub(crate) struct Calendar {
    pub(crate) begin: Begin,
    pub(crate) has_zone: bool,
}

impl FromStr for Begin {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        if let Ok(wait) = text.parse() {
            return Ok(Begin::After(wait));
        }
        let error = |reason: &str| {
            Err(NotationError::new(text, "a start such as `2h` or `2026-11-16T02:00:00Z`", reason))
        };
        match Begin::from_calendar(text) {
            Some(Calendar { begin, has_zone: true }) => Ok(begin),
            Some(_) => error("it has no time zone; end it with `Z` for UTC or with `+01:00`"),
            None => error("it is neither a duration nor a date and time"),
        }
    }
}

impl fmt::Display for Begin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Begin::After(wait) => f.write_str(&written_duration(*wait)),
            Begin::At { unix_seconds } => write!(f, "{:#}Z", UtcTime::of((*unix_seconds).min(LATEST))),
        }
    }
}
