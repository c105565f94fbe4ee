//! By which rules a job waits, runs, stops and comes back.

use bedplate_units::Seconds;

use crate::{Array, Begin, CheckpointSignal, Dependency};

#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    pub partition: Option<String>,
    pub account: Option<String>,
    pub qos: Option<String>,
    /// The site's own priority, added as it is; it needs an operator.
    pub priority: i64,
    /// Lowers the priority, as the Unix command does; negative raises it and needs an operator.
    pub nice: i32,
    pub time_limit: Option<Seconds>,
    /// Between the first signal and the kill.
    pub grace: Seconds,
    /// How often the job comes back after a failure of its own.
    pub retries: u32,
    /// Whether it comes back after the loss of a node; that is no failure of its own.
    pub is_requeued: bool,
    /// Whether its ranks go on by themselves when a node is lost, and take in those of a node that comes.
    pub survives: bool,
    pub is_held: bool,
    /// Not before this.
    pub begin: Option<Begin>,
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
            priority: 0,
            nice: 0,
            time_limit: None,
            grace: Seconds::new(30.0),
            retries: 0,
            is_requeued: true,
            survives: false,
            is_held: false,
            begin: None,
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

impl Preemption {
    pub const ALL: [Preemption; 4] =
        [Preemption::Never, Preemption::Requeue, Preemption::Suspend, Preemption::Shrink];

    pub const fn name(self) -> &'static str {
        match self {
            Preemption::Never => "never",
            Preemption::Requeue => "requeue",
            Preemption::Suspend => "suspend",
            Preemption::Shrink => "shrink",
        }
    }
}
