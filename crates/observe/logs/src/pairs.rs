//! Lines that carry names with values: JSON, Python dictionaries, `key:value` and `key=value`.

use std::borrow::Cow;

use serde_json::Value;

/// How the values of a line are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notation {
    Json,
    /// `{'loss': 0.06, 'epoch': '5.27'}`
    Python,
    /// `timing_s/gen:22.4 - perf/throughput:812`, `loss=14.3, ppl=9`, `fwd: 12.31 | bwd: 30.2`, `loss:0.8 lr:2e-05`
    Pairs,
    /// `| lm loss: 2.1E+00 | grad norm: 0.135 |`, where names have spaces
    Bars,
}

/// The names and values of one line.
pub(crate) enum Values<'a> {
    Json(Value),
    Pairs(Vec<(&'a str, &'a str)>),
}

/// No line has more.
const MOST_PAIRS: usize = 1000;

impl<'a> Values<'a> {
    pub(crate) fn read(text: &'a [u8], notation: Notation) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        match notation {
            Notation::Json => Some(Values::Json(serde_json::from_str(text).ok()?)),
            Notation::Python => Some(Values::Pairs(python(text)?)),
            Notation::Pairs => Some(Values::Pairs(pairs(text))),
            Notation::Bars => Some(Values::Pairs(bars(text))),
        }
    }

    /// The value of a name; in JSON `data.loss` is inside `data`, unless a key is called just so.
    pub(crate) fn get(&self, name: &str) -> Option<Cow<'_, str>> {
        match self {
            Values::Pairs(pairs) => {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| Cow::Borrowed(*value))
            }
            Values::Json(value) => inside(value, name).and_then(scalar),
        }
    }
}

fn inside<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    if let Some(found) = value.get(path) {
        return Some(found);
    }
    let (outer, rest) = path.split_once('.')?;
    inside(value.get(outer)?, rest)
}

fn scalar(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        _ => None,
    }
}

/// A dictionary of plain values, as Python prints it.
fn python(text: &str) -> Option<Vec<(&str, &str)>> {
    let mut rest = text.trim().strip_prefix('{')?;
    let mut found = Vec::new();
    while found.len() < MOST_PAIRS {
        rest = rest.trim_start_matches([',', ' ']);
        let quote = rest.chars().next().filter(|each| matches!(each, '\'' | '"'));
        let Some(quote) = quote else { break };
        let (key, behind) = rest[1..].split_once(quote)?;
        let value = behind.strip_prefix(':')?.trim_start();
        let end = end_of_value(value);
        found.push((key, value[..end].trim()));
        rest = &value[end..];
    }
    Some(found)
}

/// Values end at a comma or brace outside of quotes and brackets.
fn end_of_value(text: &str) -> usize {
    let (mut depth, mut quote) = (0_u32, None);
    for (at, each) in text.char_indices() {
        match (quote, each) {
            (Some(open), each) if each == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(each),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']') => depth = depth.saturating_sub(1),
            (None, '}' | ',') if depth == 0 => return at,
            (None, '}') => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

fn pairs(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for part in text.split([' ', ',', '|', '\t']) {
        if let Some((key, value)) = part.split_once(['=', ':']).filter(|(key, _)| !key.is_empty()) {
            found.push((key, value));
        } else if let Some((_, value)) =
            found.last_mut().filter(|(_, value): &&mut (&str, &str)| value.is_empty())
            && !part.is_empty()
        {
            // `fwd: 12.31` has a space between name and value.
            *value = part;
        }
        if found.len() == MOST_PAIRS {
            break;
        }
    }
    found
}

fn bars(text: &str) -> Vec<(&str, &str)> {
    let parts = text.split('|').take(MOST_PAIRS);
    parts.filter_map(|part| part.rsplit_once(": ")).map(|(key, value)| (key.trim(), value.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, notation: Notation, expected: &[(&str, &str)]) {
        let values = Values::read(text.as_bytes(), notation).unwrap_or_else(|| panic!("{text}"));
        for (name, value) in expected {
            assert_eq!(values.get(name).as_deref(), Some(*value), "{name} of {text}");
        }
    }

    #[test]
    fn four_notations() {
        check(
            r#"{"step": 1, "data": {"train_step_timing in s": 25.1}}"#,
            Notation::Json,
            &[("step", "1"), ("data.train_step_timing in s", "25.1")],
        );
        check(
            "{'loss': 0.06, 'lrs': [1, 2], 'epoch': '5.27', 'x': tensor(2.5, device='cuda:0')}",
            Notation::Python,
            &[("loss", "0.06"), ("epoch", "'5.27'"), ("x", "tensor(2.5, device='cuda:0')")],
        );
        check(
            " - timing_s/gen:22.477 - perf/throughput:np.float64(812.3)",
            Notation::Pairs,
            &[("timing_s/gen", "22.477"), ("perf/throughput", "np.float64(812.3)")],
        );
        check(
            "loss=14.351, ppl=20899.56, wall=1061",
            Notation::Pairs,
            &[("ppl", "20899.56"), ("wall", "1061")],
        );
        check(
            " fwd_microstep: 12.31 | bwd: 30.20",
            Notation::Pairs,
            &[("fwd_microstep", "12.31"), ("bwd", "30.20")],
        );
        check(
            " consumed samples:   50 | lm loss: 1.08E+01 | grad norm: 0.150 |",
            Notation::Bars,
            &[("consumed samples", "50"), ("lm loss", "1.08E+01")],
        );
        for (text, notation) in [("{'a", Notation::Python), ("[1", Notation::Json), ("x", Notation::Python)] {
            assert!(Values::read(text.as_bytes(), notation).is_none(), "{text}");
        }
    }
}
