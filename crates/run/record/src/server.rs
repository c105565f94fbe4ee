//! An HTTP server of one path, `/metrics`, for Prometheus to scrape.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::RecordError;
use crate::http::answer;

/// How long a client may take for its request, and again for reading the answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Clients that are answered at once; others wait.
const MOST_CLIENTS: usize = 32;
/// How long to wait where nobody more can be served.
const FULL: Duration = Duration::from_millis(20);
const STACK: usize = 256 << 10;

/// Who may read the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposure {
    /// Only programs on this machine.
    Loopback,
    /// Anyone who can reach the address.
    Anybody,
}

/// Answers `GET /metrics` from a background thread until it is dropped.
pub struct MetricsServer {
    address: SocketAddr,
    is_ending: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

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
        let failing = |source| RecordError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failing)?;
        let address = listener.local_addr().map_err(failing)?;
        let is_ending = Arc::new(AtomicBool::new(false));
        let server = thread::Builder::new().name("metrics".into()).spawn({
            let is_ending = Arc::clone(&is_ending);
            move || serve(&listener, patience, &text, &is_ending)
        });
        Ok(Self { address, is_ending, server: Some(server.map_err(failing)?) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Each client has a thread of its own, so that those that say nothing do not hold up Prometheus; a slow one is cut off.
fn serve(
    listener: &TcpListener,
    patience: Duration,
    text: &(dyn Fn() -> String + Sync),
    is_ending: &AtomicBool,
) {
    let clients = AtomicUsize::new(0);
    thread::scope(|scope| {
        while !is_ending.load(Ordering::Acquire) {
            if clients.load(Ordering::Acquire) >= MOST_CLIENTS {
                thread::sleep(FULL);
                continue;
            }
            // Out of file descriptors, for example: wait instead of spinning.
            let Ok((stream, _)) = listener.accept() else {
                thread::sleep(FULL);
                continue;
            };
            clients.fetch_add(1, Ordering::AcqRel);
            let answering = || {
                // A client that disconnects early harms only itself.
                drop(answer(stream, patience, text));
                clients.fetch_sub(1, Ordering::AcqRel);
            };
            let thread = thread::Builder::new().name("metrics-client".into()).stack_size(STACK);
            if thread.spawn_scoped(scope, answering).is_err() {
                clients.fetch_sub(1, Ordering::AcqRel);
            }
        }
    });
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Release);
        // A connection to ourselves unblocks `accept`.
        let _ = TcpStream::connect_timeout(&reachable(self.address), Duration::from_secs(1));
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// The address at which this machine reaches its own listener.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}
