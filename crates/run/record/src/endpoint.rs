//! An HTTP endpoint with the metrics of a run, for Prometheus to scrape.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::server::PATIENCE;
use crate::{Exposure, Metrics, MetricsServer, RecordError};

/// Answers `GET /metrics` from a background thread until it is dropped.
pub struct Endpoint {
    metrics: Arc<Metrics>,
    server: MetricsServer,
}

impl Endpoint {
    /// Port 0 takes one that is free; [`address`](Endpoint::address) says which.
    pub fn start(address: SocketAddr, exposure: Exposure) -> Result<Self, RecordError> {
        Self::start_with(address, exposure, PATIENCE)
    }

    fn start_with(address: SocketAddr, exposure: Exposure, patience: Duration) -> Result<Self, RecordError> {
        let metrics = Arc::new(Metrics::default());
        let read = Arc::clone(&metrics);
        let server = MetricsServer::start_with(address, exposure, patience, move || read.text())?;
        Ok(Self { metrics, server })
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The metrics, set by the training thread without ever waiting for readers.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

#[cfg(test)]
mod tests;
