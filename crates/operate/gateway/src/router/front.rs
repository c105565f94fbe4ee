//! What a router answers itself, and the way of the rest to a replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bedplate_http::{Answer, HeaderValue, Method, Request, Server, StatusCode, json, read_body};
use bedplate_record::Counter;
use serde_json::json;

use super::asked::AskedRequest;
use super::listing;
use super::members::Members;
use super::passing::{self, Passed};
use crate::admission::{Owner, ReadingTurns, Shares, is_large, room_for_body};
use crate::cross_origin::CrossOrigin;
use crate::keys::ApiKeys;
use crate::metrics::GatewayMetrics;
use crate::refusal::ApiError;
use crate::routes::status;

/// Everything that handlers need.
pub(super) struct Front {
    pub(super) members: Members,
    pub(super) server: Server,
    pub(super) metrics: GatewayMetrics,
    pub(super) retries: Counter,
    pub(super) replica_key: Option<HeaderValue>,
    pub(super) keys: ApiKeys,
    pub(super) cross_origin: CrossOrigin,
    pub(super) slots: Arc<Shares>,
    /// Bytes of bodies, which are kept until the request is answered.
    pub(super) bodies: Arc<Shares>,
    /// Reading small and large bodies.
    pub(super) reading: [Arc<ReadingTurns>; 2],
    pub(super) requests: usize,
    pub(super) request: Duration,
    pub(super) tries: usize,
    pub(super) is_draining: AtomicBool,
}

/// Paths with an entry of their own in the metrics.
const KNOWN: [&str; 9] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/models",
    "/tokenize",
    "/detokenize",
    "/health",
    "/metrics",
];

pub(super) async fn answer(front: Arc<Front>, request: Request) -> Answer {
    let origin = request.headers().get("origin").cloned();
    if let Some(answer) = front.cross_origin.preflight(&request) {
        return answer;
    }
    let path = request.uri().path();
    let path = KNOWN.iter().find(|known| **known == path).copied().unwrap_or("other");
    let mut answer = handle(&front, request).await.unwrap_or_else(ApiError::into_answer);
    front.metrics.answered(path, answer.status().as_u16());
    front.cross_origin.permit(origin.as_ref(), answer.headers_mut());
    answer
}

async fn handle(front: &Arc<Front>, request: Request) -> Result<Answer, ApiError> {
    let path = request.uri().path().to_owned();
    let is_question = matches!(*request.method(), Method::GET | Method::HEAD);
    match path.as_str() {
        "/" if is_question => Ok(status::page()),
        "/health" | "/ping" if is_question => Ok(json(StatusCode::OK, &json!({ "status": "ok" }))),
        "/ready" if is_question => ready(front),
        "/metrics" if is_question => Ok(listing::metrics(front)),
        "/version" if is_question => Ok(status::version()),
        _ => {
            let tenant = front.keys.identify(request.headers())?;
            let owner = Owner::of(&front.keys, tenant, &request);
            match path.strip_prefix("/v1/models").or_else(|| path.strip_prefix("/models")) {
                Some("") if is_question => Ok(listing::models(front)),
                Some(name) if is_question => listing::model(front, name.trim_start_matches('/')),
                _ => pass(front, request, path, owner).await,
            }
        }
    }
}

fn ready(front: &Front) -> Result<Answer, ApiError> {
    match front.members.has_one_in() {
        _ if front.is_draining.load(Ordering::Relaxed) => Err(ApiError::Draining),
        false => Err(ApiError::NoReplica),
        true => Ok(json(StatusCode::OK, &json!({ "status": "ok" }))),
    }
}

async fn pass(front: &Arc<Front>, request: Request, path: String, owner: Owner) -> Result<Answer, ApiError> {
    let is_passed = path.starts_with("/v1/") || matches!(path.as_str(), "/tokenize" | "/detokenize");
    if !is_passed {
        return Err(ApiError::NoSuchPath { path: path.chars().take(200).collect() });
    }
    if request.method() != Method::POST {
        let method = request.method().to_string();
        return Err(ApiError::WrongMethod {
            method,
            path: path.chars().take(200).collect(),
            allowed: "POST",
        });
    }
    if front.is_draining.load(Ordering::Relaxed) {
        return Err(ApiError::Draining);
    }
    let (head, mut body) = request.into_parts();
    let limits = front.server.limits();
    let room = front.bodies.take(owner, room_for_body(&head.headers, limits)).ok_or(ApiError::Crowded)?;
    let body = read_body(&head.headers, &mut body, limits).await?;
    let read = body.clone();
    // Large prompts take a while to read.
    let turn = front.reading[usize::from(is_large(&body))].wait(owner).await;
    let asked = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        AskedRequest::read(&read)
    });
    let asked = asked.await.unwrap_or_default();
    let slot = front.slots.take(owner, 1).ok_or(ApiError::TooMany { limit: front.requests })?;
    let path = head.uri.path_and_query().map_or(path, |path| path.as_str().to_owned());
    let passed = Passed { method: head.method, path, headers: head.headers, body };
    let mut answer = passing::pass(front, passed, asked).await?;
    answer.body_mut().hold((slot, room));
    Ok(answer)
}
