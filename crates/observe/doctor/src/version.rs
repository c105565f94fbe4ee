//! Versions as numbers that compare: `2.21.5`, `550.54.15`, `1.22.0amzn1.0`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The numbers at the beginning of a version, and the text that it was read from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub struct Version {
    numbers: Vec<u64>,
    text: String,
}

impl Version {
    /// `None` where the text does not begin with a number; a leading `v` is allowed.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        let version = Self::from(text.to_owned());
        (!version.numbers.is_empty() && text.len() <= 64).then_some(version)
    }

    pub fn is_at_least(&self, numbers: &[u64]) -> bool {
        let padded =
            |numbers: &[u64]| (0..4).map(|at| numbers.get(at).copied().unwrap_or(0)).collect::<Vec<_>>();
        padded(&self.numbers) >= padded(numbers)
    }

    pub fn major(&self) -> u64 {
        self.numbers.first().copied().unwrap_or(0)
    }

    pub fn minor(&self) -> u64 {
        self.numbers.get(1).copied().unwrap_or(0)
    }

    /// The first `count` numbers are equal.
    pub fn agrees_with(&self, other: &Version, count: usize) -> bool {
        (0..count).all(|at| self.numbers.get(at).unwrap_or(&0) == other.numbers.get(at).unwrap_or(&0))
    }
}

impl From<String> for Version {
    fn from(text: String) -> Self {
        let mut numbers = Vec::new();
        for part in text.split('.').take(4) {
            let digits: String = part.chars().take_while(char::is_ascii_digit).take(18).collect();
            let Ok(number) = digits.parse() else { break };
            numbers.push(number);
            if digits.len() < part.len() {
                break;
            }
        }
        Self { numbers, text }
    }
}

impl From<Version> for String {
    fn from(version: Version) -> Self {
        version.text
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number_whatever_follows_them() {
        let version = |text| Version::parse(text).expect("a version");
        assert!(version("2.21.5+cuda12.4").is_at_least(&[2, 18]));
        assert!(!version("2.9.1").is_at_least(&[2, 18]));
        assert!(version("1.22.0amzn1.0").is_at_least(&[1, 22, 0]));
        assert!(version("1.22.0amzn1.0").agrees_with(&version("1.22.0"), 3));
        assert_eq!(version("v1.9.2-aws").to_string(), "1.9.2-aws");
        assert!(Version::parse("unknown").is_none());
        assert!(Version::parse("").is_none());
        assert!(version("99999999999999999999999.1").major() > 0);
    }
}
