//! Durations, from nanoseconds of a network hop to the months of a training run.

use std::fmt;
use std::str::FromStr;

use crate::UnitError;
use crate::format::significant;
use crate::parse::Kind;
use crate::quantity::quantity;

quantity! {
    /// A duration. Prints in the unit a person would choose: `8 us`, `14.66 s`, `3.5 h`, `54 days`.
    Seconds
}

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
const DAY: f64 = 86_400.0;

impl Seconds {
    pub const fn us(value: f64) -> Self {
        Self(value * 1e-6)
    }
    pub const fn ms(value: f64) -> Self {
        Self(value * 1e-3)
    }
    pub const fn hours(value: f64) -> Self {
        Self(value * HOUR)
    }
    pub const fn days(value: f64) -> Self {
        Self(value * DAY)
    }
    pub const fn as_hours(self) -> f64 {
        self.0 / HOUR
    }
    pub const fn as_days(self) -> f64 {
        self.0 / DAY
    }
}

impl Seconds {
    /// A number and the largest unit that divides the duration, so that both read back as the very same: `5` and `min`.
    pub fn exactly(self) -> (f64, &'static str) {
        let divides = |unit: f64| {
            let count = self.0 / unit;
            count >= 1.0 && count.fract() == 0.0 && count * unit == self.0 && count < 1e9
        };
        let units = [(DAY, "d"), (HOUR, "h"), (MINUTE, "min")];
        let unit = units.into_iter().find(|(unit, _)| divides(*unit));
        unit.map_or((self.0, "s"), |(unit, symbol)| (self.0 / unit, symbol))
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Each unit is used up to its limit, which keeps numbers readable: 90 s stays 90 s.
        const SCALE: &[(f64, f64, &str)] = &[
            (1e-6, 1e-9, "ns"),
            (1e-3, 1e-6, "us"),
            (1.0, 1e-3, "ms"),
            (2.0 * MINUTE, 1.0, "s"),
            (2.0 * HOUR, MINUTE, "min"),
            (2.0 * DAY, HOUR, "h"),
            (f64::INFINITY, DAY, "days"),
        ];
        let digits = f.precision().unwrap_or(4);
        let (_, unit, symbol) = match self.0 {
            0.0 => SCALE[3],
            value => *SCALE.iter().find(|(limit, ..)| value.abs() < *limit).unwrap_or(&SCALE[6]),
        };
        f.pad_integral(true, "", &format!("{} {symbol}", significant(self.0 / unit, digits)))
    }
}

impl FromStr for Seconds {
    type Err = UnitError;

    /// One or more number-unit pairs: `600ms`, `1.5 h`, `1h30m`, `3 days`. A bare zero needs no unit.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        const KIND: Kind =
            Kind { name: "duration", example: "600ms", units: "ns, us, ms, s, min (m), h, d (days)" };
        let mut total = 0.0;
        let mut rest = text;
        loop {
            let (number, tail) = KIND.split(rest)?;
            let end = tail.find(|c: char| !c.is_alphabetic() && c != 'µ').unwrap_or(tail.len());
            let (unit, next) = tail.split_at(end);
            let factor = match time_factor(unit) {
                Some(factor) => factor,
                None if unit.is_empty() && number == 0.0 && next.is_empty() => 1.0,
                None if unit.is_empty() => return Err(KIND.missing_unit(text)),
                None => return Err(KIND.unknown_unit(text, unit)),
            };
            total += KIND.checked(text, number * factor)?;
            rest = next;
            if rest.trim().is_empty() {
                return KIND.checked(text, total).map(Self);
            }
        }
    }
}

fn time_factor(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" | "sec" | "second" | "seconds" => 1.0,
        "m" | "min" | "minute" | "minutes" => MINUTE,
        "h" | "hour" | "hours" => HOUR,
        "d" | "day" | "days" => DAY,
        "w" | "week" | "weeks" => 7.0 * DAY,
        _ => return None,
    })
}
