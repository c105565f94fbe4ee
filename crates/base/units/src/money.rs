//! Dollars, and dollars per hour.

use std::fmt;
use std::str::FromStr;

use crate::count::grouped;
use crate::format::significant;
use crate::parse::Kind;
use crate::quantity::{quantity, rate_of};
use crate::{Seconds, UnitError};

quantity! {
    /// United States dollars.
    Dollars
}

impl fmt::Display for Dollars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad_integral(true, "", &money(self.0))
    }
}

/// Cents below ten thousand dollars, whole dollars below a million, three digits and `M` or `B` above.
/// Below ten cents, where prices per gigabyte live, two significant digits.
fn money(value: f64) -> String {
    let sign = if value < 0.0 { "-" } else { "" };
    match value.abs() {
        0.0 => "$0".into(),
        size if size < 0.1 => format!("{sign}${}", significant(size, 2)),
        size if size < 9_999.995 => {
            let cents = (size * 100.0).round() as u64;
            format!("{sign}${}.{:02}", grouped(cents / 100), cents % 100)
        }
        size if size < 999_999.5 => format!("{sign}${}", grouped(size.round() as u64)),
        size if size < 999.5e6 => format!("{sign}${}M", significant(size / 1e6, 3)),
        size => format!("{sign}${}B", significant(size / 1e9, 3)),
    }
}

impl FromStr for Dollars {
    type Err = UnitError;

    /// `$98.32`, `98.32`, `98.32 USD`, `$1.2M`.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        const KIND: Kind = Kind { name: "sum of money", example: "$98.32", units: "K, M, B, USD" };
        let amount = text.trim().strip_prefix('$').unwrap_or(text);
        let (number, unit) = KIND.split(amount)?;
        let factor = match unit.strip_suffix("USD").unwrap_or(unit).trim_end() {
            "" => 1.0,
            "K" | "k" => 1e3,
            "M" => 1e6,
            "B" => 1e9,
            _ => return Err(KIND.unknown_unit(text, unit)),
        };
        KIND.checked(text, number * factor).map(Self)
    }
}

quantity! {
    /// Dollars per second; prints and reads per hour, as prices are quoted.
    DollarRate
}
rate_of!(Dollars / Seconds = DollarRate);

impl DollarRate {
    pub fn per_hour(price: Dollars) -> Self {
        price / Seconds::hours(1.0)
    }
    /// What one hour costs.
    pub fn hourly(self) -> Dollars {
        self * Seconds::hours(1.0)
    }
}

impl fmt::Display for DollarRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad_integral(true, "", &format!("{}/h", self.hourly()))
    }
}

impl FromStr for DollarRate {
    type Err = UnitError;

    /// `$98.32/h`, or `$98.32`, taken per hour.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let trimmed = text.trim();
        let price = ["/hour", "/hr", "/h"].iter().find_map(|s| trimmed.strip_suffix(s)).unwrap_or(trimmed);
        price.parse().map(Self::per_hour)
    }
}
