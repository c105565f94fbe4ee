//! Timestamps of traces: calendar times, or plain seconds.

use bedplate_units::WrittenTime;

use crate::requests::{Picoseconds, picoseconds};

/// A calendar time. Picoseconds since an epoch would not fit in 64 bits, so seconds are separate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timestamp {
    unix_seconds: i64,
    picoseconds: Picoseconds,
}

const SECOND: Picoseconds = 1_000_000_000_000;

impl Timestamp {
    /// `2023-11-16 18:15:46.6805900`, optionally with `T` for the space and a zone at the end, or a number of seconds.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Ok(seconds) = text.parse::<f64>() {
            let is_in_range = (0.0..1e10).contains(&seconds);
            let (unix_seconds, picoseconds) = (seconds as i64, picoseconds(seconds.fract()));
            return is_in_range.then_some(Self { unix_seconds, picoseconds });
        }
        // A day alone says too little of when a request came.
        let time = WrittenTime::read(text).filter(|_| text.contains(':'))?;
        Some(Self { unix_seconds: time.unix_seconds, picoseconds: time.picoseconds })
    }

    /// Whole seconds since 1970; `None` before.
    pub(crate) fn seconds(self) -> Option<u64> {
        u64::try_from(self.unix_seconds).ok()
    }

    /// Time since an earlier timestamp, or `None` if that is more than the clock holds.
    pub(crate) fn since(self, earlier: Self) -> Option<Picoseconds> {
        let seconds = u64::try_from(self.unix_seconds - earlier.unix_seconds).ok()?;
        let later = seconds.checked_mul(SECOND)?.checked_add(self.picoseconds)?;
        later.checked_sub(earlier.picoseconds)
    }
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
        assert_eq!(since("2024-03-01T00:00:00Z", "2024-02-28 00:00:00"), Some(2 * 86_400 * SECOND));
        assert_eq!(since("2023-03-01 00:00:00+00:00", "2023-02-28 00:00:00"), Some(86_400 * SECOND));
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
