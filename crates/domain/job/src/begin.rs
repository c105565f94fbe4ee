//! When a job may start at the earliest.

use std::fmt;
use std::str::FromStr;

use bedplate_units::Seconds;

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
        let (date, time) = match text.split_once(['T', ' ']) {
            Some((date, time)) => (date, time),
            None => (text, "00:00"),
        };
        let (time, offset, has_zone) = split_zone(time)?;
        let [year, month, day] = numbers(date, '-')?[..] else { return None };
        let (hour, minute, second) = match numbers(time, ':')?[..] {
            [hour, minute] => (hour, minute, 0),
            [hour, minute, second] => (hour, minute, second),
            _ => return None,
        };
        if hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let local = days_since_1970(year, month, day)? * 86_400 + hour * 3600 + minute * 60 + second;
        let unix_seconds = u64::try_from(local - offset).ok()?;
        Some(Calendar { begin: Begin::At { unix_seconds }, has_zone })
    }
}

pub(crate) struct Calendar {
    pub(crate) begin: Begin,
    pub(crate) has_zone: bool,
}

/// The time without its zone, and the zone's seconds east of Greenwich.
fn split_zone(time: &str) -> Option<(&str, i64, bool)> {
    if let Some(time) = time.strip_suffix(['Z', 'z']) {
        return Some((time, 0, true));
    }
    let Some(at) = time.find(['+', '-']) else { return Some((time, 0, false)) };
    let [hours, minutes] = numbers(&time[at + 1..], ':')?[..] else { return None };
    if hours > 23 || minutes > 59 {
        return None;
    }
    let sign = if time.as_bytes()[at] == b'-' { -1 } else { 1 };
    Some((&time[..at], sign * (hours * 3600 + minutes * 60), true))
}

fn numbers(text: &str, separator: char) -> Option<Vec<i64>> {
    let number = |part: &str| {
        let is_short = (1..=4).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        if is_short { part.parse().ok() } else { None }
    };
    text.split(separator).map(number).collect()
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn days_before(year: i64) -> i64 {
    let before = year - 1;
    year * 365 + before / 4 - before / 100 + before / 400
}

fn days_since_1970(year: i64, month: i64, day: i64) -> Option<i64> {
    let is_date = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_of_month(year, month)).contains(&day);
    let months: i64 = (1..month).map(|month| days_of_month(year, month)).sum();
    is_date.then(|| days_before(year) - days_before(1970) + months + day - 1)
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
        let unix_seconds = match self {
            Begin::After(wait) => return f.write_str(&written_duration(*wait)),
            Begin::At { unix_seconds } => (*unix_seconds).min(LATEST) as i64,
        };
        let (days, rest) = (unix_seconds / 86_400, unix_seconds % 86_400);
        let mut year = 1970 + days / 366;
        while days_before(year + 1) - days_before(1970) <= days {
            year += 1;
        }
        let mut day = days - (days_before(year) - days_before(1970));
        let mut month = 1;
        while day >= days_of_month(year, month) {
            day -= days_of_month(year, month);
            month += 1;
        }
        let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
        write!(f, "{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", day + 1)
    }
}
