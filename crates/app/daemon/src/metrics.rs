//! What the daemon counts about itself, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bedplate_host::memory::own_resident_bytes;
use bedplate_http::Connections;
use bedplate_record::{Counter, Exposition, Histogram};

/// Upper bounds of the classes of times, in seconds.
const TIMES: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];
const SIZES: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

#[derive(Debug)]
pub(crate) struct DaemonMetrics {
    pub(crate) started: Instant,
    pub(crate) submissions: Counter,
    pub(crate) submissions_refused: Counter,
    pub(crate) panics: Counter,
    pub(crate) run_restarts: Counter,
    pub(crate) control_turn: Histogram,
    pub(crate) tick: Histogram,
    pub(crate) batch_size: Histogram,
    requests: Mutex<BTreeMap<(&'static str, &'static str), PathFigures>>,
}

#[derive(Debug)]
struct PathFigures {
    statuses: BTreeMap<u16, u64>,
    time: Histogram,
}

impl DaemonMetrics {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            submissions: Counter::default(),
            submissions_refused: Counter::default(),
            panics: Counter::default(),
            run_restarts: Counter::default(),
            control_turn: Histogram::of(&TIMES),
            tick: Histogram::of(&TIMES),
            batch_size: Histogram::of(&SIZES),
            requests: Mutex::default(),
        }
    }

    pub(crate) fn answered(&self, method: &'static str, path: &'static str, status: u16, took: Duration) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let figures = requests
            .entry((method, path))
            .or_insert_with(|| PathFigures { statuses: BTreeMap::new(), time: Histogram::of(&TIMES) });
        *figures.statuses.entry(status).or_default() += 1;
        figures.time.observe(took);
    }

    /// The figures that are counted here.
    pub(crate) fn write(&self, text: &mut Exposition, connections: &Connections) {
        text.counter("bedplate_submissions_total", "Jobs taken in.", self.submissions.get());
        text.counter(
            "bedplate_submissions_refused_total",
            "Submissions refused.",
            self.submissions_refused.get(),
        );
        text.counter(
            "bedplate_run_restarts_total",
            "Runs of gangs that had run before.",
            self.run_restarts.get(),
        );
        text.counter("bedplate_panics_total", "Requests that ended in a panic.", self.panics.get());
        text.gauge("bedplate_http_connections", "Open connections.", connections.open() as f64);
        text.counter(
            "bedplate_http_connections_refused_total",
            "Connections closed at once because there were too many.",
            connections.refused() as u64,
        );
        text.head(
            "bedplate_control_turn_seconds",
            "histogram",
            "Time for a batch of requests in the control plane.",
        );
        text.histogram(
            "bedplate_control_turn_seconds",
            "",
            &self.control_turn.cumulative(),
            self.control_turn.sum(),
        );
        text.head(
            "bedplate_scheduler_tick_seconds",
            "histogram",
            "Time for what is due: watching nodes and runs, and the scheduler's cycle.",
        );
        text.histogram("bedplate_scheduler_tick_seconds", "", &self.tick.cumulative(), self.tick.sum());
        text.head("bedplate_control_batch_requests", "histogram", "Requests that shared a batch.");
        text.histogram(
            "bedplate_control_batch_requests",
            "",
            &self.batch_size.cumulative(),
            self.batch_size.sum(),
        );
        self.write_requests(text);
        text.gauge(
            "bedplate_uptime_seconds",
            "Since the daemon started.",
            self.started.elapsed().as_secs_f64(),
        );
        if let Some(bytes) = own_resident_bytes() {
            text.gauge("bedplate_resident_memory_bytes", "Memory of the daemon.", bytes as f64);
        }
    }

    fn write_requests(&self, text: &mut Exposition) {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        text.head("bedplate_http_requests_total", "counter", "Requests answered.");
        for ((method, path), figures) in requests.iter() {
            for (status, count) in &figures.statuses {
                let labels = format!("method=\"{method}\",path=\"{path}\",status=\"{status}\"");
                text.sample("bedplate_http_requests_total", &labels, *count as f64);
            }
        }
        text.head(
            "bedplate_http_request_seconds",
            "histogram",
            "From the head of a request to the head of its answer.",
        );
        for ((method, path), figures) in requests.iter() {
            let labels = format!("method=\"{method}\",path=\"{path}\"");
            text.histogram(
                "bedplate_http_request_seconds",
                &labels,
                &figures.time.cumulative(),
                figures.time.sum(),
            );
        }
    }
}
