//! Whether a node can take work.

use std::fmt;

/// The state of one node. For the reason see `Cluster::reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Health {
    #[default]
    Healthy,
    /// Works, but not as well as it should: a slow link, a failed GPU.
    Degraded,
    /// Finishes running work and takes nothing new.
    Draining,
    /// Empty and out of service.
    Drained,
    Down,
    /// Out of service on purpose, for a time.
    Maintenance,
}

impl Health {
    pub const ALL: [(&'static str, Health); 6] = [
        ("healthy", Health::Healthy),
        ("degraded", Health::Degraded),
        ("draining", Health::Draining),
        ("drained", Health::Drained),
        ("down", Health::Down),
        ("maintenance", Health::Maintenance),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    /// Whether new work may be placed here.
    pub fn takes_work(self) -> bool {
        matches!(self, Health::Healthy | Health::Degraded)
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
