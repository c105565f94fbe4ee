//! Amounts: bytes of memory, floating-point operations, watts.

use std::fmt;
use std::str::FromStr;

use crate::UnitError;
use crate::format::{BINARY, DECIMAL, write_scaled};
use crate::parse::{Kind, decimal_prefix};
use crate::quantity::quantity;

quantity! {
    /// An amount of memory or data. Prints decimal (`80 GB`); `{:#}` prints binary (`74.51 GiB`).
    Bytes
}

impl Bytes {
    pub const fn mb(value: f64) -> Self {
        Self(value * 1e6)
    }
    pub const fn gb(value: f64) -> Self {
        Self(value * 1e9)
    }
    pub const fn tb(value: f64) -> Self {
        Self(value * 1e12)
    }
    pub const fn gib(value: f64) -> Self {
        Self(value * 1_073_741_824.0)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ladder = if f.alternate() { BINARY } else { DECIMAL };
        write_scaled(f, self.0, ladder, " ", "B")
    }
}

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        const KIND: Kind =
            Kind { name: "size", example: "80 GB", units: "B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB" };
        let (number, unit) = KIND.split(text)?;
        let factor = match byte_factor(unit) {
            Some(factor) => factor,
            None if unit.is_empty() && number == 0.0 => 1.0,
            None if unit.is_empty() => return Err(KIND.missing_unit(text)),
            None => return Err(KIND.unknown_unit(text, unit)),
        };
        KIND.checked(text, number * factor).map(Self)
    }
}

/// The factor of `GB`, `GiB` or `gb`: a size is never in bits, so case does not matter.
fn byte_factor(unit: &str) -> Option<f64> {
    let lower = unit.to_ascii_lowercase();
    let prefix = match lower.as_str() {
        "byte" | "bytes" => "",
        other => other.strip_suffix('b')?,
    };
    let (letter, base) = match prefix.strip_suffix('i') {
        Some(letter) if !letter.is_empty() => (letter, 1024f64),
        _ => (prefix, 1000f64),
    };
    let power = ["", "k", "m", "g", "t", "p", "e", "z", "y"].iter().position(|known| *known == letter)?;
    Some(base.powi(power as i32))
}

quantity! {
    /// A number of floating-point operations. A multiply and an add count as two.
    Flops
}

impl fmt::Display for Flops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, DECIMAL, " ", "FLOP")
    }
}

impl FromStr for Flops {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        const KIND: Kind =
            Kind { name: "number of operations", example: "3.8e25 FLOP", units: "FLOP, GFLOP, TFLOP, PFLOP" };
        let (number, unit) = KIND.split(text)?;
        let prefix = unit
            .strip_suffix("FLOPs")
            .or_else(|| unit.strip_suffix("FLOP"))
            .or_else(|| unit.is_empty().then_some(""));
        let factor = prefix.and_then(decimal_prefix).ok_or_else(|| KIND.unknown_unit(text, unit))?;
        KIND.checked(text, number * factor).map(Self)
    }
}

quantity! {
    /// Electrical power.
    Watts
}

impl fmt::Display for Watts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, DECIMAL, " ", "W")
    }
}

impl FromStr for Watts {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        const KIND: Kind = Kind { name: "power", example: "700 W", units: "W, kW, MW" };
        let (number, unit) = KIND.split(text)?;
        let prefix = unit.strip_suffix('W').ok_or_else(|| KIND.unknown_unit(text, unit))?;
        let factor = decimal_prefix(prefix).ok_or_else(|| KIND.unknown_unit(text, unit))?;
        KIND.checked(text, number * factor).map(Self)
    }
}
