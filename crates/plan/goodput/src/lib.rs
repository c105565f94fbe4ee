//! The whole run: how often it fails, what checkpoints and recovery cost, how long it takes, what it costs.
//!
//! A step's time comes from `perf`; here it becomes days and dollars. [`Published`] holds failure facts with
//! their sources, [`CheckpointCosts`] the exact expectation and the best checkpoint interval, [`RunSpec`] puts a job
//! together (durable checkpoints, copies in peers, continuing with fewer nodes), and
//! [`RunLimits`] checks it; [`Assumptions`] makes one of what a user gives and of what is published. [`simulate()`] simulates the same process from a seed, which is how the formulas are
//! tested. This crate does not know layouts.
//!
//! ```
//! use bedplate_catalog::Catalog;
//! use bedplate_goodput::{CheckpointCost, Published, Recovery, RunSpec, CheckpointStore, checkpoint_bytes};
//! use bedplate_transformer::{Optimizer, builtin};
//! use bedplate_units::{Bytes, Seconds};
//!
//! let (catalog, published) = (Catalog::builtin(), Published::builtin());
//! let lustre = CheckpointStore::shared(catalog.storage_class("fsx-lustre-persistent-1000")?, Bytes::tb(400.0));
//! let bytes = checkpoint_bytes(&builtin("llama-3.1-405b")?, Optimizer::AdamW);
//! let run = RunSpec {
//!     step: Seconds::new(20.0),
//!     steps: 200_000.0,
//!     nodes: 2048,
//!     gpus_per_node: 8,
//!     failures_per_node_day: published.rate("llama3")?.per_node_day,
//!     checkpoint: CheckpointCost::asynchronous(bytes, &lustre, 2048, Seconds::new(5.0))?,
//!     recovery: Recovery::restart(&published),
//!     interval: None,
//! };
//! let outlook = run.outlook()?;
//! assert!((0.80..0.95).contains(&outlook.goodput));
//! assert!((300.0..600.0).contains(&outlook.interruptions));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bill;
mod error;
mod interval;
mod published;
mod recovery;
mod run;
mod simulate;
mod store;
mod whole_run;

pub use bill::{Bill, Judgement, LONGEST_BLOCK, LimitVerdict, Rent, RunLimits, bill, interruptions};
pub use error::{GoodputError, PAGES};
pub use interval::CheckpointCosts;
pub use published::{Checked, Downtime, Figure, InterruptionCause, Provenance, Published, PublishedRate};
pub use recovery::{CopyLevel, Elastic, Recovery};
pub use run::{CheckpointCost, Losses, RunOutlook, RunSpec};
pub use simulate::{Simulated, simulate};
pub use store::{CheckpointStore, checkpoint_bytes};
pub use whole_run::{Assumptions, Machines, RecoveryKind, Restart, Unpriced, WholeRun, Work};
