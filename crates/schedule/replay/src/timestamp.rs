//! Timestamps of traces: calendar times, or plain seconds.

use bedplate_units::Date;

use crate::requests::{Picoseconds, picoseconds};

/// A calendar time. Picoseconds since an epoch would not fit in 64 bits, so days are separate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timestamp {
    days: i64,
    time_of_day: Picoseconds,
}

const DAY: Picoseconds = 86_400 * 1_000_000_000_000;

impl Timestamp {
    /// `2023-11-16 18:15:46.6805900`, optionally with `T` for the space and `Z` or `+00:00` at the end, or a
    /// number of seconds.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Ok(seconds) = text.parse::<f64>() {
            let is_in_range = (0.0..1e10).contains(&seconds);
            return is_in_range.then(|| Self {
                days: (seconds / 86_400.0).floor() as i64,
                time_of_day: picoseconds(seconds.rem_euclid(86_400.0)),
            });
        }
        let text = text.strip_suffix('Z').or_else(|| text.strip_suffix("+00:00")).unwrap_or(text);
        let (date, time) = text.split_once([' ', 'T'])?;
        Some(Self { days: days(date)?, time_of_day: time_of_day(time)? })
    }

    /// Whole seconds since 1970; `None` before.
    pub(crate) fn seconds(self) -> Option<u64> {
        Some(u64::try_from(self.days).ok()? * 86_400 + self.time_of_day / 1_000_000_000_000)
    }

    /// Time since an earlier timestamp, or `None` if that is more than the clock holds.
    pub(crate) fn since(self, earlier: Self) -> Option<Picoseconds> {
        let days = u64::try_from(self.days - earlier.days).ok()?;
        let later = days.checked_mul(DAY)?.checked_add(self.time_of_day)?;
        later.checked_sub(earlier.time_of_day)
    }
}

/// Days since 1970.
fn days(date: &str) -> Option<i64> {
    let mut parts = date.split('-');
    let (year, month, day) =
        (digits(parts.next()?, 4)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let is_date = parts.next().is_none() && (1..=12).contains(&month) && (1..=31).contains(&day);
    is_date.then(|| Date { year, month, day }.days_since_1970())
}

fn time_of_day(time: &str) -> Option<Picoseconds> {
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut parts = clock.split(':');
    let (hours, minutes, seconds) =
        (digits(parts.next()?, 2)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    if parts.next().is_some() || hours > 23 || minutes > 59 || seconds > 60 || fraction.len() > 12 {
        return None;
    }
    let fraction_digits = fraction.len() as u32;
    let fraction = digits(fraction, fraction.len())? * 10u64.pow(12 - fraction_digits);
    Some((hours * 3600 + minutes * 60 + seconds) * 1_000_000_000_000 + fraction)
}

/// A number with exactly this many digits.
fn digits(text: &str, count: usize) -> Option<u64> {
    let is_number = text.len() == count && !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_cross_seconds_days_and_leap_years() {
        let since = |later: &str, earlier: &str| {
            Timestamp::parse(later).unwrap().since(Timestamp::parse(earlier).unwrap())
        };
        assert_eq!(
            since("2023-11-16 18:15:50.9951690", "2023-11-16 18:15:46.6805900"),
            Some(4_314_579_000_000)
        );
        assert_eq!(since("2024-03-01T00:00:00Z", "2024-02-28 00:00:00"), Some(2 * DAY));
        assert_eq!(since("2023-03-01 00:00:00+00:00", "2023-02-28 00:00:00"), Some(DAY));
        assert_eq!(since("12.5", "2"), Some(10_500_000_000_000));
        assert_eq!(since("2023-01-01 00:00:00", "2023-01-02 00:00:00"), None);
    }

    #[test]
    fn seconds_count_from_1970() {
        let seconds = |text: &str| Timestamp::parse(text).unwrap().seconds();
        assert_eq!(seconds("1970-01-01 00:00:00"), Some(0));
        assert_eq!(seconds("2017-10-09 07:01:55"), Some(1_507_532_515));
        assert_eq!(seconds("2024-02-29 23:59:59"), Some(1_709_251_199));
        assert_eq!(seconds("1969-12-31 23:59:59"), None);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "yesterday",
            "2023-13-01 00:00:00",
            "2023-11-16",
            "2023-11-16 25:00:00",
            "-5",
            "nan",
            "1e300",
        ] {
            assert_eq!(Timestamp::parse(text), None, "{text}");
        }
    }
}
