//! Starting a router on threads of its own, and ending it in good order.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bedplate_http::{HeaderValue, Limits, Request, Server};
use bedplate_record::Counter;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::warn;

use super::front::{self, Front};
use super::members::{self, Members};
use super::options::RouteOptions;
use super::url::ReplicaUrl;
use crate::admission::{ReadingTurns, Shares};
use crate::cross_origin::CrossOrigin;
use crate::error::GatewayError;
use crate::keys::ApiKeys;
use crate::metrics::GatewayMetrics;
use crate::serving::{self, Running};

/// A router that listens.
pub type RunningRouter = Running<Members>;

impl RunningRouter {
    /// The replicas, to be changed.
    pub fn members(&self) -> &Members {
        &self.served
    }
}

/// Routes to replicas and returns once it listens.
pub fn route(options: RouteOptions) -> Result<RunningRouter, GatewayError> {
    let runtime = serving::runtime("router")?;
    let front = Arc::new(front(&options, &runtime)?);
    let listed = options.replicas_file.as_deref().map(members::read_file).transpose()?;
    front.members.replace(&together(&options.replicas, listed.unwrap_or_default()));
    let (listener, address) = serving::listen(&runtime, options.listen)?;
    if let Some(path) = options.replicas_file {
        runtime.spawn(follow(path, options.replicas, front.members.clone()));
    }
    let members = front.members.clone();
    Running::start("router", address, members, move |ending| run(runtime, front, listener, ending))
}

/// Bodies of requests that are under way have at most so many bytes together.
const MOST_BODY_BYTES: u64 = 1 << 30;

fn front(options: &RouteOptions, runtime: &Runtime) -> Result<Front, GatewayError> {
    let bearer = |key: &String| -> Result<HeaderValue, GatewayError> {
        let mut value =
            HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| GatewayError::ReplicaKey)?;
        value.set_sensitive(true);
        Ok(value)
    };
    let keys = ApiKeys::load(&options.keys, options.key_file.as_deref())?;
    let requests = options.requests as u64;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let replica_key = options.replica_key.as_ref().map(bearer).transpose()?;
    Ok(Front {
        members: Members::new(options, replica_key.clone(), runtime.handle().clone()),
        server: Server::new(limits(options)),
        metrics: GatewayMetrics::default(),
        retries: Counter::default(),
        replica_key,
        cross_origin: CrossOrigin::new(&options.origins),
        slots: Shares::with_room_for_others(requests),
        bodies: Shares::new(MOST_BODY_BYTES.max(4 * options.body_bytes as u64)),
        reading: [ReadingTurns::new(cores), ReadingTurns::new(1)],
        keys,
        requests: options.requests,
        request: options.request,
        tries: options.tries,
        is_draining: AtomicBool::new(false),
    })
}

fn limits(options: &RouteOptions) -> Limits {
    Limits {
        connections: options.connections,
        body_bytes: options.body_bytes,
        grace: options.grace,
        ..Limits::default()
    }
}

fn together(named: &[ReplicaUrl], listed: Vec<ReplicaUrl>) -> Vec<ReplicaUrl> {
    named.iter().cloned().chain(listed).collect()
}

fn run(runtime: Runtime, front: Arc<Front>, listener: TcpListener, mut ending: watch::Receiver<bool>) {
    let shared = front.clone();
    let handler = move |request: Request| front::answer(shared.clone(), request);
    runtime.block_on(async {
        let told = async {
            let _ = ending.wait_for(|is_ending| *is_ending).await;
            front.is_draining.store(true, Ordering::Relaxed);
            front.server.begin_end();
        };
        tokio::join!(front.server.serve(listener, handler), told);
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
}

/// Reads a file of replicas again when it changes. One that cannot be read changes nothing.
async fn follow(path: PathBuf, named: Vec<ReplicaUrl>, members: Members) {
    let mut before = stamp(&path);
    let mut is_told = false;
    loop {
        sleep(members::LOOK).await;
        let now = stamp(&path);
        if now == before && !is_told {
            continue;
        }
        before = now;
        let read = path.clone();
        let read = tokio::task::spawn_blocking(move || members::read_file(&read)).await;
        match read {
            Ok(Ok(listed)) => {
                members.replace(&together(&named, listed));
                is_told = false;
            }
            Ok(Err(error)) if !is_told => {
                warn!("{error}; the replicas stay as they are");
                is_told = true;
            }
            _ => {}
        }
    }
}

/// What differs when a file has changed.
fn stamp(path: &Path) -> Option<(std::time::SystemTime, u64)> {
    let about = std::fs::metadata(path).ok()?;
    Some((about.modified().ok()?, about.len()))
}
