//! Accepting connections, answering their requests, and ending in good order.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bedplate_host::panics::caught_async;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::connection::{Activity, Overdue, Watched};
use crate::{Answer, ClientPeer, Handler, Limits, Request, StatusCode, json};

/// How long to wait where the system has no files or memory for another connection.
const EXHAUSTED: Duration = Duration::from_millis(50);
/// How long, and for how many bytes, a client that is still sending may read what it was answered.
const LINGER: Duration = Duration::from_secs(2);
const MOST_IGNORED: usize = 4 << 20;

const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const TOO_SLOW: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// What connections have in common. Clones are the same server.
#[derive(Clone)]
pub struct Server {
    limits: Arc<Limits>,
    encryption: Option<TlsAcceptor>,
    connections: Arc<Connections>,
    is_ending: watch::Sender<bool>,
}

/// How many connections there are, and how many were refused.
#[derive(Debug, Default)]
pub struct Connections {
    open: AtomicUsize,
    refused: AtomicUsize,
}

impl Connections {
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }
}

type AnyAnswer = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A handler without its type.
#[derive(Clone)]
struct AnyHandler(Arc<dyn Fn(Request) -> AnyAnswer + Send + Sync>);

impl AnyHandler {
    fn new(handler: impl Handler) -> Self {
        Self(Arc::new(move |request| {
            let handler = handler.clone();
            Box::pin(async move { handler.answer(request).await })
        }))
    }
}

/// A connection that counts until this is dropped.
struct Counted(Arc<Connections>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server {
    pub fn new(limits: Limits) -> Self {
        let (is_ending, _) = watch::channel(false);
        Self { limits: Arc::new(limits), encryption: None, connections: Arc::default(), is_ending }
    }

    /// Speaks TLS only.
    pub fn encrypted(mut self, acceptor: TlsAcceptor) -> Self {
        self.encryption = Some(acceptor);
        self
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// Accepts connections until this future is dropped; those that are open go on without it.
    pub async fn accept(&self, listener: &TcpListener, handler: impl Handler) {
        self.accept_for(listener, AnyHandler::new(handler)).await;
    }

    async fn accept_for(&self, listener: &TcpListener, handler: AnyHandler) {
        loop {
            let Ok((stream, peer)) = listener.accept().await else {
                sleep(EXHAUSTED).await;
                continue;
            };
            let Some(counted) = self.enter() else {
                // Best effort: where the socket takes it at once, the client learns why.
                let _ = stream.try_write(if self.encryption.is_none() { FULL } else { &[] });
                continue;
            };
            let (server, handler) = (self.clone(), handler.clone());
            tokio::spawn(async move {
                server.greet(stream, peer.ip(), handler).await;
                drop(counted);
            });
        }
    }

    /// Answers on connections of the listener until [`Server::begin_end`] is called, then until running requests are answered, at
    /// most for [`Limits::grace`].
    pub async fn serve(&self, listener: TcpListener, handler: impl Handler) {
        self.serve_for(listener, AnyHandler::new(handler)).await;
    }

    async fn serve_for(&self, listener: TcpListener, handler: AnyHandler) {
        tokio::select! {
            () = self.accept_for(&listener, handler) => {}
            () = self.ends() => {}
        }
        drop(listener);
        let finished = async {
            while self.connections.open() > 0 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = timeout(self.limits.grace, finished).await;
    }

    /// Connections end once they have answered what they were asked.
    pub fn begin_end(&self) {
        self.is_ending.send_replace(true);
    }

    /// Returns once the server is about to end.
    pub async fn ends(&self) {
        // The sender is in this very value.
        let _ = self.is_ending.subscribe().wait_for(|is_ending| *is_ending).await;
    }

    fn enter(&self) -> Option<Counted> {
        let before = self.connections.open.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(self.connections.clone());
        if before >= self.limits.connections {
            self.connections.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(counted)
    }

    async fn greet(&self, stream: TcpStream, peer: IpAddr, handler: AnyHandler) {
        let _ = stream.set_nodelay(true);
        match &self.encryption {
            None => self.converse(stream, peer, handler).await,
            Some(acceptor) => {
                if let Ok(Ok(stream)) = timeout(self.limits.head, acceptor.accept(stream)).await {
                    self.converse(stream, peer, handler).await;
                }
            }
        }
    }

    /// Answers the requests of one connection until it ends or holds things up.
    async fn converse<S>(&self, stream: S, peer: IpAddr, handler: AnyHandler)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let activity = Activity::new();
        let watched = Watched::new(stream, activity.clone());
        let service = service_fn(|request| respond(handler.clone(), peer, activity.clone(), request));
        let mut connection = http1::Builder::new()
            .max_buf_size(self.limits.head_bytes)
            .header_read_timeout(None)
            .keep_alive(self.limits.keeps_alive)
            .serve_connection(TokioIo::new(watched), service)
            .with_upgrades();
        let overdue = tokio::select! {
            // A broken connection concerns its client only.
            _ = &mut connection => None,
            overdue = activity.overdue(&self.limits) => Some(overdue),
            () = self.ends() => {
                Pin::new(&mut connection).graceful_shutdown();
                let last = async {
                    tokio::select! {
                        _ = &mut connection => {}
                        _ = activity.overdue(&self.limits) => {}
                    }
                };
                let _ = timeout(self.limits.grace, last).await;
                return;
            }
        };
        // Nothing comes back from a connection that was upgraded: it has another owner.
        let Some(parts) = connection.into_parts() else { return };
        let stream = parts.io.into_inner().into_stream();
        if !activity.has_ended() {
            let _ = timeout(LINGER.min(self.limits.stall), part(stream, overdue)).await;
        }
    }
}

async fn respond(
    handler: AnyHandler,
    peer: IpAddr,
    activity: Arc<Activity>,
    mut request: Request,
) -> Result<Answer, Infallible> {
    let working = activity.work();
    request.extensions_mut().insert(ClientPeer(peer));
    // A bug in a handler is answered, and the connection goes on.
    let mut answer = caught_async((handler.0)(request)).await.unwrap_or_else(|what| broken(&what));
    answer.body_mut().hold(working);
    Ok(answer)
}

/// The answer of a handler that panicked, in the shape that our clients and OpenAI's read.
fn broken(what: &str) -> Answer {
    let message = format!("a bug in this program: {what}");
    json(
        StatusCode::INTERNAL_SERVER_ERROR,
        &serde_json::json!({"error": {"message": message, "type": "server_error"}}),
    )
}

/// Closes a connection so that the client can read its last answer: closing with unread bytes would reset the connection.
async fn part<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, overdue: Option<Overdue>) {
    match overdue {
        Some(Overdue::Silent) => return,
        Some(Overdue::Head) => drop(stream.write_all(TOO_SLOW).await),
        None => {}
    }
    let _ = stream.shutdown().await;
    let mut ignored = [0; 4096];
    let mut left = MOST_IGNORED;
    while let Ok(count @ 1..) = stream.read(&mut ignored).await {
        left = left.saturating_sub(count);
        if left == 0 {
            return;
        }
    }
}
