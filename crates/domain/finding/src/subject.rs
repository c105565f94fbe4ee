//! What a finding is about.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A part of the cluster, or a job on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Subject {
    Cluster,
    Node {
        node: String,
    },
    Gpu {
        node: String,
        index: u32,
    },
    NetworkCard {
        node: String,
        card: String,
    },
    /// A mounted file system or bucket on one node.
    Storage {
        node: String,
        mount: String,
    },
    Switch {
        switch: String,
    },
    Job {
        job: String,
    },
    /// One process of a job.
    Rank {
        job: String,
        rank: u32,
    },
}

impl Subject {
    /// The node that the subject is on.
    pub fn node(&self) -> Option<&str> {
        match self {
            Subject::Node { node }
            | Subject::Gpu { node, .. }
            | Subject::NetworkCard { node, .. }
            | Subject::Storage { node, .. } => Some(node),
            Subject::Cluster | Subject::Switch { .. } | Subject::Job { .. } | Subject::Rank { .. } => None,
        }
    }

    /// Whether `other` is this subject or a part of it.
    pub fn contains(&self, other: &Subject) -> bool {
        match self {
            Subject::Cluster => true,
            Subject::Node { node } => other.node() == Some(node),
            Subject::Job { job } => match other {
                Subject::Job { job: inner } | Subject::Rank { job: inner, .. } => inner == job,
                _ => false,
            },
            _ => self == other,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Cluster => write!(f, "the cluster"),
            Subject::Node { node } => write!(f, "node {node}"),
            Subject::Gpu { node, index } => write!(f, "GPU {index} of node {node}"),
            Subject::NetworkCard { node, card } => write!(f, "network card {card} of node {node}"),
            Subject::Storage { node, mount } => write!(f, "{mount} on node {node}"),
            Subject::Switch { switch } => write!(f, "switch {switch}"),
            Subject::Job { job } => write!(f, "job {job}"),
            Subject::Rank { job, rank } => write!(f, "rank {rank} of job {job}"),
        }
    }
}
