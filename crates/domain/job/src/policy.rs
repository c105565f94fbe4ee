//! By which rules a job waits, runs, stops and comes back.

use bedplate_units::Seconds;

#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    pub partition: Option<String>,
    pub account: Option<String>,
    pub qos: Option<String>,
    /// Lowers the priority, as the Unix command does; negative raises it and needs an operator.
    pub nice: i32,
    pub time_limit: Option<Seconds>,
    /// Between the first signal and the kill.
    pub grace: Seconds,
    /// How often the job comes back after a failure of its own.
    pub retries: u32,
    /// Whether it comes back after the loss of a node; that is no failure of its own.
    pub is_requeued: bool,
    pub is_held: bool,
    pub dependencies: Vec<Dependency>,
    pub array: Option<Array>,
    pub checkpoint_signal: Option<CheckpointSignal>,
    pub preemption: Preemption,
    /// A job is not preempted before it has run this long.
    pub minimum_run_time: Seconds,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            partition: None,
            account: None,
            qos: None,
            nice: 0,
            time_limit: None,
            grace: Seconds::new(30.0),
            retries: 0,
            is_requeued: true,
            is_held: false,
            dependencies: Vec::new(),
            array: None,
            checkpoint_signal: None,
            preemption: Preemption::Requeue,
            minimum_run_time: Seconds::ZERO,
        }
    }
}

/// What happens to a job that must make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    Never,
    /// Stop it and put it back in the queue.
    Requeue,
    /// Stop its processes in place; its memory stays taken.
    Suspend,
    /// Take nodes from its elastic range.
    Shrink,
}

/// Tells the job to write a checkpoint before it is stopped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CheckpointSignal {
    /// Signal number.
    pub signal: i32,
    /// How long before the stop it is sent.
    pub before: Seconds,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    pub kind: DependencyKind,
    /// Jobs waited for; empty for `Singleton`.
    pub jobs: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DependencyKind {
    /// After all have succeeded.
    AfterOk,
    /// After all have ended, however.
    AfterAny,
    /// After all have failed.
    AfterNotOk,
    /// One at a time of this name and user.
    Singleton,
}

/// Copies of one job that differ in their index: `first`, `first + step`, … up to `last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Array {
    pub first: u32,
    pub last: u32,
    pub step: u32,
    /// How many may run at once.
    pub at_once: Option<u32>,
}

impl Array {
    pub fn indices(&self) -> impl Iterator<Item = u32> {
        (self.first..=self.last).step_by(self.step.max(1) as usize)
    }

    pub fn count(&self) -> u64 {
        if self.first > self.last {
            return 0;
        }
        u64::from((self.last - self.first) / self.step.max(1)) + 1
    }
}
