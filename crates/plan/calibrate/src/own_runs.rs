//! Runs of this site: what `bedplate train` measured on a host, and jobs that ran as planned.

mod host_file;
mod planned_job;
mod steps;

pub use host_file::{MovedHost, move_host};
pub use planned_job::{PlannedJob, PlannedQuestion, reported_seconds};
pub use steps::MeasuredSteps;

use bedplate_catalog::CatalogError;
use bedplate_diag::{Diagnostic, Page, Place, pages};
use bedplate_layout::ParseLayoutError;

#[derive(Debug, thiserror::Error)]
pub enum OwnRunsError {
    #[error("`{run}` has no steps to learn from")]
    NoSteps { run: String },
    #[error("`{path}` does not describe this host")]
    NoHost { path: String },
    #[error("no run could be priced on this host; the first was `{run}`")]
    NothingPriced { run: String },
    #[error("`{path}` is not a plan that can be repeated: it lacks `{key}`")]
    NotAPlan { path: String, key: &'static str },
    #[error("`{path}` reports no step")]
    NoReports { path: String },
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error(transparent)]
    Layout(#[from] ParseLayoutError),
}

pages! { pub PAGES "plan":
    NO_STEPS "no-steps" User
        "A folder of a run has no `metrics.jsonl` with at least one step, so there is nothing to calibrate by."
        "name the output folders of runs of `bedplate train` that ended"
    NO_HOST "no-host" User
        "The rates measured on a host are adjusted to what its runs took, and the given file has no host in it."
        "measure it with `bedplate bench machine`, then calibrate"
    NOTHING_PRICED "nothing-priced" User
        "None of the runs can be predicted for this host: the collectives between their ranks were not measured, or their models cannot be priced."
        "`bedplate bench comm --save` measures collectives between ranks of this host"
    NOT_A_PLAN "not-a-plan" User
        "A job is compared with the plan that it was launched with, and the given file is not the output of `bedplate --json plan train`."
        "give `PLAN=REPORTS` with a plan printed by this release"
    NO_REPORTS "no-reports" User
        "The job's reports have no step that says how long it took."
        "give the file that the job reports to, or the output of `bedplate --json job show`"
}

impl OwnRunsError {
    fn inner(&self) -> Option<&dyn Diagnostic> {
        match self {
            OwnRunsError::Catalog(error) => Some(error),
            OwnRunsError::Layout(error) => Some(error),
            _ => None,
        }
    }
}

impl Diagnostic for OwnRunsError {
    fn page(&self) -> &'static Page {
        match self {
            OwnRunsError::NoSteps { .. } => &NO_STEPS,
            OwnRunsError::NoHost { .. } => &NO_HOST,
            OwnRunsError::NothingPriced { .. } => &NOTHING_PRICED,
            OwnRunsError::NotAPlan { .. } => &NOT_A_PLAN,
            OwnRunsError::NoReports { .. } => &NO_REPORTS,
            OwnRunsError::Catalog(error) => error.page(),
            OwnRunsError::Layout(error) => error.page(),
        }
    }

    fn help(&self) -> Option<String> {
        self.inner()?.help()
    }

    fn place(&self) -> Option<&Place> {
        self.inner()?.place()
    }
}

/// The first steps touch memory for the first time; they are left out where there are enough others.
const WARMING: usize = 2;

/// The steps without those that warm up.
fn settled<T>(steps: &[T]) -> &[T] {
    if steps.len() > 2 * WARMING { &steps[WARMING..] } else { steps }
}
