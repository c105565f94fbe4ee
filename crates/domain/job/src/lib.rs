//! The one job format: what a gang needs, where it may stand, and by which rules it runs.
//!
//! A job is a gang: all its nodes start at once and are released at once. A gang has one or more roles
//! (trainers and rollout workers, say), each a number of equal nodes. The scheduler, the control plane and
//! the drivers share these types. Jobs are read from TOML, from JSON with the same keys, and from `#SBATCH`
//! scripts ([`sbatch`]); docs/job.md has every key and option. A value of [`Job`] may be wrong; [`Job::flaws`]
//! says how. There is no clock here: the caller looks up inherited variables and resolves start times.
//!
//! ```
//! use bedplate_job::{Gang, Job, Role, Workload};
//!
//! let trainers = Role { nodes: 64, gpus_per_node: 8, ..Role::named("trainer") };
//! let job = Job::new("pretrain", Workload::command(["python", "train.py"]), Gang::of(trainers));
//! assert_eq!(job.gang.gpus(), 512);
//! assert!(job.flaws().is_empty());
//! assert_eq!(Job::from_toml(&job.to_toml(), "job.toml"), Ok(job));
//! ```

mod array;
mod begin;
mod dependency;
mod environment;
mod error;
mod flaw;
mod format;
mod gang;
mod health;
mod job;
pub mod kubernetes;
mod media;
mod notation;
mod pattern;
mod placement;
mod policy;
pub mod rank_environment;
mod ranks;
pub mod sbatch;
mod shell;
mod signal;
mod state;

pub use array::{Array, IndexRange};
pub use begin::Begin;
pub use dependency::{Dependency, DependencyKind};
pub use environment::{Environment, Inherited, Streams};
pub use error::{JobError, PAGES};
pub use flaw::Flaw;
pub use gang::{Elastic, Gang, Role};
pub use health::{HealthPolicy, Probe};
pub use job::{Hooks, Job, Workload};
pub use kubernetes::PodSettings;
pub use media::JobFormat;
pub use notation::NotationError;
pub use pattern::{ArrayMember, FileNames};
pub use placement::{Closeness, Placement};
pub use policy::{Policy, Preemption};
pub use ranks::{RankBlocks, devices_in, devices_of};
pub use sbatch::{Imported, Remark};
pub use signal::{CheckpointSignal, Receiver};
pub use state::JobState;
