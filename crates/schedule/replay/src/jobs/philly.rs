//! The Philly trace as a CSV of jobs: `timestamp,duration,num_gpus,gpu_time,cluster`.
//!
//! The virtual cluster becomes the account. The trace names neither users nor ends.

use bedplate_diag::Source;
use bedplate_gangs::{Span, Time};

use super::lines::{Header, Line, lines, number, shown, whole};
use super::{Size, Trace, TraceError, TraceJob};

pub(crate) const COLUMNS: [&str; 4] = ["timestamp", "duration", "num_gpus", "cluster"];

pub(crate) fn read(source: Source<'_>) -> Result<Trace, TraceError> {
    let mut lines = lines(source);
    let first = lines.next().ok_or(TraceError::Empty { place: source.whole() })?;
    let header = Header::read(first, COLUMNS)?;
    let mut trace = Trace::default();
    for line in lines {
        let [timestamp, duration, gpus, account] = header.fields(line)?;
        let submit = seconds_of(timestamp).ok_or_else(|| {
            line.bad(format!("`{}` is not a time like 2017-10-09 07:01:55", shown(timestamp)))
        })?;
        let duration = Span((number(line, duration, "duration")? * 1000.0) as u64);
        let size = Size::Gpus(gpus_of(line, gpus)?);
        let account = trace.accounts.place(account);
        let name = line.number.to_string();
        trace.jobs.push(TraceJob { name, account, ..TraceJob::new(Time::seconds(submit), duration, size) });
    }
    Ok(trace)
}

fn gpus_of(line: Line<'_>, field: &str) -> Result<u32, TraceError> {
    let gpus = whole(line, field, "number of GPUs", 1_000_000)?;
    if gpus == 0 { Err(line.bad("the job has no GPUs")) } else { Ok(gpus) }
}

/// Seconds since 1970 of `YYYY-MM-DD HH:MM:SS`, without time zones.
fn seconds_of(text: &str) -> Option<u64> {
    let (date, clock) = text.split_once([' ', 'T'])?;
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(clock, ':')?;
    let is_valid = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    is_valid.then(|| days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)
}

fn numbers(text: &str, separator: char) -> Option<[u64; 3]> {
    let mut parts = text.split(separator);
    let mut next = || parts.next()?.parse::<u16>().ok().map(u64::from);
    let numbers = [next()?, next()?, next()?];
    parts.next().is_none().then_some(numbers)
}

/// Days in the Gregorian calendar, with years that begin in March so that leap days come last.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_since_1970() {
        assert_eq!(seconds_of("1970-01-01 00:00:00"), Some(0));
        assert_eq!(seconds_of("2017-10-09 07:01:55"), Some(1_507_532_515));
        assert_eq!(seconds_of("2024-02-29 23:59:59"), Some(1_709_251_199));
        for wrong in ["", "2017-10-09", "2017-13-09 07:01:55", "2017-10-09 24:00:00", "x-y-z a:b:c"] {
            assert_eq!(seconds_of(wrong), None, "{wrong}");
        }
    }
}
