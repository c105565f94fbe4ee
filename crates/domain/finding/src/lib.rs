//! What is wrong with a cluster, and what to do about it, as data.
//!
//! `health` and `diagnose` produce findings, the control plane carries their actions out, reports print
//! them. This crate holds the nouns and one piece of logic: when several findings concern one subject, the
//! strongest action wins. This crate does not know who observes or who acts.
//!
//! ```
//! use bedplate_finding::{Action, Finding, Layer, Severity, Subject, strongest_action};
//!
//! let node = Subject::Node { node: "n003".into() };
//! let findings = [
//!     Finding::new("gpu/xid-79", Severity::Critical, Layer::Hardware, node.clone(), Action::Replace)
//!         .because("GPU 4 has fallen off the bus"),
//!     Finding::new("efa/retransmits", Severity::Warning, Layer::Network, node.clone(), Action::Watch),
//! ];
//! assert_eq!(strongest_action(&findings, &node), Some(Action::Replace));
//! ```

mod action;
mod finding;
mod subject;

pub use action::{Action, strongest_action};
pub use finding::{Evidence, Finding, Layer, OpenFinding, Severity};
pub use subject::Subject;
