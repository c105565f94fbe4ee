//! Every legal layout of a training run: enumerated, priced, ranked and explained.
//!
//! A [`Setup`] is a model, a machine, a workload and constants. [`search`] enumerates every layout that the
//! rules of `layout` allow within [`Axes`], checks memory first, prices the rest with `perf` and keeps the
//! best; nearly equal layouts are ranked by [`Doubt`]s, refusals are counted with their reasons, and a question without an answer gets the nearest one
//! that has one. [`explain`] says why a layout ranks where it does, [`what_if`] prices it in a changed setup,
//! [`scaling`] follows the best layout over numbers of GPUs, [`TrainingPlan`] is all of that at once,
//! [`HostQuestion`] chooses a layout for ranks of one host, [`choose`] compares every machine of the catalog
//! under a deadline and a budget, and [`budget`] says which model size to train for the money.
//!
//! Nothing here reads a clock or starts a thread: a caller with several cores prices [`Space::slices`].
//!
//! ```
//! use bedplate_catalog::Catalog;
//! use bedplate_perf::{Constants, Hardware, Workload};
//! use bedplate_search::{Axes, Setup, search};
//! use bedplate_topology::Cluster;
//! use bedplate_transformer::builtin;
//!
//! let catalog = Catalog::builtin();
//! let cluster = Cluster::from_spec("p5.48xlarge:8", &catalog)?;
//! let setup = Setup {
//!     model: &builtin("llama-3-70b")?,
//!     hardware: Hardware::from_cluster(&cluster, &catalog)?,
//!     workload: Workload { sequence: 8192, global_batch: 128, ..Workload::default() },
//!     constants: &Constants::builtin(),
//! };
//! let answer = search(&setup, &Axes::default(), 10)?;
//! let best = &answer.best[0];
//! assert_eq!(best.layout.world(), 64);
//! assert_eq!(best.seconds, setup.predict(&best.layout)?.seconds());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod answer;
mod axes;
mod batch_size;
mod best;
mod budget;
mod candidate;
mod choose;
mod error;
mod explain;
mod host;
mod idle;
mod machine;
mod near_miss;
mod nearest;
mod pareto;
mod plan;
mod preference;
mod price;
mod refusals;
mod regret;
mod reliability;
mod remedy;
mod scaling;
mod setup;
mod space;
mod usual;
mod what_if;

pub use answer::{SearchAnswer, Tipped, search};
pub use axes::{Axes, ShardingKind};
pub use batch_size::BatchSize;
pub use budget::{BudgetPlan, Law, Means, Optimum, budget};
pub use candidate::LayoutCandidate;
pub use choose::{MachineChoice, Objection, Offer, TrainingNeed, Uncalibrated, choose};
pub use error::{PAGES, SearchError};
pub use explain::{LayoutExplanation, LayoutVerdict, Loss, explain};
pub use host::{HostChoice, HostQuestion, NoHostLayout};
pub use idle::{IdleGain, IdleGpus, with_idle_gpus};
pub use machine::Machine;
pub use near_miss::{NearMiss, QuestionChange};
pub use nearest::{Nearest, fits_on, legal_gpu_counts, smallest_gpu_count};
pub use pareto::pareto;
pub use plan::{PlanOptions, TrainingPlan};
pub use preference::{Doubt, DoubtQuestion, doubts};
pub use price::{LayoutCounts, Priced};
pub use refusals::{RefusalCount, Refusals};
pub use regret::{Regret, regrets};
pub use reliability::{NodesJob, Reliability};
pub use remedy::{Remedy, remedies};
pub use scaling::{GpuScaling, ScaledStep, ScalingPoint, scaling, scaling_curve};
pub use setup::Setup;
pub use space::Space;
pub use usual::{usual_batch, usual_sequence, usual_stack};
pub use what_if::{Counterfactual, WhatIf, WhatIfOutcome, what_if, what_if_best};
