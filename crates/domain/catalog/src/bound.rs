//! Bounds as people type them on the command line: `>=141GB`, `<$50`, `8`.

use std::fmt;
use std::str::FromStr;

/// A bound on a value: `>=141GB`. Without a sign it means "at least".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound<T> {
    sign: Sign,
    value: T,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    AtLeast,
    AtMost,
    Above,
    Below,
    Equal,
}

/// Longer signs first, so that `>=` is not read as `>`.
const SIGNS: [(&str, Sign); 5] =
    [(">=", Sign::AtLeast), ("<=", Sign::AtMost), (">", Sign::Above), ("<", Sign::Below), ("=", Sign::Equal)];

impl<T: Ord> Bound<T> {
    pub fn holds(&self, value: &T) -> bool {
        match self.sign {
            Sign::AtLeast => *value >= self.value,
            Sign::AtMost => *value <= self.value,
            Sign::Above => *value > self.value,
            Sign::Below => *value < self.value,
            Sign::Equal => *value == self.value,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; a bound reads like `>=141GB`, with >=, <=, >, < or =")]
pub struct BoundError {
    reason: String,
}

impl<T: FromStr<Err: fmt::Display>> FromStr for Bound<T> {
    type Err = BoundError;

    fn from_str(text: &str) -> Result<Self, BoundError> {
        let text = text.trim();
        let (sign, rest) = SIGNS
            .iter()
            .find_map(|(symbol, sign)| text.strip_prefix(symbol).map(|rest| (*sign, rest)))
            .unwrap_or((Sign::AtLeast, text));
        match rest.trim().parse() {
            Ok(value) => Ok(Self { sign, value }),
            Err(error) => Err(BoundError { reason: T::Err::to_string(&error) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_units::Bytes;

    #[test]
    fn bounds_hold_where_their_sign_says() {
        for (bound, smaller, equal, larger) in [
            (">=141GB", false, true, true),
            ("141 GB", false, true, true),
            ("<= 141GB", true, true, false),
            (">141GB", false, false, true),
            ("<141GB", true, false, false),
            ("=141GB", false, true, false),
        ] {
            let bound: Bound<Bytes> = bound.parse().unwrap();
            let held = [80.0, 141.0, 192.0].map(|size| bound.holds(&Bytes::gb(size)));
            assert_eq!(held, [smaller, equal, larger], "{bound:?}");
        }
        assert!("=>3".parse::<Bound<Bytes>>().is_err());
        assert!("".parse::<Bound<u32>>().is_err());
    }
}
