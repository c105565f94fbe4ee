//! JSON that comes character by character: whether what there is can still become a value, and where the value ends.

/// Where a value has got to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    String,
    Escape,
    Hex(u8),
    Number(Digits),
    /// What is left of `true`, `false` or `null`.
    Word(&'static str),
    Nothing,
}

/// Where a number has got to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Digits {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

impl Digits {
    fn then(self, next: char) -> Option<Self> {
        match (self, next) {
            (Digits::Minus, '0') => Some(Digits::Zero),
            (Digits::Minus, '1'..='9') | (Digits::Whole, '0'..='9') => Some(Digits::Whole),
            (Digits::Zero | Digits::Whole, '.') => Some(Digits::Point),
            (Digits::Point | Digits::Fraction, '0'..='9') => Some(Digits::Fraction),
            (Digits::Zero | Digits::Whole | Digits::Fraction, 'e' | 'E') => Some(Digits::Exponent),
            (Digits::Exponent, '+' | '-') => Some(Digits::Sign),
            (Digits::Exponent | Digits::Sign | Digits::Power, '0'..='9') => Some(Digits::Power),
            _ => None,
        }
    }

    fn is_number(self) -> bool {
        matches!(self, Digits::Zero | Digits::Whole | Digits::Fraction | Digits::Power)
    }
}

/// What no value continues with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// Follows one value, an object, a list or a string. Strings may have control characters: models write them.
#[derive(Debug)]
pub(super) struct JsonScan {
    next: Next,
    /// Whether each open bracket is an object's.
    open: Vec<bool>,
    is_key: bool,
}

/// Lists and objects that may be open at once.
const DEEPEST: usize = 128;

impl JsonScan {
    pub(super) fn new() -> Self {
        Self { next: Next::Value, open: Vec::new(), is_key: false }
    }

    /// Open brackets.
    pub(super) fn depth(&self) -> usize {
        self.open.len()
    }

    pub(super) fn is_in_string(&self) -> bool {
        matches!(self.next, Next::String | Next::Escape | Next::Hex(_))
    }

    /// Whether the value is complete.
    pub(super) fn is_done(&self) -> bool {
        self.next == Next::Nothing
    }

    /// Whether a value inside an object or a list has just been completed, or was by what followed it.
    pub(super) fn is_behind_value(&self) -> bool {
        matches!(self.next, Next::CommaOrEnd | Next::Nothing)
    }

    pub(super) fn push(&mut self, next: char) -> Result<(), Malformed> {
        let is_space = matches!(next, ' ' | '\t' | '\n' | '\r');
        self.next = match (self.next, next) {
            (Next::String, '"') if self.is_key => Next::Colon,
            (Next::String, '"') => self.behind_value(),
            (Next::String, '\\') => Next::Escape,
            (Next::String, _) => Next::String,
            (Next::Escape, 'u') => Next::Hex(4),
            (Next::Escape, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Next::String,
            (Next::Hex(left), digit) if digit.is_ascii_hexdigit() => {
                if left > 1 {
                    Next::Hex(left - 1)
                } else {
                    Next::String
                }
            }
            (Next::Escape | Next::Hex(_), _) => return Err(Malformed),
            (Next::Number(digits), _) => match digits.then(next) {
                Some(digits) => Next::Number(digits),
                None if digits.is_number() => {
                    self.next = self.behind_value();
                    return self.push(next);
                }
                None => return Err(Malformed),
            },
            (Next::Word(left), _) => match left.strip_prefix(next) {
                Some("") => self.behind_value(),
                Some(left) => Next::Word(left),
                None => return Err(Malformed),
            },
            (same, _) if is_space => same,
            (Next::ValueOrEnd, ']') | (Next::KeyOrEnd, '}') => self.close()?,
            (Next::Value | Next::ValueOrEnd, _) => self.begin_value(next)?,
            (Next::Key | Next::KeyOrEnd, '"') => {
                self.is_key = true;
                Next::String
            }
            (Next::Colon, ':') => Next::Value,
            (Next::CommaOrEnd, ',') => {
                if self.open.last() == Some(&true) {
                    Next::Key
                } else {
                    Next::Value
                }
            }
            (Next::CommaOrEnd, '}') if self.open.last() == Some(&true) => self.close()?,
            (Next::CommaOrEnd, ']') if self.open.last() == Some(&false) => self.close()?,
            _ => return Err(Malformed),
        };
        Ok(())
    }

    fn begin_value(&mut self, next: char) -> Result<Next, Malformed> {
        self.is_key = false;
        match next {
            '{' | '[' if self.open.len() == DEEPEST => Err(Malformed),
            '{' => {
                self.open.push(true);
                Ok(Next::KeyOrEnd)
            }
            '[' => {
                self.open.push(false);
                Ok(Next::ValueOrEnd)
            }
            '"' => Ok(Next::String),
            // What ends these is outside of them, so they stand inside of something.
            _ if self.open.is_empty() => Err(Malformed),
            '-' => Ok(Next::Number(Digits::Minus)),
            '0' => Ok(Next::Number(Digits::Zero)),
            '1'..='9' => Ok(Next::Number(Digits::Whole)),
            't' => Ok(Next::Word("rue")),
            'f' => Ok(Next::Word("alse")),
            'n' => Ok(Next::Word("ull")),
            _ => Err(Malformed),
        }
    }

    fn close(&mut self) -> Result<Next, Malformed> {
        self.open.pop().ok_or(Malformed)?;
        Ok(self.behind_value())
    }

    fn behind_value(&self) -> Next {
        if self.open.is_empty() { Next::Nothing } else { Next::CommaOrEnd }
    }
}

/// Adds a character of JSON; in strings control characters are escaped.
pub(super) fn push_valid(text: &mut String, next: char, is_in_string: bool) {
    match next {
        '\n' if is_in_string => text.push_str("\\n"),
        '\r' if is_in_string => text.push_str("\\r"),
        '\t' if is_in_string => text.push_str("\\t"),
        '\0'..='\x1f' if is_in_string => text.push_str(&format!("\\u{:04x}", u32::from(next))),
        other => text.push(other),
    }
}

#[cfg(test)]
mod tests {
    use bedplate_testkit::Mutator;

    use super::*;

    /// How many characters the value has; none where it is none or is incomplete.
    fn length(text: &str) -> Option<usize> {
        let mut scan = JsonScan::new();
        for (at, next) in text.chars().enumerate() {
            scan.push(next).ok()?;
            if scan.is_done() {
                return Some(at + 1);
            }
        }
        None
    }

    #[test]
    fn values_end_where_they_end() {
        for text in [
            "{}",
            "[]",
            "\"a\\\"\\u00e9\"",
            r#"{"a": [1, -0.5e+10, 1e999, 123456789012345678901234567890, true, null], "b": {"c": "}"}}"#,
            " {\n\"a\"\t: [ ] }",
        ] {
            assert_eq!(length(&format!("{text} more")), Some(text.chars().count()), "{text}");
        }
        for text in ["1", "{1}", "{\"a\" 1}", "[1,]", "{,}", "[01]", "[1.]", "[tru]", "\"\\x\"", "[}", "{]"] {
            assert_eq!(length(text), None, "{text}");
        }
    }

    #[test]
    fn it_takes_what_serde_takes() {
        let seeds =
            [r#"{"a": [1, 2.5, -3e5, true, false, null, "x\n"], "b": {"c": {}}}"#, r#"[[],{"":"\u12ab"}]"#];
        let mut mutator = Mutator::new(0x5eed);
        for round in 0..4000 {
            let bytes = mutator.mutate(seeds[round % 2].as_bytes());
            let Ok(text) = String::from_utf8(bytes) else { continue };
            let has_control = text.chars().any(|char| char < ' ' && !matches!(char, '\n' | '\t' | '\r'));
            let text = text.trim();
            let is_one = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
            let is_scalar = !text.starts_with(['{', '[', '"']);
            if has_control || is_scalar {
                continue;
            }
            let scanned = length(text) == Some(text.chars().count());
            let is_lenient = text.chars().any(|char| char < ' ');
            assert!(scanned == is_one || (scanned && is_lenient), "{text:?} {scanned} {is_one}");
        }
    }
}
