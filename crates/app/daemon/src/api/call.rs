//! One request, as its handler sees it.

use std::sync::Arc;
use std::time::Instant;

use bedplate_http::{BodyError, read_body};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::upgrade::OnUpgrade;
use serde::de::DeserializeOwned;

use super::dispatch::App;
use super::error::ApiError;
use super::query::Query;
use crate::tokens::Identity;

pub(crate) struct ApiCall {
    pub(crate) app: Arc<App>,
    /// Who asks; absent where nobody needs to be known.
    pub(crate) identity: Option<Identity>,
    /// What stood in the places of the path's parameters.
    pub(crate) parameters: Vec<String>,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Incoming,
    pub(crate) upgrade: Option<OnUpgrade>,
}

impl ApiCall {
    pub(crate) fn identity(&self) -> &Identity {
        self.identity.as_ref().expect("the route asks for a role")
    }

    /// Waits until what the user's requests have touched before leaves room for so many jobs more.
    pub(crate) async fn pay(&self, jobs: usize) {
        let wait = self.app.clients.pay(&self.identity().user, jobs, Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(crate) fn content_type(&self) -> &str {
        self.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// The whole body, if it comes in time and is not too large.
    pub(crate) async fn take_body(&mut self) -> Result<Bytes, ApiError> {
        let read = read_body(&self.headers, &mut self.body, self.app.server.limits()).await;
        read.map_err(|error| match error {
            BodyError::TooLarge { limit } => ApiError::TooLarge { limit },
            BodyError::TooSlow { seconds } => ApiError::TooSlow { what: "the body", seconds },
            BodyError::Broken { why } => ApiError::Malformed { what: "the body", why },
        })
    }

    /// The body as JSON; an empty one counts as `{}`.
    pub(crate) async fn take_json<T: DeserializeOwned>(&mut self) -> Result<T, ApiError> {
        let kind = self.content_type().split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        let body = self.take_body().await?;
        if !body.is_empty() && kind != "application/json" {
            return Err(ApiError::WrongType { found: kind, allowed: "application/json" });
        }
        let text = if body.is_empty() { &b"{}"[..] } else { &body[..] };
        let read = serde_json::from_slice(text);
        read.map_err(|error| ApiError::Malformed { what: "the body", why: error.to_string() })
    }
}
