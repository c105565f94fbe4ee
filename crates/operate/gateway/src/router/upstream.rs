//! Requests to replicas, each on a connection of its own.
//!
//! A connection that is kept may be closed by the other side just when it is used again, and then nobody knows whether the
//! request was begun. A new one costs little next to a generation.

use std::time::Duration;

use bedplate_http::{HeaderMap, Incoming, Method, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::url::ReplicaUrl;

/// How long it may take to reach a replica.
const CONNECT: Duration = Duration::from_secs(5);
const MOST_HEAD: usize = 64 << 10;

/// Why a replica did not answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum UpstreamError {
    #[error("cannot be reached: {why}")]
    Unreachable { why: String },
    #[error("broke off: {why}")]
    Broken { why: String },
    #[error("did not answer within {seconds} s")]
    Silent { seconds: u64 },
    #[error("was out of service")]
    Out,
    #[error("answered with more than {limit} bytes")]
    TooLarge { limit: usize },
}

pub(super) struct Call {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Call {
    pub(super) fn get(path: &str, key: Option<&HeaderValue>) -> Self {
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            headers.insert(hyper::header::AUTHORIZATION, key.clone());
        }
        Self { method: Method::GET, path: path.to_owned(), headers, body: Bytes::new() }
    }
}

/// An answer whose body is on its way. Dropping it ends the request.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    body: Incoming,
    _connection: Connection,
}

/// The task that drives a connection, which ends with the answer.
struct Connection(AbortHandle);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Reply {
    /// The next bytes of the body; nothing at its end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(broken(error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    pub(super) async fn whole(&mut self, limit: usize) -> Result<Bytes, UpstreamError> {
        match Limited::new(&mut self.body, limit).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                Err(UpstreamError::TooLarge { limit })
            }
            Err(error) => Err(UpstreamError::Broken { why: error.to_string() }),
        }
    }
}

/// Sends a request and waits for the head of the answer, for as long as the caller does.
pub(super) async fn call(url: &ReplicaUrl, call: Call) -> Result<Reply, UpstreamError> {
    let stream = timeout(CONNECT, TcpStream::connect(url.authority())).await;
    let stream = stream.map_err(|_| UpstreamError::Silent { seconds: CONNECT.as_secs() })?;
    let stream = stream.map_err(|error| UpstreamError::Unreachable { why: error.to_string() })?;
    let _ = stream.set_nodelay(true);
    let mut builder = http1::Builder::new();
    let shake = builder.max_buf_size(MOST_HEAD).handshake(TokioIo::new(stream)).await;
    let (mut sender, driving) = shake.map_err(broken)?;
    let task = tokio::spawn(async move {
        // Its failure is told to whoever waits for the answer.
        let _ = driving.await;
    });
    let connection = Connection(task.abort_handle());
    let request = request(url, call)?;
    let (head, body) = sender.send_request(request).await.map_err(broken)?.into_parts();
    Ok(Reply { status: head.status, headers: head.headers, body, _connection: connection })
}

fn request(url: &ReplicaUrl, call: Call) -> Result<hyper::Request<Full<Bytes>>, UpstreamError> {
    let invalid = |why: String| UpstreamError::Unreachable { why };
    let mut request = hyper::Request::new(Full::new(call.body));
    *request.method_mut() = call.method;
    *request.uri_mut() = url.path(&call.path).parse().map_err(|_| invalid("its path is invalid".into()))?;
    *request.headers_mut() = call.headers;
    let host = HeaderValue::from_str(&url.authority()).map_err(|_| invalid("its name is invalid".into()))?;
    request.headers_mut().insert(HOST, host);
    Ok(request)
}

fn broken(error: hyper::Error) -> UpstreamError {
    UpstreamError::Broken { why: error.to_string() }
}
