//! Typed access to the keys of a configuration; every refusal names the key and its line.

use std::ops::RangeInclusive;

use bedplate_diag::{Place, Source};
use serde_json::Value;

use super::Object;
use crate::ModelError;
use crate::check::{MOST_ELEMENTS, MOST_LAYERS};

/// The transformers default of keys that may be left out.
pub(super) type Defaults = &'static [(&'static str, u64)];

/// Keys and other names of theirs.
pub(super) type Aliases = &'static [(&'static str, &'static str)];

/// One JSON object of a configuration. A key that is `null` counts as not given.
#[derive(Debug, Clone)]
pub struct Keys<'a> {
    source: Source<'a>,
    object: &'a Object,
    /// The object around this one.
    outer: Option<&'a Object>,
    /// Where in the text this object begins, to find the lines of its keys.
    start: usize,
    model_type: &'a str,
    defaults: Defaults,
    aliases: Aliases,
}

impl<'a> Keys<'a> {
    pub(super) fn new(source: Source<'a>, object: &'a Object) -> Self {
        Self { source, object, outer: None, start: 0, model_type: "", defaults: &[], aliases: &[] }
    }

    pub(super) fn inside(self, outer: &Keys<'a>) -> Self {
        Self { outer: Some(outer.object), ..self }
    }

    pub(super) fn of_type(self, model_type: &'a str, defaults: Defaults, aliases: Aliases) -> Self {
        Self { model_type, defaults, aliases, ..self }
    }

    pub(super) fn object(&self) -> &'a Object {
        self.object
    }

    /// The names of the keys that are given.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.object.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key.as_str())
    }

    /// A nested object, without defaults.
    pub fn section(&self, key: &'static str) -> Result<Option<Keys<'a>>, ModelError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(object)) => {
                let start = self.offset(key).unwrap_or(self.start);
                Ok(Some(Keys { object, outer: None, start, defaults: &[], aliases: &[], ..*self }))
            }
            Some(_) => Err(self.wrong(key, "an object")),
        }
    }

    pub(super) fn size(&self, key: &'static str) -> Result<u64, ModelError> {
        self.optional_size(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn layer_count(&self, key: &'static str) -> Result<u64, ModelError> {
        self.whole_number(key, 1..=MOST_LAYERS)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn optional_size(&self, key: &'static str) -> Result<Option<u64>, ModelError> {
        self.whole_number(key, 1..=MOST_ELEMENTS)
    }

    /// A size that may be left out, from 1 to a most.
    pub(super) fn size_up_to(&self, key: &'static str, most: u64) -> Result<Option<u64>, ModelError> {
        self.whole_number(key, 1..=most)
    }

    /// An error when a key and another name of it are given with different values.
    pub(super) fn expect_one_value_each(&self) -> Result<(), ModelError> {
        for (key, other) in self.aliases {
            if let (Some(value), Some(same)) = (self.object.get(*key), self.object.get(*other))
                && value != same
            {
                return Err(self.wrong(key, format!("the same as `{other}`, which means the same")));
            }
        }
        Ok(())
    }

    /// A count that may be zero; 0 when not given.
    pub(super) fn count(&self, key: &'static str) -> Result<u64, ModelError> {
        Ok(self.whole_number(key, 0..=MOST_ELEMENTS)?.unwrap_or(0))
    }

    pub fn flag(&self, key: &'static str, default: bool) -> Result<bool, ModelError> {
        match self.value(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(key, "true or false")),
        }
    }

    /// A finite number.
    pub fn number(&self, key: &'static str) -> Result<Option<f64>, ModelError> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| self.wrong(key, "a number")),
        }
    }

    /// A number in a range, or this one when none is given.
    pub fn number_within(
        &self,
        key: &'static str,
        default: f64,
        range: RangeInclusive<f64>,
    ) -> Result<f64, ModelError> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        match self.number(key)? {
            None => Ok(default),
            Some(number) if range.contains(&number) => Ok(number),
            Some(_) => Err(self.wrong(key, expected)),
        }
    }

    /// Multimodal configurations give this key for the whole model, next to the sections.
    pub(super) fn is_tied(&self, default: bool) -> Result<bool, ModelError> {
        let outside = self.outer.and_then(|outer| outer.get("tie_word_embeddings")?.as_bool());
        self.flag("tie_word_embeddings", outside.unwrap_or(default))
    }

    pub fn word(&self, key: &'static str) -> Result<Option<&'a str>, ModelError> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or_else(|| self.wrong(key, "a string")),
        }
    }

    pub(super) fn words(&self, key: &'static str) -> Result<Option<Vec<&'a str>>, ModelError> {
        self.list(key, "a list of strings", Value::as_str)
    }

    pub fn numbers(&self, key: &'static str) -> Result<Option<Vec<u64>>, ModelError> {
        self.list(key, "a list of whole numbers", Value::as_u64)
    }

    /// Finite numbers.
    pub fn decimals(&self, key: &'static str) -> Result<Option<Vec<f64>>, ModelError> {
        self.list(key, "a list of numbers", Value::as_f64)
    }

    /// Whether a key is there and says that there is none of what it is about.
    pub fn is_null(&self, key: &str) -> bool {
        self.given(key).is_some_and(Value::is_null)
    }

    /// The error for a key whose value is not what it must be.
    pub fn wrong(&self, key: &'static str, expected: impl Into<String>) -> ModelError {
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
    pub fn place(&self, key: &str) -> Place {
        let others = self.aliases.iter().filter(|(canonical, _)| *canonical == key).map(|(_, other)| *other);
        self.place_of_any(&[key].into_iter().chain(others).collect::<Vec<_>>())
    }

    pub(super) fn place_of_any(&self, keys: &[&str]) -> Place {
        let offset = keys.iter().find_map(|key| self.offset(key));
        offset.map_or_else(|| self.source.whole(), |offset| self.source.place(offset))
    }

    fn value(&self, key: &str) -> Option<&'a Value> {
        self.given(key).filter(|value| !value.is_null())
    }

    /// The value under the key or, where it is not there, under another name of it.
    fn given(&self, key: &str) -> Option<&'a Value> {
        let others = self.aliases.iter().filter(|(canonical, _)| *canonical == key);
        self.object.get(key).or_else(|| others.filter_map(|(_, other)| self.object.get(*other)).next())
    }

    /// The error for a key that must be there.
    pub fn missing(&self, key: &'static str) -> ModelError {
        ModelError::MissingKey { key, model_type: self.model_type.to_owned(), place: self.source.whole() }
    }

    fn whole_number(&self, key: &'static str, range: RangeInclusive<u64>) -> Result<Option<u64>, ModelError> {
        match self.given(key) {
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
pub(super) fn shown(value: &Value) -> String {
    const LONGEST: usize = 40;
    match value {
        Value::Array(_) | Value::Object(_) => kind(value).to_owned(),
        Value::String(text) if text.chars().count() > LONGEST => kind(value).to_owned(),
        short => short.to_string(),
    }
}
