//! What the tasks of the agent tell its one loop.

use bedplate_control::agent::LinkLoss;
use bedplate_control::wire::{FromAgent, RunId, StepRequest, ToAgent, Unready};
use bedplate_finding::OpenFinding;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::identity::Identity;
use crate::keeper::orders::{FromGuardian, FromKeeper};
use crate::outputs::Outputs;

pub(crate) enum Event {
    /// A connection is there; what is sent through this goes over it.
    Linked(UnboundedSender<FromAgent>),
    Told(ToAgent),
    LinkLost(LinkLoss),
    /// The control plane refuses this agent.
    Refused {
        status: u16,
        message: String,
    },
    /// From the keeper that was started as this number.
    Kept {
        keeper: u32,
        notice: FromKeeper,
    },
    KeeperGone {
        keeper: u32,
    },
    /// From the guardian of this number.
    Guarded {
        guardian: u64,
        notice: FromGuardian,
    },
    /// The link to a guardian has closed.
    GuardianSilent {
        guardian: u64,
    },
    /// A guardian whose keeper had died is gone, and so is what it left behind.
    Swept {
        guardian: u64,
    },
    /// It is known whom a run runs as.
    Identified {
        run: RunId,
        outcome: Result<Option<Identity>, Unready>,
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
