//! What is wrong with a node's hardware settings, drivers, libraries and environment, what it costs, and how to fix it.
//!
//! [`gather`] reads a node into [`Facts`]; [`examine`] judges them, a pure function; [`differences`] compares nodes.
//! [`nccl`] tells from logs what a job really used. Costs come from the performance model: the same step with and
//! without the flaw.
//!
//! ```
//! use bedplate_catalog::Catalog;
//! use bedplate_doctor::{Facts, Limits, Limit, Verdict, examine};
//!
//! let limits = Limits { locked_memory: Some(Limit::At(65_536)), ..Limits::default() };
//! let facts = Facts { node: "n1".into(), limits, ..Facts::default() };
//! let examination = examine(&facts, &Catalog::builtin(), Some("p5.48xlarge"));
//! let check = examination.checks.iter().find(|check| check.rule == "limit/locked-memory").expect("it is checked");
//! assert_eq!(check.verdict, Verdict::Fail);
//! assert!(check.cost.as_ref().is_some_and(|cost| cost.slowdown > 1.2));
//! ```

mod check;
mod cost;
mod environment;
mod facts;
mod gather;
mod judge;
pub mod nccl;
mod nodes;
mod version;

pub use check::{Check, Cost, Stack, Verdict, worst};
pub use cost::Price;
pub use facts::{Card, Driver, Facts, Gpu, Library, Limit, Limits, Mount, Pci, Remark};
pub use gather::{Sources, gather, parse_nvidia_smi};
pub use judge::{Examination, examine};
pub use nodes::{Difference, OddNode, differences};
pub use version::Version;
