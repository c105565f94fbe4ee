//! When a running job counts as unwell.

use bedplate_units::Seconds;

/// What is watched while the job runs. Nothing, by default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HealthPolicy {
    /// A rank that has signalled no progress for so long is stuck.
    pub stuck_after: Option<Seconds>,
    pub probe: Option<Probe>,
    /// Nodes that the job holds beyond its gang, so that one that is lost is replaced at once.
    pub spare_nodes: u32,
}

/// A command run on every node of the gang; where it fails, the node is unwell.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    pub command: Vec<String>,
    pub every: Seconds,
}

impl Probe {
    /// Between two probes where nothing else is said.
    pub const EVERY: Seconds = Seconds::new(60.0);
}
