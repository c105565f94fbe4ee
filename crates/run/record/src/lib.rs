//! The records of a training run, in four forms at once.
//!
//! A loop makes one [`StepRecord`] per step, and an [`EvaluationRecord`] now and then; each form takes the same records:
//! [`EventFile`] for TensorBoard, [`RecordLines`] of JSON for scripts, an [`Endpoint`] for Prometheus, and [`Progress`] for
//! people who watch. A run that resumes at a step removes an earlier run's records of later steps. This crate does not
//! know what is trained, or how.
//!
//! ```
//! use bedplate_record::{RecordLines, StepRecord};
//!
//! # let folder = std::env::temp_dir().join(format!("bedplate-record-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).unwrap();
//! let path = folder.join("train.jsonl");
//! let mut lines = RecordLines::create(&path)?;
//! lines.write_step(&StepRecord { step: 1, loss: 10.8, ..StepRecord::default() })?;
//! lines.write_step(&StepRecord { step: 2, loss: 10.1, ..StepRecord::default() })?;
//!
//! let mut lines = RecordLines::resume(&path, 1, None)?;
//! lines.write_step(&StepRecord { step: 2, loss: 10.2, ..StepRecord::default() })?;
//! assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
//! # std::fs::remove_dir_all(&folder).unwrap();
//! # Ok::<(), bedplate_record::RecordError>(())
//! ```

mod counting;
mod endpoint;
mod error;
mod event;
mod event_file;
mod exposition;
mod framing;
mod lines;
mod metrics;
mod progress;
mod progress_line;
mod record;
mod server;

pub use counting::{Counter, Histogram};
pub use endpoint::Endpoint;
pub use error::{PAGES, RecordError};
pub use event_file::EventFile;
pub use exposition::Exposition;
pub use lines::RecordLines;
pub use metrics::Metrics;
pub use progress::Progress;
pub use progress_line::ProgressLine;
pub use record::{EvaluationRecord, RankTimes, RanksRecord, StepRecord};
pub use server::{Exposure, MetricsServer};
