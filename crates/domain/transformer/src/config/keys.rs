//! Typed access to the keys of a configuration; every refusal names the key and its line.

use std::ops::RangeInclusive;

use bedplate_diag::{Place, Source};
use serde_json::Value;

use super::Object;
use crate::ModelError;
use crate::check::{MOST_ELEMENTS, MOST_LAYERS};

/// The transformers default of a key that released configurations leave out.
pub(super) type Defaults = &'static [(&'static str, u64)];

/// One JSON object of a configuration. A key that is `null` counts as not given.
#[derive(Clone)]
pub(super) struct Keys<'a> {
    source: Source<'a>,
    object: &'a Object,
    /// The object around this one.
    outer: Option<&'a Object>,
    /// Where in the text this object begins, to find the lines of its keys.
    start: usize,
    model_type: &'a str,
    defaults: Defaults,
}

impl<'a> Keys<'a> {
    pub(super) fn new(source: Source<'a>, object: &'a Object) -> Self {
        Self { source, object, outer: None, start: 0, model_type: "", defaults: &[] }
    }

    pub(super) fn inside(self, outer: &Keys<'a>) -> Self {
        Self { outer: Some(outer.object), ..self }
    }

    pub(super) fn of_type(self, model_type: &'a str, defaults: Defaults) -> Self {
        Self { model_type, defaults, ..self }
    }

    /// A nested object, without defaults.
    pub(super) fn section(&self, key: &'static str) -> Result<Option<Keys<'a>>, ModelError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(object)) => {
                let start = self.offset(key).unwrap_or(self.start);
                Ok(Some(Keys { object, outer: None, start, defaults: &[], ..*self }))
            }
            Some(_) => Err(self.wrong(key, "an object")),
        }
    }

    pub(super) fn size(&self, key: &'static str) -> Result<u64, ModelError> {
        self.size_of_any(&[key])
    }

    /// A size under the first of several names that is given.
    pub(super) fn size_of_any(&self, keys: &[&'static str]) -> Result<u64, ModelError> {
        self.required(keys, 1..=MOST_ELEMENTS)
    }

    pub(super) fn layer_count(&self, keys: &[&'static str]) -> Result<u64, ModelError> {
        self.required(keys, 1..=MOST_LAYERS)
    }

    pub(super) fn optional_size(&self, key: &'static str) -> Result<Option<u64>, ModelError> {
        self.whole_number(key, 1..=MOST_ELEMENTS)
    }

    /// A count that may be zero; 0 when not given.
    pub(super) fn count(&self, key: &'static str) -> Result<u64, ModelError> {
        Ok(self.whole_number(key, 0..=MOST_ELEMENTS)?.unwrap_or(0))
    }

    pub(super) fn flag(&self, key: &'static str, default: bool) -> Result<bool, ModelError> {
        match self.value(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(key, "true or false")),
        }
    }

    /// Multimodal configurations give this key for the whole model, next to the sections.
    pub(super) fn is_tied(&self, default: bool) -> Result<bool, ModelError> {
        let outside = self.outer.and_then(|outer| outer.get("tie_word_embeddings")?.as_bool());
        self.flag("tie_word_embeddings", outside.unwrap_or(default))
    }

    pub(super) fn word(&self, key: &'static str) -> Result<Option<&'a str>, ModelError> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or_else(|| self.wrong(key, "a string")),
        }
    }

    pub(super) fn words(&self, key: &'static str) -> Result<Option<Vec<&'a str>>, ModelError> {
        self.list(key, "a list of strings", Value::as_str)
    }

    pub(super) fn numbers(&self, key: &'static str) -> Result<Option<Vec<u64>>, ModelError> {
        self.list(key, "a list of whole numbers", Value::as_u64)
    }

    pub(super) fn wrong(&self, key: &'static str, expected: impl Into<String>) -> ModelError {
        self.wrong_part(key, expected, self.value(key).unwrap_or(&Value::Null))
    }

    /// The error for one item of a list or section.
    pub(super) fn wrong_part(
        &self,
        key: &'static str,
        expected: impl Into<String>,
        found: &Value,
    ) -> ModelError {
        ModelError::WrongValue { key, expected: expected.into(), found: shown(found), place: self.place(key) }
    }

    /// The line of a key, or the file when the key is not there.
    pub(super) fn place(&self, key: &str) -> Place {
        self.offset(key).map_or_else(|| self.source.whole(), |offset| self.source.place(offset))
    }

    pub(super) fn place_of_any(&self, keys: &[&str]) -> Place {
        let offset = keys.iter().find_map(|key| self.offset(key));
        offset.map_or_else(|| self.source.whole(), |offset| self.source.place(offset))
    }

    fn value(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn missing(&self, key: &'static str) -> ModelError {
        ModelError::MissingKey { key, model_type: self.model_type.to_owned(), place: self.source.whole() }
    }

    fn required(&self, keys: &[&'static str], range: RangeInclusive<u64>) -> Result<u64, ModelError> {
        for key in keys {
            if let Some(number) = self.whole_number(key, range.clone())? {
                return Ok(number);
            }
        }
        Err(self.missing(keys.first().copied().unwrap_or_default()))
    }

    fn whole_number(&self, key: &'static str, range: RangeInclusive<u64>) -> Result<Option<u64>, ModelError> {
        match self.object.get(key) {
            None => Ok(self.default(key)),
            Some(Value::Null) => Ok(None),
            Some(value) => {
                let expected = format!("a whole number from {} to {}", range.start(), range.end());
                let number = value.as_u64().filter(|number| range.contains(number));
                number.map(Some).ok_or_else(|| self.wrong(key, expected))
            }
        }
    }

    fn default(&self, key: &str) -> Option<u64> {
        self.defaults.iter().find(|(known, _)| *known == key).map(|(_, value)| *value)
    }

    fn list<T>(
        &self,
        key: &'static str,
        expected: &str,
        item: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, ModelError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let items = value.as_array().and_then(|items| items.iter().map(item).collect());
        items.map(Some).ok_or_else(|| self.wrong(key, expected))
    }

    /// The first `"key":` at or after the beginning of this object. Good enough to point a reader at.
    fn offset(&self, key: &str) -> Option<usize> {
        let quoted = format!("\"{key}\"");
        let text = &self.source.text[self.start..];
        let mut hits = text.match_indices(&quoted);
        let hit = hits.find(|(at, _)| text[at + quoted.len()..].trim_start().starts_with(':'));
        hit.map(|(at, _)| self.start + at)
    }
}

/// The kind of a JSON value in words.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A short value verbatim, or the kind of a long one.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 40;
    match value {
        Value::Array(_) | Value::Object(_) => kind(value).to_owned(),
        Value::String(text) if text.chars().count() > LONGEST => kind(value).to_owned(),
        short => short.to_string(),
    }
}
