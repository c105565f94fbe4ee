//! How the gateway is run.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Where it listens when nothing else is said: vLLM's port.
pub const DEFAULT_PORT: u16 = 8000;

/// The settings of a gateway.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    /// Port 0 takes one that is free.
    pub listen: SocketAddr,
    /// Keys of which a request must show one; without any, all requests are answered.
    pub keys: Vec<String>,
    /// A file with more keys, one on a line.
    pub key_file: Option<PathBuf>,
    /// Web pages from these origins may send requests; `*` stands for all.
    pub origins: Vec<String>,
    pub bounds: Bounds,
    /// A file that gets a line for each request, for `bedplate replay requests`.
    pub trace: Option<PathBuf>,
    /// How long running requests may take to finish when the server ends.
    pub grace: Duration,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)),
            keys: Vec::new(),
            key_file: None,
            origins: Vec::new(),
            bounds: Bounds::default(),
            trace: None,
            grace: Duration::from_secs(60),
        }
    }
}

/// How much a request, or all of them, may ask for.
#[derive(Debug, Clone)]
pub struct Bounds {
    pub body_bytes: usize,
    pub connections: usize,
    /// Requests under way, waiting ones included; more are refused with 429.
    pub requests: usize,
    /// The most choices of a prompt, `n` and `best_of`.
    pub choices: u16,
    /// The most prompts of a request.
    pub prompts: usize,
    /// The most stop strings.
    pub stops: usize,
    /// How long one request may take.
    pub request: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            body_bytes: 16 << 20,
            connections: 4096,
            requests: 2048,
            choices: 128,
            prompts: 256,
            stops: 16,
            request: Duration::from_secs(3600),
        }
    }
}
