//! An owned parsed value with the byte range it came from.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value of a TOML or JSON document. Whole numbers are wider than any type read from them, so range is checked there.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Text(String),
    Integer(i128),
    Float(f64),
    Flag(bool),
    Time(String),
    List(Vec<Located>),
    Table(Vec<Entry>),
    /// JSON's `null`. As the value of a key it means that the key is absent.
    Nothing,
}

/// A value and its byte range in the text.
#[derive(Debug, Clone, PartialEq)]
pub struct Located {
    pub value: Value,
    pub span: Range<usize>,
}

/// A key of a table with its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub key: String,
    pub key_span: Range<usize>,
    pub located: Located,
}

impl Value {
    /// The type as a phrase for messages.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Text(_) => "a text",
            Value::Integer(_) | Value::Float(_) => "a number",
            Value::Flag(_) => "true or false",
            Value::Time(_) => "a date",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
            Value::Nothing => "null",
        }
    }
}

pub(crate) fn entries(table: DeTable<'_>) -> Vec<Entry> {
    let entry = |(key, value): (Spanned<_>, _)| Entry {
        key_span: key.span(),
        key: std::borrow::Cow::into_owned(key.into_inner()),
        located: located(value),
    };
    table.into_iter().map(entry).collect()
}

/// Recursion is bounded by the parser, which refuses documents nested too deeply.
fn located(value: Spanned<DeValue<'_>>) -> Located {
    let span = value.span();
    let value = match value.into_inner() {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(integer) => match i128::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::Float(f64::INFINITY),
        },
        // The parser has checked the form, so only overflow can fail, and that becomes infinity.
        DeValue::Float(float) => Value::Float(float.as_str().parse().unwrap_or(f64::INFINITY)),
        DeValue::Boolean(flag) => Value::Flag(flag),
        DeValue::Datetime(time) => Value::Time(time.to_string()),
        DeValue::Array(items) => Value::List(items.into_iter().map(located).collect()),
        DeValue::Table(table) => Value::Table(entries(table)),
    };
    Located { value, span }
}

/// JSON as the same kind of values, without places. Recursion is bounded by the parser here too.
pub(crate) fn json_entries(object: serde_json::Map<String, serde_json::Value>) -> Vec<Entry> {
    let entry = |(key, value)| Entry { key, key_span: 0..0, located: json_located(value) };
    object.into_iter().map(entry).collect()
}

fn json_located(value: serde_json::Value) -> Located {
    let value = match value {
        serde_json::Value::Null => Value::Nothing,
        serde_json::Value::Bool(flag) => Value::Flag(flag),
        serde_json::Value::Number(number) => match number.as_i128() {
            Some(integer) => Value::Integer(integer),
            None => Value::Float(number.as_f64().unwrap_or(f64::INFINITY)),
        },
        serde_json::Value::String(text) => Value::Text(text),
        serde_json::Value::Array(items) => Value::List(items.into_iter().map(json_located).collect()),
        serde_json::Value::Object(object) => Value::Table(json_entries(object)),
    };
    Located { value, span: 0..0 }
}
