//! Values of Slurm's JSON, which every version writes in another way.
//!
//! A number is `5`, `"5"` or `{"set": true, "infinite": false, "number": 5}`; nothing is `null`, `""`, `-1`, 4294967294
//! or an object that is not set; one of several flags is a word or a list of words.

use serde_json::Value;

/// Slurm's marks for "not given" and "without end", in 32 and 64 bits.
const NO_VALUES: [u64; 4] = [0xffff_ffff, 0xffff_fffe, 0xffff_ffff_ffff_ffff, 0xffff_ffff_ffff_fffe];

/// A field by the first of its names that the object has.
pub(super) fn field<'a>(object: &'a Value, names: &[&str]) -> &'a Value {
    let found = names.iter().map(|name| &object[*name]).find(|value| !value.is_null());
    found.unwrap_or(&Value::Null)
}

/// A number that is given and finite.
pub(super) fn number(value: &Value) -> Option<u64> {
    let found = match value {
        Value::Object(object) if object.contains_key("number") => {
            let is = |name: &str, usual: bool| object.get(name).and_then(Value::as_bool).unwrap_or(usual);
            (is("set", true) && !is("infinite", false)).then(|| number(&object["number"])).flatten()
        }
        Value::String(text) => text.trim().parse().ok(),
        Value::Number(number) => {
            number.as_u64().or_else(|| number.as_f64().filter(|real| *real >= 0.0).map(|real| real as u64))
        }
        _ => None,
    };
    found.filter(|number| !NO_VALUES.contains(number))
}

/// A moment in seconds since 1970; 0 is none.
pub(super) fn moment(value: &Value) -> Option<u64> {
    number(value).filter(|seconds| *seconds > 0)
}

pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) if text != "(null)" => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => String::new(),
    }
}

/// One word or several, in capitals.
pub(super) fn words(value: &Value) -> Vec<String> {
    let upper = |text: &str| text.to_ascii_uppercase();
    match value {
        Value::String(text) if !text.is_empty() => text.split([',', '+', ' ']).map(upper).collect(),
        Value::Array(list) => list.iter().filter_map(Value::as_str).map(upper).collect(),
        _ => Vec::new(),
    }
}

/// How many of a resource a text such as `cpu=8,node=2,gres/gpu:h100=16` has.
pub(super) fn resource(text: &str, name: &str) -> Option<u64> {
    let entries = text.split(',').filter_map(|entry| entry.split_once('='));
    let mut exact = None;
    let mut typed = 0;
    for (key, value) in entries {
        let count = value.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse::<u64>().ok();
        if key == name {
            exact = count;
        } else if key.strip_prefix(name).is_some_and(|rest| rest.starts_with(':')) {
            typed += count.unwrap_or(0);
        }
    }
    exact.or((typed > 0).then_some(typed))
}

/// The devices of a node as `gpu:h100:8(S:0-1)` or `gpu:8` has them: their type and number.
pub(super) fn devices(gres: &str) -> (String, u64) {
    let (mut kind, mut count) = (String::new(), 0);
    for entry in split_outside_brackets(gres) {
        let plain = entry.split('(').next().unwrap_or_default();
        let Some(rest) = plain.strip_prefix("gpu:").or_else(|| plain.strip_prefix("gres/gpu:")) else {
            continue;
        };
        let (name, number) = rest.rsplit_once(':').unwrap_or(("", rest));
        count += number.parse().unwrap_or(0);
        if kind.is_empty() {
            kind = name.to_owned();
        }
    }
    (kind, count)
}

/// The indices in `gpu:h100:3(IDX:0-1,5)`.
pub(super) fn device_indices(gres: &str) -> Vec<u32> {
    let mut indices = Vec::new();
    for entry in split_outside_brackets(gres).filter(|entry| entry.starts_with("gpu")) {
        let Some((_, list)) = entry.split_once("IDX:") else { continue };
        for range in list.trim_end_matches(')').split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
                indices.extend((first..=last).take(1024));
            }
        }
    }
    indices
}

/// Parts between commas that stand outside brackets.
pub(super) fn split_outside_brackets(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |c: char| {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
    .filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_come_in_many_forms() {
        for value in
            [json!(5), json!("5"), json!({ "set": true, "infinite": false, "number": 5 }), json!(5.0)]
        {
            assert_eq!(number(&value), Some(5), "{value}");
        }
        for value in [
            json!(null),
            json!(-1),
            json!(4_294_967_294_u32),
            json!({ "set": false, "infinite": false, "number": 0 }),
            json!({ "set": true, "infinite": true, "number": 0 }),
            json!("soon"),
        ] {
            assert_eq!(number(&value), None, "{value}");
        }
        assert_eq!(moment(&json!(0)), None);
    }

    #[test]
    fn words_are_one_or_many() {
        assert_eq!(words(&json!("RUNNING")), ["RUNNING"]);
        assert_eq!(words(&json!(["CANCELLED", "completing"])), ["CANCELLED", "COMPLETING"]);
        assert_eq!(words(&json!("idle+drain")), ["IDLE", "DRAIN"]);
        assert!(words(&json!(null)).is_empty());
    }

    #[test]
    fn resources_and_devices_are_counted() {
        assert_eq!(resource("cpu=8,mem=8000M,gres/gpu=16", "gres/gpu"), Some(16));
        assert_eq!(resource("cpu=8,gres/gpu:h100=8,gres/gpu:a100=4", "gres/gpu"), Some(12));
        assert_eq!(resource("cpu=8,gres/gpu=8,gres/gpu:h100=8", "gres/gpu"), Some(8));
        assert_eq!(resource("cpu=8", "gres/gpu"), None);
        assert_eq!(devices("gpu:h100:8(S:0-1),nic:2"), ("h100".to_owned(), 8));
        assert_eq!(devices("gpu:4"), (String::new(), 4));
        assert_eq!(devices("(null)"), (String::new(), 0));
        assert_eq!(device_indices("gpu:h100:3(IDX:0-1,5)"), [0, 1, 5]);
        assert!(device_indices("gpu:h100:0(IDX:N/A)").is_empty());
    }
}
