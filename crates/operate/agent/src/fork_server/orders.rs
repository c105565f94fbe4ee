//! What an agent says to its fork server and to the run shims of its runs, and what they answer: one JSON object a line.

use std::collections::BTreeMap;

use bedplate_control::wire::RankEnd;
use serde::{Deserialize, Serialize};

use crate::identity::Identity;

/// What a fork server says where run shims are out of reach of their runs.
pub(crate) const PID_NAMESPACES: &str = "a pid namespace for each run";

/// From the agent to the fork server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum ToForkServer {
    /// The first order; answered by [`FromForkServer::Ready`].
    Begin {
        node: String,
        /// The node's share of the host's cores; all of them when empty.
        cores: Vec<u32>,
    },
    /// Fork a run shim that obeys the socket sent with this order; answered by [`FromForkServer::Forked`], or
    /// by [`FromForkServer::Gone`] alone when it cannot be forked.
    #[serde(rename = "Guard")]
    Fork {
        /// Given by the agent, never twice.
        #[serde(rename = "guardian")]
        run_shim: u64,
        /// Whose processes it will have: a run, or the node's own commands.
        group: String,
        /// Of a run, and not of the node's own commands: in a pid namespace of its own, where the host permits one.
        is_isolated: bool,
    },
    /// From this time of [`clock`](crate::clock) on, unless the lease is renewed, no process of a run may live. Run shims see to that;
    /// the fork server kills those that do not.
    Lease {
        until_ms: Option<u64>,
        /// Run shims that need no lease: their runs are over.
        unleased: Vec<u64>,
    },
}

/// From the fork server to the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum FromForkServer {
    Ready {
        /// What the fork server makes sure of, for people.
        enforced: Vec<String>,
    },
    #[serde(rename = "Guarding")]
    Forked {
        #[serde(rename = "guardian")]
        run_shim: u64,
        pid: i32,
    },
    /// A run shim is gone, and so is everything that it left behind.
    Gone {
        #[serde(rename = "guardian")]
        run_shim: u64,
    },
}

/// From the agent to a run shim. All of it is about the processes of one group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum ToRunShim {
    /// Answered by [`FromRunShim::NotStarted`], or by [`FromRunShim::Ended`] when it is over. One that is read too late is answered by
    /// [`FromRunShim::LeaseEnded`] first.
    Start(Box<ProcessStart>),
    /// To every process.
    Signal { signal: i32 },
    /// To one process that was started, and none below it.
    SignalOne { id: u64, signal: i32 },
    /// To one process that was started and its session.
    KillSession { id: u64 },
    /// Every process dies.
    Kill,
    /// Every process dies, and when none is left, [`FromRunShim::Finished`] is the answer.
    Finish,
    /// From this time of [`clock`](crate::clock) on everything dies, unless the lease is renewed; answered by
    /// [`FromRunShim::Leased`]. Without a time there is nothing to end; what still lives then keeps the lease that it has.
    Lease { until_ms: Option<u64> },
}

/// From a run shim to the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum FromRunShim {
    NotStarted {
        id: u64,
        error: i32,
    },
    Ended {
        id: u64,
        end: RankEnd,
    },
    Finished {
        cpu_ms: u64,
        peak_memory_mib: u64,
    },
    /// The run shim is there and knows the lease.
    Leased,
    /// The lease was not renewed: every process is being killed, and none begins.
    LeaseEnded,
}

/// The group of the node's own commands.
pub(crate) fn node_group(node: &str) -> String {
    format!("node@{node}")
}

/// A process to start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProcessStart {
    /// Given by the agent, never twice.
    pub(crate) id: u64,
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
    /// Who it becomes; as the run shim when absent.
    pub(crate) identity: Option<Identity>,
    /// From this time of [`clock`](crate::clock) on it may not begin, unless the lease has been renewed since: whoever obeys, or hands
    /// the order on, may have stood still meanwhile, and the control plane may have given the run up.
    #[serde(default)]
    pub(crate) until_ms: Option<u64>,
}
