//! Where a gang may stand.

use bedplate_topology::Level;

/// How close the nodes of a gang must be, and which nodes are out of the question.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    pub closeness: Closeness,
    /// Nodes per block that must share the closeness level, as Slurm's `--segment`.
    pub segment: Option<u32>,
    /// Put replicas far apart instead, at different domains of this level.
    pub spread: Option<Level>,
    pub avoid_nodes: Vec<String>,
    pub only_nodes: Vec<String>,
    /// Features that every node must have.
    pub features: Vec<String>,
}

/// The level inside which all nodes of the gang should lie.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Closeness {
    /// As close as is free now.
    #[default]
    Any,
    /// Waits rather than cross the level.
    Required(Level),
    /// Crosses the level rather than wait.
    Preferred(Level),
}
