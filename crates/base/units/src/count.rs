//! Counts of parameters and tokens: `8.03B`, `15T tokens`, `8,030,261,248`.

use std::fmt;
use std::str::FromStr;

use crate::UnitError;
use crate::format::{COUNT, write_scaled};
use crate::parse::Kind;
use crate::quantity::quantity;

quantity! {
    /// A number of tokens.
    Tokens
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, COUNT, "", " tokens")
    }
}

impl FromStr for Tokens {
    type Err = UnitError;

    /// `15T tokens`, `15T`, `1.5e12`, `8192`.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        const KIND: Kind = Kind {
            name: "number of tokens",
            example: "15T tokens",
            units: "K, M, B (billion), T (trillion)",
        };
        let (number, unit) = KIND.split(text)?;
        let scale = unit.strip_suffix("tokens").or_else(|| unit.strip_suffix("token")).unwrap_or(unit);
        let factor = match scale.trim_end() {
            "" => 1.0,
            "K" | "k" => 1e3,
            "M" | "m" => 1e6,
            "B" | "b" | "G" => 1e9,
            "T" | "t" => 1e12,
            _ => return Err(KIND.unknown_unit(text, unit)),
        };
        KIND.checked(text, number * factor).map(Self)
    }
}

/// An exact count that prints short: `Count(8_030_261_248)` is `8.03B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0 as f64, COUNT, "", "")
    }
}

/// An exact count with thousands separated: `8,030,261,248`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
