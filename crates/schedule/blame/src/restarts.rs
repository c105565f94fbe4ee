//! The budget of restarts of one job.

use bedplate_gangs::Span;

use crate::BlamePolicy;

/// Why a job starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartCause {
    /// Something failed: the job, a node, a link.
    Failure,
    /// A rank said that a GPU failed it, which [`Blame::job_failed`](crate::Blame::job_failed) was told. The budget pays for it
    /// only after [`BlamePolicy::most_excused`] of them, because a job can say so whenever it likes.
    ReportedDevice,
    /// A scheduler or a person moved it. This costs nothing: the job did not ask for it.
    Moved,
}

/// Whether and when a job may start again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// After this pause.
    After(Span),
    /// Its budget is used up.
    Exhausted { restarts: u32 },
}

/// Restarts since the last newer checkpoint or steady run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Budget {
    restarts: u32,
}

impl Budget {
    pub(crate) fn used(restarts: u32) -> Self {
        Self { restarts }
    }

    pub(crate) fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Accounts for a restart after a run of length `ran`.
    pub(crate) fn spend(&mut self, cause: RestartCause, ran: Span, policy: &BlamePolicy) -> Restart {
        if cause == RestartCause::Moved {
            return Restart::After(Span::ZERO);
        }
        if ran >= policy.steady {
            self.restarts = 0;
        }
        if self.restarts >= policy.most_restarts {
            return Restart::Exhausted { restarts: self.restarts };
        }
        self.restarts += 1;
        Restart::After(policy.pause(self.restarts))
    }
}
