//! The control plane of a cluster, and the agent of each of its nodes, as state machines.
//!
//! Events go in with the time; commands for agents and records for the journal come out. Nothing here has a clock, a
//! socket, a file or a process, so a whole cluster with its failures runs inside a test (`tests/storm`), and the
//! daemon and the agents run the same code.
//!
//! The rule that makes a crash harmless: what [`Control`] puts out is carried out only once the records that
//! came with it are on disk. The rule that makes a lost node harmless: an agent that has not been heard for as
//! long as the control plane waits has killed its ranks by then ([`agent`]).

pub mod agent;
pub mod record;
pub mod wire;

mod arrivals;
mod control;
mod decisions;
mod faults;
mod findings;
mod in_place;
mod launch;
mod live;
mod membership;
mod names;
mod node;
mod progress;
mod reason;
mod remedy;
mod restore;
mod rules;
mod run;
mod submit;
mod usage;
mod view;
mod watch;

pub use control::{Command, Control, LinkId, Notice, Output};
pub use membership::Unlinked;
pub use record::{Record, Restored};
pub use remedy::JobRemedy;
pub use rules::{ControlRules, Folders};
pub use submit::{Accepted, ClientOrder, JobName, OrderRefusal, Past, Submission};
pub use usage::UsageBy;
pub use view::{Counts, JobFilter, JobLine, JobPage, JobView, NodeView, RunMachines};
