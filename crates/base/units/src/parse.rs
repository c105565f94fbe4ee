//! Splitting `3.35 TB/s` into a number and a unit; each quantity then looks its unit up.

use crate::UnitError;

/// Nothing in this field is larger; a bigger number is a typo.
const LARGEST: f64 = 1e30;

/// How a kind of quantity is named in errors, and an example of it.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) example: &'static str,
    pub(crate) units: &'static str,
}

impl Kind {
    pub(crate) fn unknown_unit(&self, text: &str, unit: &str) -> UnitError {
        UnitError::UnknownUnit {
            text: shortened(text),
            unit: shortened(unit),
            kind: self.name,
            expected: self.units,
        }
    }

    pub(crate) fn missing_unit(&self, text: &str) -> UnitError {
        UnitError::MissingUnit { text: shortened(text), kind: self.name, example: self.example }
    }

    /// The product of number and unit factor, refused when it leaves the range of real things.
    pub(crate) fn checked(&self, text: &str, value: f64) -> Result<f64, UnitError> {
        if value < 0.0 {
            return Err(UnitError::Negative { text: shortened(text), kind: self.name });
        }
        if !value.is_finite() || value > LARGEST {
            return Err(UnitError::TooLarge { text: shortened(text), kind: self.name });
        }
        Ok(value)
    }

    /// The leading number and the rest, both trimmed. Accepts `1_000`, `1,200` and `1.5e12`.
    pub(crate) fn split<'a>(&self, text: &'a str) -> Result<(f64, &'a str), UnitError> {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Err(UnitError::Empty { kind: self.name, example: self.example });
        }
        let end = number_end(trimmed);
        let (digits, rest) = trimmed.split_at(end);
        let number: f64 = digits.replace([',', '_'], "").parse().map_err(|_| UnitError::NotANumber {
            text: shortened(trimmed),
            kind: self.name,
            example: self.example,
        })?;
        Ok((number, rest.trim_start()))
    }
}

/// The byte after the leading number. An `e` belongs to it only when an exponent follows.
fn number_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = usize::from(matches!(bytes.first(), Some(b'-' | b'+')));
    while bytes.get(at).is_some_and(|b| b.is_ascii_digit() || matches!(b, b'.' | b',' | b'_')) {
        at += 1;
    }
    if at > 0 && matches!(bytes.get(at), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(at + 1), Some(b'-' | b'+')));
        let mut exponent_end = at + 1 + sign;
        while bytes.get(exponent_end).is_some_and(u8::is_ascii_digit) {
            exponent_end += 1;
        }
        if exponent_end > at + 1 + sign {
            at = exponent_end;
        }
    }
    at
}

/// Errors quote what was typed, but not a megabyte of it.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The decimal factor of a prefix letter; `None` for anything else. Lower `m` is left to the callers.
pub(crate) fn decimal_prefix(prefix: &str) -> Option<f64> {
    Some(match prefix {
        "" => 1.0,
        "k" | "K" => 1e3,
        "M" => 1e6,
        "G" | "g" => 1e9,
        "T" | "t" => 1e12,
        "P" | "p" => 1e15,
        "E" => 1e18,
        "Z" => 1e21,
        "Y" => 1e24,
        _ => return None,
    })
}
