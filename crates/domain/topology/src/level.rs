//! The levels at which GPUs meet, ordered by the quality of the connection.

use bedplate_diag::shown;
use std::fmt;
use std::str::FromStr;

use crate::TopologyError;

/// Where two or more GPUs meet. A smaller level is a better connection.
///
/// GPUs of one NVLink domain meet at [`Domain`](Level::Domain), whether the domain is part of a node or
/// spans several; GPUs of one node without NVLink between them meet at [`Node`](Level::Node).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// One GPU alone.
    Gpu,
    /// A scale-up domain: NVLink or NeuronLink.
    Domain,
    Node,
    /// A network switch by its height over the nodes: 1 is a leaf, 2 a spine, 3 a core switch.
    Switch(u8),
    /// The cluster as a whole: the flat fabric, or what joins several switch trees.
    Cluster,
}

impl Level {
    pub const LEAF: Level = Level::Switch(1);
    pub const SPINE: Level = Level::Switch(2);
    pub const CORE: Level = Level::Switch(3);
}

impl serde::Serialize for Level {
    /// As it is displayed and read.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Level::Gpu => f.pad("gpu"),
            Level::Domain => f.pad("domain"),
            Level::Node => f.pad("node"),
            Level::Switch(1) => f.pad("leaf"),
            Level::Switch(2) => f.pad("spine"),
            Level::Switch(3) => f.pad("core"),
            Level::Switch(height) => f.pad(&format!("tier{height}")),
            Level::Cluster => f.pad("cluster"),
        }
    }
}

impl FromStr for Level {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<Self, TopologyError> {
        let tier = || text.strip_prefix("tier").and_then(|height| height.parse().ok()).filter(|h| *h > 0);
        match text {
            "gpu" => Ok(Level::Gpu),
            "domain" => Ok(Level::Domain),
            "node" => Ok(Level::Node),
            "leaf" => Ok(Level::LEAF),
            "spine" => Ok(Level::SPINE),
            "core" => Ok(Level::CORE),
            "cluster" => Ok(Level::Cluster),
            _ => tier().map(Level::Switch).ok_or_else(|| TopologyError::UnknownLevel { text: shown(text) }),
        }
    }
}
