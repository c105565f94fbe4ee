//! What the tasks of the agent tell its one loop.

use bedplate_control::agent::LinkLoss;
use bedplate_control::wire::{FromAgent, RunId, StepRequest, ToAgent, Unready};
use bedplate_finding::OpenFinding;
use bedplate_report::Report;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::fork_server::orders::{FromForkServer, FromRunShim};
use crate::identity::Identity;
use crate::outputs::Outputs;

pub(crate) struct Identified {
    pub(crate) identity: Option<Identity>,
    pub(crate) files: Option<Result<Outputs, Unready>>,
}

pub(crate) enum AgentEvent {
    /// What the output of a rank told.
    LogSaid {
        run: RunId,
        rank: u32,
        reports: Vec<Report>,
    },
    /// A connection is there; what is sent through this goes over it.
    Linked(UnboundedSender<FromAgent>),
    Told(ToAgent),
    LinkLost(LinkLoss),
    /// The control plane refuses this agent.
    Refused {
        status: u16,
        message: String,
    },
    /// From the fork server that was started as this number.
    ForkServerSays {
        fork_server: u32,
        notice: FromForkServer,
    },
    ForkServerGone {
        fork_server: u32,
    },
    /// From the run shim of this number.
    RunShimSays {
        run_shim: u64,
        notice: FromRunShim,
    },
    /// The link to a run shim has closed.
    RunShimSilent {
        run_shim: u64,
    },
    /// A run shim whose fork server had died is gone, and so is what it left behind.
    Swept {
        run_shim: u64,
    },
    /// It is known whom a run runs as, and, where no prolog comes between, what became of the check of its files.
    Identified {
        run: RunId,
        outcome: Result<Identified, Unready>,
    },
    /// The files that a job names have been checked.
    Checked {
        run: RunId,
        outcome: Result<Outputs, Unready>,
    },
    /// The time of a process is up.
    Overdue {
        id: u64,
    },
    /// What is wrong with the node, all of it.
    Found(Vec<OpenFinding>),
    /// The counters of the node that are worth comparing.
    Counted(Vec<(&'static str, f64)>),
    ProbeDue {
        run: Option<RunId>,
    },
    StepAsked {
        request: Box<StepRequest>,
        /// Who asks.
        uid: u32,
        answer: oneshot::Sender<StepAnswer>,
    },
    /// The `srun` of a step passes a signal on, or is gone.
    StepSignal {
        run: RunId,
        step: u32,
        signal: i32,
    },
    StepOver {
        run: RunId,
        step: u32,
    },
}

/// What an `srun` hears at once.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum StepAnswer {
    Accepted,
    /// The control plane cannot be reached at the moment.
    Later,
    Refused(String),
}
