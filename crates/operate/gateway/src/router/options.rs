//! How a router is run.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use bedplate_batching::RouterOptions;

use super::url::ReplicaUrl;
use crate::options::{Bounds, DEFAULT_PORT};

/// The settings of a router.
#[derive(Clone)]
pub struct RouteOptions {
    /// Port 0 takes one that is free.
    pub listen: SocketAddr,
    pub replicas: Vec<ReplicaUrl>,
    /// A file with more replicas, a URL on a line. It is read again when it changes.
    pub replicas_file: Option<PathBuf>,
    /// Keys of which a request must show one; without any, all requests are passed on.
    pub keys: Vec<String>,
    /// A file with more keys, one on a line.
    pub key_file: Option<PathBuf>,
    /// The key that replicas are shown; without it, they are shown the client's own.
    pub replica_key: Option<String>,
    /// Web pages from these origins may send requests; `*` stands for all.
    pub origins: Vec<String>,
    pub policy: RouterOptions,
    pub checks: Checks,
    pub body_bytes: usize,
    pub connections: usize,
    /// Requests under way; more are refused with 429.
    pub requests: usize,
    /// How long one request may take.
    pub request: Duration,
    /// Replicas that a request is tried on.
    pub tries: usize,
    /// Tokens of prompts that a replica is taken to remember where it does not tell.
    pub remembered_tokens: u32,
    /// How long running requests may take to finish when the router ends.
    pub grace: Duration,
}

/// When a replica is thought to be in order.
#[derive(Debug, Clone)]
pub struct Checks {
    pub interval: Duration,
    /// How long a check may take.
    pub timeout: Duration,
    /// A replica is out after this many failures in a row, and back after one success.
    pub failures: u32,
    /// A replica that has requests of which none goes on for so long is asked to answer one, within as long, though it passes its checks.
    pub hang: Duration,
}

impl Default for Checks {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(5),
            failures: 3,
            hang: Duration::from_secs(30),
        }
    }
}

impl Default for RouteOptions {
    fn default() -> Self {
        let bounds = Bounds::default();
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)),
            replicas: Vec::new(),
            replicas_file: None,
            keys: Vec::new(),
            key_file: None,
            replica_key: None,
            origins: Vec::new(),
            policy: RouterOptions::default(),
            checks: Checks::default(),
            body_bytes: bounds.body_bytes,
            connections: bounds.connections,
            requests: bounds.requests,
            request: bounds.request,
            tries: 3,
            remembered_tokens: 1 << 20,
            grace: Duration::from_secs(60),
        }
    }
}
