//! Why a request gets no answer, in the shape that OpenAI's clients read.

use bedplate_batching::RequestRefusal;
use bedplate_diag::nearest;
use bedplate_http::header::{CONNECTION, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use bedplate_http::{Answer, BodyError, StatusCode, json};
use bedplate_serve::Refusal;
use serde_json::{Value, json};

/// A request that is refused or failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("{message}")]
    Invalid { message: String, param: Option<String>, code: Option<&'static str> },
    #[error("the model `{model}` does not exist{}", served_hint(.served, .model))]
    NoSuchModel {
        model: String,
        /// The names that are served.
        served: Vec<String>,
    },
    #[error("there is nothing at {path}")]
    NoSuchPath { path: String },
    #[error("{path} does not take {method}; it takes {allowed}")]
    WrongMethod { method: String, path: String, allowed: &'static str },
    #[error("the request has no API key, or a wrong one: send `Authorization: Bearer KEY`")]
    Unauthorized,
    #[error("{0}")]
    Body(BodyError),
    #[error("{limit} requests are under way, as many as this server takes; try again in a moment")]
    TooMany { limit: usize },
    #[error("this server is reading as much as it can at once; try again in a moment")]
    Crowded,
    #[error("the server is about to end and takes no more requests")]
    Draining,
    #[error("no replica is ready to answer; try again in a moment")]
    NoReplica,
    #[error("the replica that answered {why}")]
    ReplicaLost { why: String },
    #[error("the model has stopped: {reason}")]
    Stopped { reason: String },
    #[error("the answer took longer than {seconds} s and was given up")]
    TookTooLong { seconds: u64 },
    #[error("the answer failed: {reason}")]
    Failed { reason: String },
}

/// Names that a refusal lists.
const MOST_NAMES: usize = 8;

/// What is served, and which of it was probably meant.
fn served_hint(served: &[String], asked: &str) -> String {
    if served.is_empty() {
        return String::new();
    }
    let meant = nearest(asked, served.iter().map(String::as_str));
    let meant = meant.map_or(String::new(), |name| format!("; did you mean `{name}`?"));
    let names: Vec<String> = served.iter().take(MOST_NAMES).map(|name| format!("`{name}`")).collect();
    let more = match served.len().saturating_sub(MOST_NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{meant}; served here: {}{more}", names.join(", "))
}

impl ApiError {
    /// A field that cannot be used as it is.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), param: Some(param.into()), code: None }
    }

    /// A panic of ours, with what it said.
    pub(crate) fn bug(what: &str) -> Self {
        Self::Failed { reason: format!("a bug in this program: {what}") }
    }

    pub(crate) fn coded(param: &str, code: &'static str, message: String) -> Self {
        Self::Invalid { message, param: Some(param.to_owned()), code: Some(code) }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            ApiError::Invalid { .. } => StatusCode::BAD_REQUEST,
            ApiError::NoSuchModel { .. } | ApiError::NoSuchPath { .. } => StatusCode::NOT_FOUND,
            ApiError::WrongMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
            ApiError::Unauthorized => StatusCode::UNAUTHORIZED,
            ApiError::Body(error) => error.status(),
            ApiError::TooMany { .. } | ApiError::Crowded => StatusCode::TOO_MANY_REQUESTS,
            ApiError::Draining | ApiError::Stopped { .. } | ApiError::NoReplica => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ApiError::ReplicaLost { .. } => StatusCode::BAD_GATEWAY,
            ApiError::TookTooLong { .. } => StatusCode::GATEWAY_TIMEOUT,
            ApiError::Failed { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn kind(&self) -> &'static str {
        match self.status().as_u16() {
            401 => "authentication_error",
            429 => "rate_limit_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        }
    }

    fn param(&self) -> Option<&str> {
        match self {
            ApiError::Invalid { param, .. } => param.as_deref(),
            ApiError::NoSuchModel { .. } => Some("model"),
            _ => None,
        }
    }

    fn code(&self) -> Option<&'static str> {
        match self {
            ApiError::Invalid { code, .. } => *code,
            ApiError::NoSuchModel { .. } => Some("model_not_found"),
            ApiError::NoSuchPath { .. } => Some("unknown_url"),
            ApiError::WrongMethod { .. } => Some("method_not_supported"),
            ApiError::Unauthorized => Some("invalid_api_key"),
            ApiError::Body(BodyError::TooLarge { .. }) => Some("request_too_large"),
            ApiError::Body(_) => None,
            ApiError::TooMany { .. } | ApiError::Crowded => Some("rate_limit_exceeded"),
            ApiError::Draining | ApiError::Stopped { .. } | ApiError::NoReplica => {
                Some("service_unavailable")
            }
            ApiError::ReplicaLost { .. } => Some("replica_lost"),
            ApiError::TookTooLong { .. } => Some("timeout"),
            ApiError::Failed { .. } => None,
        }
    }

    /// `{"error": …}`.
    pub(crate) fn to_json(&self) -> Value {
        let (kind, param, code) = (self.kind(), self.param(), self.code());
        json!({ "error": { "message": self.to_string(), "type": kind, "param": param, "code": code } })
    }

    pub(crate) fn into_answer(self) -> Answer {
        let mut answer = json(self.status(), &self.to_json());
        let headers = answer.headers_mut();
        match &self {
            ApiError::Unauthorized => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            ApiError::TooMany { .. }
            | ApiError::Draining
            | ApiError::Stopped { .. }
            | ApiError::NoReplica
            | ApiError::ReplicaLost { .. } => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            // The rest of the body is not read.
            ApiError::Body(_) | ApiError::Crowded => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        answer
    }
}

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        ApiError::Body(error)
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::Never(RequestRefusal::ContextTooLong { .. }) => {
                ApiError::coded("messages", "context_length_exceeded", message)
            }
            Refusal::Never(_) => ApiError::Invalid { message, param: None, code: None },
            Refusal::NoSuchToken { .. } => ApiError::field("prompt", message),
            Refusal::NoSuchAdapter { name } => ApiError::NoSuchModel { model: name, served: Vec::new() },
            Refusal::Full { limit } => ApiError::TooMany { limit: limit as usize },
            Refusal::Draining => ApiError::Draining,
            Refusal::Stopped { reason } => ApiError::Stopped { reason },
        }
    }
}
