//! What the agent and its keeper say to each other, one JSON object a line.

use std::collections::BTreeMap;

use bedplate_control::wire::RankEnd;
use serde::{Deserialize, Serialize};

/// From the agent to the keeper. A *group* is a run, or the node's own commands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// The first order; answered by [`Notice::Ready`].
    Begin {
        node: String,
        /// The node's share of the host's cores; all of them when empty.
        cores: Vec<u32>,
    },
    /// Answered by [`Notice::NotStarted`], or by [`Notice::Ended`] when it is over.
    Start(Box<Start>),
    /// To every process of the group.
    Signal { group: String, signal: i32 },
    /// To one process that was started, and none below it.
    SignalOne { id: u64, signal: i32 },
    /// To one process that was started and its session.
    KillSession { id: u64 },
    /// Every process of the group dies.
    Kill { group: String },
    /// Every process of the group dies, and when none is left, [`Notice::Gone`] is the answer.
    Finish { group: String },
    /// From this time of [`clock`](crate::clock) on every run dies, unless the lease is renewed; answered by
    /// [`Notice::Leased`]. Without a time there is nothing to end.
    Lease { until_ms: Option<u64> },
}

/// The group of the node's own commands.
pub(crate) fn node_group(node: &str) -> String {
    format!("node@{node}")
}

/// A process to start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Given by the agent, never twice.
    pub(crate) id: u64,
    pub(crate) group: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) directory: String,
    pub(crate) stdin: Option<String>,
    /// Opened to append. Nothing is kept when absent.
    pub(crate) stdout: Option<String>,
    /// As `stdout` when absent.
    pub(crate) stderr: Option<String>,
    /// For the whole group, where it can be enforced; none when zero.
    pub(crate) memory_mib: u64,
}

/// From the keeper to the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Notice {
    Ready {
        /// What the keeper makes sure of, for people.
        enforced: Vec<String>,
    },
    NotStarted {
        id: u64,
        error: i32,
    },
    Ended {
        id: u64,
        end: RankEnd,
    },
    Gone {
        group: String,
        cpu_ms: u64,
        peak_memory_mib: u64,
    },
    /// The keeper is there and knows the lease.
    Leased,
    /// The agent stood still: the lease was not renewed and every run is being killed.
    LeaseEnded,
}
