//! Answers of the API.

use bedplate_http::StatusCode;
use serde::Serialize;

pub(crate) use bedplate_http::{Answer, Body, json, typed, with_header};

pub(crate) fn ok(value: &impl Serialize) -> Answer {
    json(StatusCode::OK, value)
}
