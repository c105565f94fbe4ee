//! How long the control plane waits for nodes and runs.

use bedplate_blame::BlamePolicy;
use bedplate_gangs::Span;

/// The patience of the control plane. The defaults bring a gang back within three seconds of a closed
/// connection and within six of a node that fell silent.
#[derive(Debug, Clone, PartialEq)]
pub struct ControlRules {
    /// How often agents say that they are there.
    pub heartbeat: Span,
    /// A node that is silent for this long is lost.
    pub silence: Span,
    /// How long a node whose connection closed has to come back.
    pub closed_grace: Span,
    /// How long nodes have to come back after a restart of the control plane.
    pub rejoin: Span,
    /// What the survivors of a lost node get instead of their whole grace: they cannot finish a step.
    pub loss_grace: Span,
    /// A job that is not ready by then starts again elsewhere; that counts against the job first.
    pub prepare_within: Span,
    /// A node that has not ended a run this long after its grace is drained; epilogs may take minutes.
    pub overdue: Span,
    /// An order that shows no effect is given again.
    pub repeat_after: Span,
    /// Tasks of a large array that the scheduler is told of at once; others are served before it hears of the next.
    pub array_slice: usize,
    /// Waiting jobs that a full cycle of the scheduler looks at before others are served.
    pub cycle_slice: usize,
    /// What agents keep of runs that are over.
    pub folders: Folders,
    /// Who answers for failures, and how many restarts there are.
    pub blame: BlamePolicy,
}

impl Default for ControlRules {
    fn default() -> Self {
        Self {
            heartbeat: Span(500),
            silence: Span::seconds(3),
            closed_grace: Span::seconds(1),
            rejoin: Span::seconds(10),
            loss_grace: Span::seconds(1),
            prepare_within: Span::minutes(6),
            overdue: Span::minutes(6),
            repeat_after: Span::seconds(1),
            array_slice: 256,
            cycle_slice: 1_024,
            folders: Folders::default(),
            blame: BlamePolicy::default(),
        }
    }
}

/// How long the folders of runs, with their logs, stay on a node, and how much they may hold together; the oldest go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Folders {
    pub age: Span,
    pub bytes: u64,
}

impl Default for Folders {
    fn default() -> Self {
        Self { age: Span::days(30), bytes: 50_000_000_000 }
    }
}
