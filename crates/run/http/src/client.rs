//! Asking other servers: heads, bodies and times are bounded, and a body that is cut off is an error, not a shorter body.
//!
//! [`call`] opens a connection for one request. A connection that is kept may be closed by the other side just when it is used again, and then
//! it is not known whether the request was begun; a new one costs little next to a generation. Who measures keeps a [`Connection`].

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderValue};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::{HeaderMap, Incoming, Method, StatusCode};

/// How long it may take to reach a server.
const CONNECT: Duration = Duration::from_secs(5);
const MOST_HEAD: usize = 64 << 10;

/// Why a server did not answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ClientError {
    #[error("cannot be reached: {why}")]
    Unreachable { why: String },
    #[error("broke off: {why}")]
    Broken { why: String },
    #[error("did not answer within {seconds} s")]
    Silent { seconds: u64 },
    #[error("{why}")]
    GivenUp { why: &'static str },
    #[error("answered with more than {limit} bytes")]
    TooLarge { limit: usize },
}

/// A request.
pub struct Call {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Call {
    pub fn get(path: &str, key: Option<&HeaderValue>) -> Self {
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            headers.insert(hyper::header::AUTHORIZATION, key.clone());
        }
        Self { method: Method::GET, path: path.to_owned(), headers, body: Bytes::new() }
    }

    /// Sends JSON.
    pub fn post(path: &str, key: Option<&HeaderValue>, body: String) -> Self {
        let mut call = Self::get(path, key);
        call.headers.insert(hyper::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Self { method: Method::POST, body: body.into(), ..call }
    }
}

/// An answer whose body is on its way. Dropping it ends the request.
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    /// That of [`call`], which ends with the answer.
    _connection: Option<Connection>,
}

/// A connection to a server, for one request after the other.
pub struct Connection {
    requests: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Reply {
    /// The next bytes of the body; nothing at its end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
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

    /// The whole body; one that is cut off or larger than the limit is an error.
    pub async fn whole(&mut self, limit: usize) -> Result<Bytes, ClientError> {
        match Limited::new(&mut self.body, limit).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                Err(ClientError::TooLarge { limit })
            }
            Err(error) => Err(ClientError::Broken { why: error.to_string() }),
        }
    }
}

impl Connection {
    pub async fn open(server: impl ToSocketAddrs, patience: Duration) -> Result<Self, ClientError> {
        let stream = timeout(patience, TcpStream::connect(server)).await;
        let stream = stream.map_err(|_| ClientError::Silent { seconds: patience.as_secs() })?;
        let stream = stream.map_err(|error| ClientError::Unreachable { why: error.to_string() })?;
        let _ = stream.set_nodelay(true);
        let mut builder = http1::Builder::new();
        let shake = builder.max_buf_size(MOST_HEAD).handshake(TokioIo::new(stream)).await;
        let (requests, driving) = shake.map_err(broken)?;
        let task = tokio::spawn(async move {
            // Its failure is told by the answer.
            let _ = driving.await;
        });
        Ok(Self { requests, driver: task.abort_handle() })
    }

    /// Whether the other side still takes requests.
    pub async fn is_open(&mut self) -> bool {
        self.requests.ready().await.is_ok()
    }

    /// Sends a request and waits for the head of the answer, for as long as the caller does.
    pub async fn ask(&mut self, host: &str, call: Call) -> Result<Reply, ClientError> {
        let request = request(host, call)?;
        let (head, body) = self.requests.send_request(request).await.map_err(broken)?.into_parts();
        Ok(Reply { status: head.status, headers: head.headers, body, _connection: None })
    }
}

/// Sends a request to `host:port` on a connection of its own and waits for the head of the answer, for as long as the caller does.
pub async fn call(server: &str, call: Call) -> Result<Reply, ClientError> {
    let mut connection = Connection::open(server, CONNECT).await?;
    let reply = connection.ask(server, call).await?;
    Ok(Reply { _connection: Some(connection), ..reply })
}

fn request(host: &str, call: Call) -> Result<hyper::Request<Full<Bytes>>, ClientError> {
    let invalid = |why: &str| ClientError::Unreachable { why: why.to_owned() };
    let mut request = hyper::Request::new(Full::new(call.body));
    *request.method_mut() = call.method;
    *request.uri_mut() = call.path.parse().map_err(|_| invalid("its path is invalid"))?;
    *request.headers_mut() = call.headers;
    let host = HeaderValue::from_str(host).map_err(|_| invalid("its name is invalid"))?;
    request.headers_mut().insert(HOST, host);
    Ok(request)
}

fn broken(error: hyper::Error) -> ClientError {
    ClientError::Broken { why: error.to_string() }
}
