//! Which deployment serves a load within its objectives for the least money.
//!
//! A [`Need`] is a model, a load and objectives; a [`Supply`] is GPUs with a price. [`search`] splits a replica in
//! every way that fits, estimates the throughput of each ([`Estimate`]), and replays requests through the cheapest
//! plans, in one pool or two, until one holds. It also finds the front of tokens per second and user
//! against tokens per second and GPU. [`outlook`] says with which confidence a plan's objectives hold, [`explain`] gives the verdict on everything else; a question without an
//! answer is a [`DeployError`] that names the limit and the nearest question that has one. [`launch`] writes a
//! plan as flags of engines, [`training`] a training plan as settings of trainers. [`posttrain`] plans reinforcement learning on the same models, and [`test_time`]
//! prices best-of-n and long thinking.
//!
//! ```
//! use bedplate_catalog::{Catalog, Purchase};
//! use bedplate_deploy::{OfferedLoad, Need, DeployOptions, Supply, search};
//! use bedplate_perf::serving::{ServedModel, ServingConstants};
//! use bedplate_replay::requests::{Objectives, picoseconds};
//! use bedplate_topology::Cluster;
//!
//! let catalog = Catalog::builtin();
//! let cluster = Cluster::from_spec("p5en.48xlarge:1", &catalog)?;
//! let supply = Supply::of_cluster(&cluster, &catalog, Purchase::OnDemand, None)?;
//! let need = Need {
//!     model: &ServedModel::named("llama-3.1-8b")?,
//!     load: OfferedLoad::new(1000, 200, 5.0),
//!     traced: None,
//!     objectives: Objectives { ttft: Some(picoseconds(0.5)), itl: Some(picoseconds(0.03)), end_to_end: None },
//!     constants: &ServingConstants::builtin(),
//!     site: None,
//!     errors: None,
//!     alternatives: &[],
//!     options: DeployOptions::default(),
//! };
//! let answer = search(&need, &[supply])?;
//! // One GPU would do, and the others of the machine are paid for.
//! assert_eq!(answer.best.plan.gpus(), 8);
//! assert!(answer.best.shown.share >= 0.95);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod candidate;
mod doubt;
mod energy;
mod engine;
mod error;
mod estimate;
mod explain;
mod front;
mod layout;
mod need;
mod outlook;
mod plan;
mod refuse;
mod replicas;
mod search;
mod space;
mod supply;
mod tie;
mod verdict;
mod verify;

pub mod launch;
pub mod posttrain;
pub mod test_time;
pub mod training;

pub use candidate::fit;
pub use doubt::unmeasured;
pub use energy::Energy;
pub use engine::TimedReplica;
pub use error::{DeployError, Failing, Longer, PAGES, Shortage};
pub use estimate::{Estimate, LimitBound, Miss};
pub use explain::{LayoutPattern, Pattern, PlanExplanation, explain};
pub use front::FrontPoint;
pub use layout::{ServingLayout, ServingLayoutRefusal};
pub use need::{DeployOptions, Need, OfferedLoad, Pictures, Pooling, Recorded};
pub use outlook::{Expectation, FrontOutlook, Outlook, OutlookLimit, front_outlook, outlook};
pub use plan::{Plan, Workers};
pub use replicas::{Numbers, PAGES as REPLICA_PAGES, RefusedReplica};
pub use search::{DeployAnswer, HeldPlan, Other, search};
pub use supply::Supply;
pub use tie::Edge;
pub use verdict::{Tried, TriedSubject, Verdict};
pub use verify::{ReplayStage, Shown};
