//! An HTTP server of one path, `/metrics`, for Prometheus to scrape.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bedplate_http::header::{ALLOW, HeaderValue};
use bedplate_http::{Answer, Background, Body, Limits, Method, Request, StatusCode, typed};

use crate::RecordError;

/// How long a client may take for its request, and again for reading the answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Clients that are answered at once.
const MOST_CLIENTS: usize = 128;

/// Who may read the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposure {
    /// Only programs on this machine.
    Loopback,
    /// Anyone who can reach the address.
    Anybody,
}

/// Answers `GET /metrics` from a background thread until it is dropped.
pub struct MetricsServer(Background);

impl MetricsServer {
    /// Answers with what `text` returns. Port 0 takes one that is free; [`address`](MetricsServer::address) says which.
    pub fn start(
        address: SocketAddr,
        exposure: Exposure,
        text: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<Self, RecordError> {
        Self::start_with(address, exposure, PATIENCE, text)
    }

    pub(crate) fn start_with(
        address: SocketAddr,
        exposure: Exposure,
        patience: Duration,
        text: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<Self, RecordError> {
        if exposure == Exposure::Loopback && !address.ip().is_loopback() {
            return Err(RecordError::NotLoopback { address });
        }
        let text = Arc::new(text);
        let handler = move |request: Request| std::future::ready(answer(&request, &*text));
        let server = Background::start(address, limits(patience), handler);
        server.map(Self).map_err(|source| RecordError::Listen { address, source })
    }

    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

/// One request per connection, and nothing larger than a scrape's.
fn limits(patience: Duration) -> Limits {
    Limits {
        connections: MOST_CLIENTS,
        head_bytes: 8 << 10,
        body_bytes: 0,
        idle: patience,
        head: patience,
        body: patience,
        body_trickle: patience,
        stall: patience,
        grace: patience,
        keeps_alive: false,
    }
}

fn answer(request: &Request, text: &dyn Fn() -> String) -> Answer {
    let plain = |status| typed(status, "text/plain; charset=utf-8", Body::whole("GET /metrics\n"));
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", Body::whole(text()))
        }
        (&Method::GET | &Method::HEAD, _) => plain(StatusCode::NOT_FOUND),
        _ => {
            let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED);
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            answer
        }
    }
}
