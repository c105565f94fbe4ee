//! Reading JSON with names in errors: a wrong value is named by its path, an unknown key is ignored as OpenAI does.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::presence::Presence;
use crate::refusal::ApiError;

/// An object and where it is.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: String,
    /// Who waits for what is made of them, where that is known.
    client: Presence,
}

impl<'a> Fields<'a> {
    /// The whole body.
    pub(crate) fn of_body(body: &'a Value, client: &Presence) -> Result<Self, ApiError> {
        let object = body.as_object().ok_or_else(|| ApiError::Invalid {
            message: format!("the body must be a JSON object and is {}", kind(body)),
            param: None,
            code: None,
        })?;
        Ok(Self { object, path: String::new(), client: client.clone() })
    }

    pub(crate) fn of(value: &'a Value, path: &str) -> Result<Self, ApiError> {
        let object = value.as_object().ok_or_else(|| wrong(path, "an object", value))?;
        Ok(Self { object, path: path.to_owned(), client: Presence::default() })
    }

    pub(crate) fn client(&self) -> &Presence {
        &self.client
    }

    pub(crate) fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// A value that is there and not null.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn required(&self, key: &str) -> Result<&'a Value, ApiError> {
        self.get(key)
            .ok_or_else(|| ApiError::field(self.path(key), format!("`{}` is missing", self.path(key))))
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, ApiError> {
        let read = |value: &'a Value| value.as_str().ok_or_else(|| wrong(&self.path(key), "a string", value));
        self.get(key).map(read).transpose()
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, ApiError> {
        let read =
            |value: &Value| value.as_bool().ok_or_else(|| wrong(&self.path(key), "true or false", value));
        self.get(key).map(read).transpose()
    }

    pub(crate) fn list(&self, key: &str) -> Result<Option<&'a [Value]>, ApiError> {
        let read = |value: &'a Value| match value.as_array() {
            Some(list) => Ok(list.as_slice()),
            None => Err(wrong(&self.path(key), "a list", value)),
        };
        self.get(key).map(read).transpose()
    }

    pub(crate) fn object(&self, key: &str) -> Result<Option<Fields<'a>>, ApiError> {
        self.get(key).map(|value| Fields::of(value, &self.path(key))).transpose()
    }

    pub(crate) fn map(&self) -> &'a Map<String, Value> {
        self.object
    }

    pub(crate) fn number(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        self.get(key).map(|value| number(value, &self.path(key), &range)).transpose()
    }

    pub(crate) fn whole(&self, key: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        self.get(key).map(|value| whole(value, &self.path(key), &range)).transpose()
    }
}

pub(crate) fn number(value: &Value, path: &str, range: &RangeInclusive<f64>) -> Result<f64, ApiError> {
    let number = value.as_f64().ok_or_else(|| wrong(path, "a number", value))?;
    let message =
        || format!("`{path}` must be between {} and {} and is {number}", range.start(), range.end());
    if range.contains(&number) { Ok(number) } else { Err(ApiError::field(path, message())) }
}

pub(crate) fn whole(value: &Value, path: &str, range: &RangeInclusive<i64>) -> Result<i64, ApiError> {
    let read = value
        .as_i64()
        .or_else(|| value.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i64));
    let number = read.ok_or_else(|| wrong(path, "a whole number", value))?;
    let message =
        || format!("`{path}` must be between {} and {} and is {number}", range.start(), range.end());
    if range.contains(&number) { Ok(number) } else { Err(ApiError::field(path, message())) }
}

pub(crate) fn text<'a>(value: &'a Value, path: &str) -> Result<&'a str, ApiError> {
    value.as_str().ok_or_else(|| wrong(path, "a string", value))
}

/// A value of the wrong type.
pub(crate) fn wrong(path: &str, wanted: &str, found: &Value) -> ApiError {
    ApiError::field(path, format!("`{path}` must be {wanted} and is {}", kind(found)))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A body as JSON.
pub(crate) fn parse(body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::Invalid {
        message: format!("the body is not valid JSON: {error}"),
        param: None,
        code: None,
    })
}
