//! Amounts per second: bandwidth, floating-point rate, token rate.

use std::fmt;
use std::str::FromStr;

use crate::format::{COUNT, DECIMAL, write_scaled};
use crate::parse::{Kind, decimal_prefix};
use crate::quantity::{quantity, rate_of};
use crate::{Bytes, Flops, Seconds, Tokens, UnitError};

quantity! {
    /// Bytes per second. Reads bits too (`3200 Gbps` is `400 GB/s`), always prints bytes.
    Bandwidth
}
rate_of!(Bytes / Seconds = Bandwidth);

impl Bandwidth {
    pub const fn gb_per_s(value: f64) -> Self {
        Self(value * 1e9)
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, DECIMAL, " ", "B/s")
    }
}

impl FromStr for Bandwidth {
    type Err = UnitError;

    /// `B` is a byte and `b` a bit, so here case matters and lower-case `gb/s` is refused.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        const KIND: Kind = Kind {
            name: "bandwidth",
            example: "400 GB/s",
            units: "MB/s, GB/s, TB/s (bytes) or Mbps, Gbps, Tbps (bits)",
        };
        let (number, unit) = KIND.split(text)?;
        let factor = match bandwidth_factor(unit) {
            Some(factor) => factor,
            None if unit.is_empty() && number == 0.0 => 1.0,
            None if unit.is_empty() => return Err(KIND.missing_unit(text)),
            None => return Err(KIND.unknown_unit(text, unit)),
        };
        KIND.checked(text, number * factor).map(Self)
    }
}

fn bandwidth_factor(unit: &str) -> Option<f64> {
    let amount = unit.strip_suffix("/s").or_else(|| unit.strip_suffix("ps"))?;
    if let Some(prefix) = amount.strip_suffix('B') {
        return match prefix {
            "Mi" => Some(1_048_576.0),
            "Gi" => Some(1_073_741_824.0),
            "Ti" => Some(1_099_511_627_776.0),
            _ => upper_prefix(prefix),
        };
    }
    let prefix = amount.strip_suffix("bit").or_else(|| amount.strip_suffix('b'))?;
    upper_prefix(prefix).map(|factor| factor / 8.0)
}

/// `g` and `t` in lower case leave it open whether a bit or a byte was meant.
fn upper_prefix(prefix: &str) -> Option<f64> {
    if matches!(prefix, "g" | "t" | "p") { None } else { decimal_prefix(prefix) }
}

quantity! {
    /// Floating-point operations per second; peaks are dense unless said otherwise.
    FlopRate
}
rate_of!(Flops / Seconds = FlopRate);

impl FlopRate {
    pub const fn tflops(value: f64) -> Self {
        Self(value * 1e12)
    }
}

impl fmt::Display for FlopRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, DECIMAL, " ", "FLOP/s")
    }
}

impl FromStr for FlopRate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        const KIND: Kind = Kind {
            name: "floating-point rate",
            example: "989.5 TFLOP/s",
            units: "GFLOP/s, TFLOP/s, PFLOP/s (or TFLOPS, PFLOPS)",
        };
        let (number, unit) = KIND.split(text)?;
        if unit.is_empty() {
            return Err(KIND.missing_unit(text));
        }
        let prefix = ["FLOP/s", "FLOPs/s", "FLOPS", "FLOPs", "F"].iter().find_map(|s| unit.strip_suffix(s));
        let factor = prefix.and_then(decimal_prefix).ok_or_else(|| KIND.unknown_unit(text, unit))?;
        KIND.checked(text, number * factor).map(Self)
    }
}

quantity! {
    /// Tokens per second.
    TokenRate
}
rate_of!(Tokens / Seconds = TokenRate);

impl fmt::Display for TokenRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, COUNT, "", " tokens/s")
    }
}
