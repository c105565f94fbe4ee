//! Replicas as processes of this machine, behind a router: started, watched, started again, replaced one after the other.
//!
//! A process that dies is started again after a delay that grows; one that stops answering is killed first. An update starts the new
//! process, waits until it is ready, and only then lets the old one finish. All of them end with the fleet.

mod jobs;
mod place;
mod process;
mod supervisor;

use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::GatewayError;
use crate::router::Members;
use supervisor::Supervisor;

pub use jobs::{JobFleet, JobFleetOptions, JobFleetState};

/// How processes are looked after.
#[derive(Debug, Clone)]
pub struct FleetOptions {
    pub replicas: u32,
    /// How long a process may take until it is ready.
    pub start: Duration,
    /// How long a process may stay out of service before it is killed.
    pub silence: Duration,
    /// How long a process may take to finish its requests.
    pub grace: Duration,
    /// The delay before the first new start of a process; it doubles up to the longest.
    pub first_delay: Duration,
    pub longest_delay: Duration,
}

impl Default for FleetOptions {
    fn default() -> Self {
        Self {
            replicas: 2,
            start: Duration::from_secs(1800),
            silence: Duration::from_secs(30),
            grace: Duration::from_secs(60),
            first_delay: Duration::from_millis(500),
            longest_delay: Duration::from_secs(30),
        }
    }
}

/// What has become of a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FleetState {
    /// Running processes, in the order of their places.
    pub processes: Vec<u32>,
    /// Processes that were started again after they had died.
    pub restarts: u64,
    /// Updates that have come to their end, well or not.
    pub updates: u64,
    /// Why it has ended by itself: its processes do not start at all.
    pub failure: Option<String>,
}

/// What is wished for, and what is so.
#[derive(Default)]
struct Shared {
    ends: bool,
    updates: u64,
    state: FleetState,
}

/// Processes that are looked after. Dropping it ends them.
pub struct ReplicaFleet {
    shared: Arc<Mutex<Shared>>,
    thread: Option<JoinHandle<()>>,
}

impl ReplicaFleet {
    /// Starts replicas and returns at once. `command` makes the process of a place, which is to print its URL as a first line
    /// and to end when its standard input does.
    pub fn start(
        members: Members,
        options: FleetOptions,
        command: impl Fn(u32) -> Command + Send + 'static,
    ) -> Result<Self, GatewayError> {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let mut supervisor = Supervisor::new(members, options, Box::new(command), shared.clone());
        let thread = thread::Builder::new().name("fleet".into()).spawn(move || supervisor.run());
        let thread = thread.map_err(|source| GatewayError::Threads { source })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Replaces all processes, one after the other. Those that are asked for meanwhile are one more update.
    pub fn update(&self) {
        self.with(|shared| shared.updates += 1);
    }

    pub fn state(&self) -> FleetState {
        self.with(|shared| shared.state.clone())
    }

    /// Lets the processes finish what they have, within the grace, and returns.
    pub fn stop(mut self) {
        self.end();
    }

    fn with<T>(&self, act: impl FnOnce(&mut Shared) -> T) -> T {
        act(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn end(&mut self) {
        self.with(|shared| shared.ends = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for ReplicaFleet {
    fn drop(&mut self) {
        self.end();
    }
}
