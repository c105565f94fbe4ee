//! What the gateway says about itself: models, health, metrics.

use bedplate_http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderValue};
use bedplate_http::{Answer, Body, StatusCode, json, typed};
use bedplate_record::Exposition;
use serde_json::{Value, json};

use crate::gateway::Gateway;
use crate::metrics;
use crate::model::ServedModel;
use crate::refusal::ApiError;

const PAGE: &str = include_str!("../page.html");
/// The page is one file and talks to this server alone.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `GET /v1/models`, or one of them.
pub(crate) fn models(gateway: &Gateway, name: Option<&str>) -> Result<Answer, ApiError> {
    let mut all = gateway.models().flat_map(|model| model.names().map(|name| entry(model, name)));
    match name {
        None => Ok(json(StatusCode::OK, &json!({ "object": "list", "data": all.collect::<Vec<Value>>() }))),
        Some(name) => {
            let found = all.find(|entry| entry["id"] == name);
            let missing = || ApiError::NoSuchModel { model: name.to_owned(), served: gateway.served() };
            found.map(|entry| json(StatusCode::OK, &entry)).ok_or_else(missing)
        }
    }
}

fn entry(model: &ServedModel, name: &str) -> Value {
    let is_other = name != model.name();
    json!({ "id": name, "object": "model", "created": model.created, "owned_by": "bedplate", "root": model.name(),
            "parent": is_other.then(|| model.name()), "max_model_len": model.about().context_limit })
}

/// `GET /health`: whether the process answers and no model has stopped.
pub(crate) fn health(gateway: &Gateway) -> Result<Answer, ApiError> {
    match gateway.models().find(|model| model.has_stopped()) {
        Some(model) => {
            Err(ApiError::Stopped { reason: format!("`{}` takes no more requests", model.name()) })
        }
        None => Ok(json(StatusCode::OK, &json!({ "status": "ok" }))),
    }
}

/// `GET /ready`: whether new requests are taken.
pub(crate) fn ready(gateway: &Gateway) -> Result<Answer, ApiError> {
    if gateway.is_draining() {
        return Err(ApiError::Draining);
    }
    health(gateway)
}

pub(crate) fn version() -> Answer {
    json(StatusCode::OK, &json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// `GET /metrics`
pub(crate) fn metrics(gateway: &Gateway) -> Answer {
    let mut text = Exposition::with_room(32 << 10);
    metrics::write_models(&mut text, &gateway.models);
    gateway.metrics.write(&mut text);
    let connections = gateway.server.connections();
    text.gauge("bedplate_http_connections", "Open connections.", connections.open() as f64);
    text.counter(
        "bedplate_http_connections_refused_total",
        "Connections closed at once because there were too many.",
        connections.refused() as u64,
    );
    if let Some(trace) = &gateway.trace {
        let help = "Lines of the trace that the disk was too slow for.";
        text.counter("bedplate_gateway_trace_lines_dropped_total", help, trace.dropped.get());
    }
    typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", Body::whole(text.into_string()))
}

/// `GET /`: a page for trying the models in a browser.
pub(crate) fn page() -> Answer {
    let mut answer = typed(StatusCode::OK, "text/html; charset=utf-8", Body::whole(PAGE));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    answer
}
