//! What happens after a failure: a restart from storage, from copies nearby, or with fewer nodes.

use bedplate_units::Seconds;

use crate::{Downtime, Published};

/// What happens after a failure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recovery {
    /// Detection, restart and communicators, before a durable checkpoint is read.
    pub downtime: Seconds,
    /// Whether `downtime` already includes reading that checkpoint.
    pub includes_reading: bool,
    /// Until a lost node is replaced; zero with a warm spare.
    pub replacement: Seconds,
    pub copies: Option<CopyLevel>,
    pub elastic: Option<Elastic>,
}

/// A first level of copies, in the memory of peers, in addition to durable checkpoints.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CopyLevel {
    /// Work between copies; one step where every step is copied.
    pub every: Seconds,
    pub stall: Seconds,
    /// Recovery from a copy, reading it included.
    pub downtime: Seconds,
    /// Share of failures that copies do not survive.
    pub lost_share: f64,
}

/// The job continues without the lost nodes until they are replaced.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Elastic {
    /// Nodes that stop working for each failure: those of one data-parallel copy of the model.
    pub nodes_per_failure: f64,
}

impl Recovery {
    /// Everything restarts from the last durable checkpoint, on a warm spare. The published middle of 15 to 30
    /// minutes.
    pub fn restart(published: &Published) -> Self {
        Self::restart_in(published.downtime("restart").unwrap_or(Seconds::new(1350.0)))
    }

    /// The same with a site's own downtime.
    pub fn restart_in(downtime: Seconds) -> Self {
        Self { downtime, includes_reading: false, replacement: Seconds::ZERO, copies: None, elastic: None }
    }

    /// The same as published for a run.
    pub fn restart_as(downtime: &Downtime) -> Self {
        Self { includes_reading: downtime.includes_reading, ..Self::restart_in(downtime.time) }
    }

    /// From a failure until work goes on from a durable checkpoint that takes `restore` to read, on a warm spare.
    pub fn until_restored(&self, restore: Seconds) -> Seconds {
        match self.includes_reading {
            true => self.downtime.max(restore),
            false => self.downtime + restore,
        }
    }

    /// The same, with a copy of the state in the memory of peers after every `every` of work (*checkpointless*).
    ///
    /// Published: recovery within two minutes. Failures that needed manual work in Llama 3's run are taken to be
    /// those from which peers cannot recover.
    pub fn from_peers(published: &Published, every: Seconds, stall: Seconds) -> Self {
        let downtime = published.downtime("peers").unwrap_or(Seconds::new(120.0));
        let lost_share = published.figure("manual-share").map_or(0.01, |figure| figure.value);
        let copies = Some(CopyLevel { every, stall, downtime, lost_share });
        Self { copies, ..Self::restart(published) }
    }

    /// Continuing without the nodes of a lost data-parallel copy until they are replaced.
    pub fn with_elastic(self, nodes_per_failure: f64, replacement: Seconds) -> Self {
        Self { replacement, elastic: Some(Elastic { nodes_per_failure }), ..self }
    }
}
