//! How much and how slowly clients may send and read.

use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Limits {
    /// Open connections, idle or not.
    pub connections: usize,
    /// At least 8 KiB.
    pub head_bytes: usize,
    pub body_bytes: usize,
    /// How long a connection without a request stays open.
    pub idle: Duration,
    /// How long the head of a request may take from its first byte on.
    pub head: Duration,
    /// How long a body may take.
    pub body: Duration,
    /// How long its first 64 KiB may take, and each further ones.
    pub body_trickle: Duration,
    /// How long a client may take to read 16 KiB of an answer, or what there is of it.
    pub stall: Duration,
    /// How long requests may take to finish when the server ends.
    pub grace: Duration,
    /// Whether a connection carries more than one request.
    pub keeps_alive: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1_024,
            head_bytes: 16 << 10,
            body_bytes: 1 << 20,
            idle: Duration::from_secs(75),
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            body_trickle: Duration::from_secs(5),
            stall: Duration::from_secs(30),
            grace: Duration::from_secs(2),
            keeps_alive: true,
        }
    }
}
