//! What is wrong with a node's hardware settings, drivers, libraries and environment, what it costs, and how to fix it.
//!
//! [`gather`] reads a node into [`NodeFacts`]; [`examine`] judges them, a pure function; [`differences`] compares nodes.
//! [`nccl`] tells from logs what a job really used. [`deep`] works a machine hard and compares every result, and
//! [`SelfTest`] holds a device against the processor and the catalog. Costs come from the performance model: the same step with and
//! without the flaw.
//!
//! ```
//! use bedplate_catalog::Catalog;
//! use bedplate_doctor::{NodeFacts, SystemLimits, SystemLimit, CheckVerdict, examine};
//!
//! let limits = SystemLimits { locked_memory: Some(SystemLimit::At(65_536)), ..SystemLimits::default() };
//! let facts = NodeFacts { node: "n1".into(), limits, ..NodeFacts::default() };
//! let examination = examine(&facts, &Catalog::builtin(), Some("p5.48xlarge"));
//! let check = examination.checks.iter().find(|check| check.rule == "limit/locked-memory").expect("it is checked");
//! assert_eq!(check.verdict, CheckVerdict::Fail);
//! assert!(check.cost.as_ref().is_some_and(|cost| cost.slowdown > 1.2));
//! ```

mod check;
mod cost;
pub mod deep;
mod environment;
mod facts;
mod gather;
mod judge;
pub mod nccl;
mod nodes;
mod selftest;
mod version;

pub use check::{Check, CheckVerdict, Cost, Stack, worst};
pub use cost::FlawPricing;
pub use facts::{
    Card, Driver, GpuFacts, LibraryCopy, Mount, NodeFacts, Pci, SystemLimit, SystemLimits, UnreadSource,
};
pub use gather::{Sources, gather, parse_nvidia_smi};
pub use judge::{Examination, examine};
pub use nodes::{Difference, OddNode, differences};
pub use selftest::{MeasuredRate, SelfTest};
pub use version::Version;
