//! A place of a fleet: the process that has it, the one that will, and those that leave it.

use std::time::{Duration, Instant};

use bedplate_supervise::{RestartBackoff, RestartPolicy};

use super::FleetOptions;
use super::process::ReplicaProcess;
use crate::router::Departure;

/// A process that is in service for so long has recovered.
const RECOVERED: Duration = Duration::from_secs(60);

pub(super) struct ReplicaPlace {
    pub(super) current: Option<ReplicaProcess>,
    pub(super) next: Option<ReplicaProcess>,
    restarts: RestartBackoff,
}

impl ReplicaPlace {
    pub(super) fn new(options: &FleetOptions) -> Self {
        let policy = RestartPolicy {
            first_delay: options.first_delay,
            longest_delay: options.longest_delay,
            recovered_after: RECOVERED,
            most: None,
        };
        Self { current: None, next: None, restarts: RestartBackoff::new(policy) }
    }

    pub(super) fn may_start(&self) -> bool {
        self.current.is_none() && self.restarts.is_due(Instant::now())
    }

    /// Notes that its process is gone, and returns how long it stays empty.
    pub(super) fn dies(&mut self) -> Duration {
        self.current = None;
        self.restarts.dies(Instant::now()).unwrap_or_default()
    }

    pub(super) fn note_recovery(&mut self) {
        if self.current.as_ref().is_some_and(|process| process.ready_since.is_some()) {
            self.restarts.is_well(Instant::now());
        }
    }

    pub(super) fn has_died(&self) -> bool {
        self.restarts.has_died()
    }
}

/// A process that gets no more requests.
pub(super) struct Leaver {
    process: ReplicaProcess,
    departure: Option<Departure>,
    /// When it is told to end, with what it has or without.
    told_at: Instant,
    is_told: bool,
}

impl Leaver {
    pub(super) fn new(process: ReplicaProcess, departure: Option<Departure>, grace: Duration) -> Self {
        Self { process, departure, told_at: Instant::now() + grace, is_told: false }
    }

    /// Tells it to end once it has nothing to do; true until it has ended. It is killed after the grace.
    pub(super) fn is_here(&mut self, grace: Duration) -> bool {
        let is_idle = self.departure.as_ref().is_none_or(|departure| departure.sequences() == 0);
        if !self.is_told && (is_idle || Instant::now() >= self.told_at) {
            self.process.terminate();
            self.is_told = true;
            self.told_at = Instant::now();
        }
        let is_overdue = self.is_told && self.told_at.elapsed() > grace;
        !is_overdue && !self.process.has_ended()
    }
}
