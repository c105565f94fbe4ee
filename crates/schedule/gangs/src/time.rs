//! Integer time: milliseconds, so that equal inputs give equal decisions on every machine.

use std::fmt;
use std::ops::{Add, Sub};

use bedplate_units::Seconds;

/// An instant, in milliseconds since whatever zero the caller uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct Time(pub u64);

/// A length of time in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct Span(pub u64);

impl Time {
    pub const ZERO: Time = Time(0);
    /// Later than anything that happens; sums with spans stay in range.
    pub const NEVER: Time = Time(u64::MAX / 4);

    pub fn seconds(seconds: u64) -> Self {
        Self(seconds * 1000)
    }

    /// How long after `earlier` this is; zero when it is not after it.
    pub fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    pub const ZERO: Span = Span(0);
    pub const FOREVER: Span = Span(u64::MAX / 4);

    pub const fn seconds(seconds: u64) -> Self {
        Self(seconds * 1000)
    }

    pub const fn minutes(minutes: u64) -> Self {
        Self::seconds(minutes * 60)
    }

    pub const fn hours(hours: u64) -> Self {
        Self::minutes(hours * 60)
    }

    pub const fn days(days: u64) -> Self {
        Self::hours(days * 24)
    }

    pub fn as_seconds(self) -> f64 {
        self.0 as f64 / 1000.0
    }

    /// Longer or shorter by a factor, rounded up to a whole millisecond.
    pub fn times(self, factor: f64) -> Self {
        let scaled = (self.0 as f64 * factor).ceil();
        if scaled >= Span::FOREVER.0 as f64 { Span::FOREVER } else { Span(scaled.max(0.0) as u64) }
    }

    /// Rounded up to a multiple of `unit`.
    pub fn round_up(self, unit: Span) -> Self {
        Self(self.0.div_ceil(unit.0.max(1)) * unit.0.max(1))
    }
}

impl From<Seconds> for Span {
    fn from(seconds: Seconds) -> Self {
        Span(1000).times(seconds.get())
    }
}

impl Add<Span> for Time {
    type Output = Time;

    fn add(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0).min(Time::NEVER.0))
    }
}

impl Sub<Span> for Time {
    type Output = Time;

    fn sub(self, span: Span) -> Time {
        Time(self.0.saturating_sub(span.0))
    }
}

impl Add for Span {
    type Output = Span;

    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0).min(Span::FOREVER.0))
    }
}

/// The two largest units: `2d 4h`, `35m`, `12s`, `250ms`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self >= Span::FOREVER {
            return f.pad("forever");
        }
        if self.0 < 1000 {
            return f.pad(&format!("{}ms", self.0));
        }
        let seconds = self.0 / 1000;
        let units = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];
        let first = units.iter().position(|(_, size)| seconds >= *size).unwrap_or(3);
        let (name, size) = units[first];
        let mut text = format!("{}{name}", seconds / size);
        if let Some((name, size)) = units.get(first + 1).filter(|(_, smaller)| seconds % size >= *smaller) {
            text.push_str(&format!(" {}{name}", seconds % units[first].1 / size));
        }
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_print_their_two_largest_units() {
        let printed = |ms| Span(ms).to_string();
        assert_eq!(printed(250), "250ms");
        assert_eq!(printed(12_000), "12s");
        assert_eq!(printed(Span::minutes(35).0), "35m");
        assert_eq!(printed(Span::hours(2).0 + 5_000), "2h");
        assert_eq!(printed(Span::days(2).0 + Span::hours(4).0 + 999), "2d 4h");
        assert_eq!(Span::FOREVER.to_string(), "forever");
    }

    #[test]
    fn sums_stay_in_range() {
        assert_eq!(Time::NEVER + Span::FOREVER, Time::NEVER);
        assert_eq!(Time(1) + Span(u64::MAX), Time::NEVER);
        assert_eq!(Time(3).since(Time(5)), Span::ZERO);
        assert_eq!(Span(61_000).round_up(Span::minutes(1)), Span::minutes(2));
    }
}
