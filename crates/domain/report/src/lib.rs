//! What a job tells the cluster that runs it: one line a report, appended to a file.
//!
//! `train` writes these lines, the agent of a node reads them, and any other program may write them too
//! (`docs/report.md`). A line is a JSON object with a version; the plain forms `progress N` and
//! `checkpoint STEP PATH` are read as well. What a cluster keeps of the steps of a run is a [`StepHistory`], and what
//! they should take an [`Expectation`]. Where the file is, who reads it and how often is decided elsewhere.
//!
//! ```
//! use bedplate_report::{Report, StepHistory};
//!
//! let line = br#"{"version":1,"report":"step","step":7,"seconds":0.5,"breakdown":{"compute":0.4,"host":0.1}}"#;
//! let report = Report::from_line(line)?;
//! let mut history = StepHistory::default();
//! history.take(0, &report);
//! assert_eq!((history.steps, history.mean_s), (1, 0.5));
//! assert_eq!(Report::from_line(b"progress 8")?, Report::Progress { step: 8 });
//! # Ok::<(), bedplate_report::NotAReport>(())
//! ```

mod arguments;
mod expectation;
mod history;
mod line;
mod loss;
mod report;
mod stretch;

pub use arguments::{OWN_TRAINER, RunArguments};
pub use expectation::{Basis, Expectation, StepPace};
pub use history::StepHistory;
pub use line::{LONGEST_LINE, NotAReport, VERSION};
pub use report::{Checkpoint, FaultReport, Phase, Report, StepReport};
pub use stretch::{FirstSteps, StepStretch};
