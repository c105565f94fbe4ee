//! One line of JSON and the text in it.

use bedplate_diag::{Place, Source};
use serde_json::Value;

pub(crate) fn parse(line: &str) -> Result<Value, String> {
    serde_json::from_str(line).map_err(|error| {
        let message = error.to_string();
        format!("it is not JSON: {}", message.split(" at line ").next().unwrap_or_default())
    })
}

pub(crate) fn text_of<'a>(record: &'a Value, field: &str) -> Result<&'a str, String> {
    let object = record.as_object().ok_or("it is not an object")?;
    let Some(value) = object.get(field) else {
        let keys: Vec<&str> = object.keys().map(String::as_str).take(12).collect();
        return Err(format!("it has no key `{field}`, but {}", keys.join(", ")));
    };
    value.as_str().ok_or_else(|| format!("its `{field}` is not a text"))
}

/// Where a line is in its file.
pub(crate) fn place(file: &str, number: usize, line: &str) -> Place {
    Place { line: Some(number), ..Source::new(file, line).line(1) }
}
