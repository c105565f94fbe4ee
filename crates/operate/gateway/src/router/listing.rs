//! What a router tells about its replicas: their models, and what it counted for each.

use bedplate_http::{Answer, Body, StatusCode, json, typed};
use bedplate_record::Exposition;
use serde_json::json;

use super::front::Front;
use super::member::{ReplicaHealth, RouterMember};
use crate::refusal::ApiError;

/// `GET /v1/models`
pub(super) fn models(front: &Front) -> Answer {
    json(StatusCode::OK, &json!({ "object": "list", "data": front.members.models() }))
}

/// `GET /v1/models/NAME`
pub(super) fn model(front: &Front, name: &str) -> Result<Answer, ApiError> {
    let found = front.members.models().into_iter().find(|entry| entry["id"] == name);
    let served = || {
        front.members.models().iter().filter_map(|entry| entry["id"].as_str().map(str::to_owned)).collect()
    };
    let missing = || ApiError::NoSuchModel { model: name.chars().take(200).collect(), served: served() };
    found.map(|entry| json(StatusCode::OK, &entry)).ok_or_else(missing)
}

type OfMember = fn(&RouterMember) -> f64;

/// Name, kind, help and value of what is told of each replica.
const OF_MEMBERS: [(&str, &str, &str, OfMember); 8] = [
    ("bedplate_router_replica_up", "gauge", "Whether the replica gets requests.", |member| {
        f64::from(u8::from(member.replica_health() == ReplicaHealth::In))
    }),
    ("bedplate_router_requests_total", "counter", "Requests sent to the replica.", |member| {
        member.counts.requests.get() as f64
    }),
    ("bedplate_router_failures_total", "counter", "Requests that it did not answer to the end.", |member| {
        member.counts.failures.get() as f64
    }),
    (
        "bedplate_router_given_up_total",
        "counter",
        "Requests that it refused or lost before an answer began.",
        |member| member.counts.given_up.get() as f64,
    ),
    ("bedplate_router_failed_checks_total", "counter", "Checks that it did not pass.", |member| {
        member.counts.failed_checks.get() as f64
    }),
    ("bedplate_router_sequences", "gauge", "Sequences under way on the replica.", |member| {
        f64::from(member.load().sequences)
    }),
    ("bedplate_router_pending_tokens", "gauge", "Estimated prompt tokens yet to be computed.", |member| {
        member.load().pending_tokens as f64
    }),
    ("bedplate_router_held_tokens", "gauge", "Estimated prompt tokens of requests under way.", |member| {
        member.load().held_tokens as f64
    }),
];

/// `GET /metrics`
pub(super) fn metrics(front: &Front) -> Answer {
    let mut text = Exposition::with_room(16 << 10);
    let members = front.members.list();
    let labelled: Vec<(String, &RouterMember)> = members
        .iter()
        .map(|member| (format!("replica=\"{}\"", Exposition::escape(&member.url.to_string())), &**member))
        .collect();
    for (name, kind, help, value) in OF_MEMBERS {
        text.head(name, kind, help);
        labelled.iter().for_each(|(labels, member)| text.sample(name, labels, value(member)));
    }
    write_reasons(&mut text, &labelled);
    write_replica_healths(&mut text, &labelled);
    text.counter("bedplate_router_retries_total", "Attempts after a first one.", front.retries.get());
    front.metrics.write(&mut text);
    let connections = front.server.connections();
    text.gauge("bedplate_http_connections", "Open connections.", connections.open() as f64);
    text.counter(
        "bedplate_http_connections_refused_total",
        "Connections closed at once because there were too many.",
        connections.refused() as u64,
    );
    typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", Body::whole(text.into_string()))
}

fn write_reasons(text: &mut Exposition, labelled: &[(String, &RouterMember)]) {
    let name = "bedplate_router_routed_total";
    text.head(name, "counter", "Requests sent to the replica, by why it was chosen.");
    for (labels, member) in labelled {
        for (reason, count) in member.reasons() {
            text.sample(name, &format!("{labels},reason=\"{reason}\""), count as f64);
        }
    }
}

fn write_replica_healths(text: &mut Exposition, labelled: &[(String, &RouterMember)]) {
    let name = "bedplate_router_replica_replica_health";
    text.head(name, "gauge", "1 for what the replica is: starting, in, out.");
    for (labels, member) in labelled {
        text.sample(name, &format!("{labels},standing=\"{}\"", member.replica_health().name()), 1.0);
    }
}
