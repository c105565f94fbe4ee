//! Job traces and generated loads, run through the gang scheduler under different policies.
//!
//! [`read`] makes a [`Trace`] from a text, [`Generator`] makes one from a fitted model; [`ReplayPolicy`] names the rules
//! to compare, [`simulate`] runs one of them, [`ReplaySummary`] says how well it did and [`Comparison`] how several did side by side. A job's duration is the run
//! time in the trace, stretched by where the scheduler puts it and by how many nodes it gets; failures are
//! drawn per node and are the same for every policy.
//!
//! ```
//! use bedplate_catalog::Catalog;
//! use bedplate_diag::Source;
//! use bedplate_gangs::Span;
//! use bedplate_replay::jobs::{ReplayPolicy, Replay, ReplaySummary, read, simulate};
//! use bedplate_topology::Cluster;
//!
//! let text = "{\"submit_s\": 0, \"duration_s\": 3600, \"nodes\": 2, \"gpus_per_node\": 8}\n\
//!             {\"submit_s\": 60, \"duration_s\": 600, \"gpus\": 4}\n";
//! let trace = read(Source::new("jobs.jsonl", text), None)?;
//! let cluster = Cluster::from_spec("p5.48xlarge:2", &Catalog::builtin()).unwrap();
//! let easy = ReplayPolicy::find("easy").unwrap();
//! let outcome = simulate(&trace, &cluster, &Replay::new(easy), &mut |_| {});
//! let summary = ReplaySummary::of(&trace, &outcome);
//! assert_eq!(summary.ended, 2);
//! assert_eq!(summary.wait.longest, Span::seconds(3540), "the small job waits for the large one");
//! # Ok::<(), bedplate_replay::jobs::TraceError>(())
//! ```

mod comparison;
mod error;
mod estimate;
mod failures;
mod format;
mod generate;
mod jsonl;
mod lines;
mod live;
mod lublin;
mod metrics;
mod openb;
mod philly;
mod policy;
mod sacct;
mod series;
mod simulate;
mod swf;
mod trace;
mod workload;
mod worlds;

pub use comparison::{Comparison, Mean, Run};
pub use error::{PAGES, TraceError};
pub use estimate::Estimates;
pub use failures::{Failures, NodeFailure};
pub use format::{TraceFormat, detect, read};
pub use generate::{Generator, JobKind, LoadMixture};
pub use jsonl::write_jsonl;
pub use lublin::Lublin;
pub use metrics::{ClassSummary, Distribution, GpuTime, JobClass, ReplaySummary};
pub use openb::openb_cluster;
pub use policy::ReplayPolicy;
pub use series::{JobSeries, SeriesSample};
pub use simulate::{End, JobRecord, JobTimeline, Outcome, Replay, ReplayProgress, Segment, simulate};
pub use trace::{Ending, Size, Trace, TraceJob, TraceNames, TraceRemark};
pub use workload::with_limits;
pub use worlds::World;
