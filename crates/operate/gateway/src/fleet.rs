//! Replicas as processes of this machine, behind a router: started, watched, started again, replaced one after the other.
//!
//! A process that dies is started again after a delay that grows; one that stops answering is killed first. An update starts the new
//! process, waits until it is ready, and only then lets the old one finish. All of them end with the fleet.

mod jobs;
mod place;
mod process;
mod supervisor;

use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
struct Wishes<S> {
    ends: bool,
    updates: u64,
    state: S,
}

/// The wishes of a fleet, between its owner and its thread.
struct Shared<S>(Arc<Mutex<Wishes<S>>>);

impl<S> Clone for Shared<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S> Shared<S> {
    fn lock(&self) -> MutexGuard<'_, Wishes<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replicas that a thread of its own looks after. Dropping it ends them.
pub struct Fleet<S> {
    shared: Shared<S>,
    thread: Option<JoinHandle<()>>,
}

/// Processes that are looked after.
pub type ReplicaFleet = Fleet<FleetState>;

impl ReplicaFleet {
    /// Starts replicas and returns at once. `command` makes the process of a place, which is to print its URL as a first line
    /// and to end when its standard input does.
    pub fn start(
        members: Members,
        options: FleetOptions,
        command: impl Fn(u32) -> Command + Send + 'static,
    ) -> Result<Self, GatewayError> {
        Self::on_a_thread("fleet", |shared| {
            let mut supervisor = Supervisor::new(members, options, Box::new(command), shared);
            move || supervisor.run()
        })
    }
}

impl<S: Clone + Default> Fleet<S> {
    fn on_a_thread<F: FnOnce() + Send + 'static>(
        name: &str,
        run: impl FnOnce(Shared<S>) -> F,
    ) -> Result<Self, GatewayError> {
        let shared = Shared(Arc::new(Mutex::new(Wishes::default())));
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run(shared.clone()));
        let thread = thread.map_err(|source| GatewayError::Threads { source })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Replaces all replicas, one after the other. Those that are asked for meanwhile are one more update.
    pub fn update(&self) {
        self.shared.lock().updates += 1;
    }

    pub fn state(&self) -> S {
        self.shared.lock().state.clone()
    }

    /// Ends the replicas and returns. Processes finish the requests that they have, within the grace; those of jobs are lost.
    pub fn stop(self) {}
}

impl<S> Drop for Fleet<S> {
    fn drop(&mut self) {
        self.shared.lock().ends = true;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
