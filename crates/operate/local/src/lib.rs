//! A cluster on this machine: one daemon and one agent for each node, each a process of its own.
//!
//! The state directory has everything that is needed to find them, to start them again and to end them. Processes
//! are found by inspecting the machine, never by a list. What is printed goes through [`Launcher::say`].
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use bedplate_catalog::Catalog;
//! use bedplate_local::{Launcher, TemporaryCluster, Wanted};
//!
//! let launcher = Launcher::of_this_program(Vec::new(), Arc::new(|_| ()))?;
//! let wanted = Wanted { nodes: Some(2), like: Some("p5.48xlarge".to_owned()), ..Wanted::default() };
//! let cluster = TemporaryCluster::start(&wanted, &Catalog::builtin(), launcher)?;
//! cluster.stop()?;
//! # Ok::<(), bedplate_local::LocalError>(())
//! ```

mod down;
mod error;
mod fresh;
pub mod host;
mod host_run;
mod join;
mod launch;
pub mod machine;
mod note;
mod places;
mod progress;
mod shape;
mod share;
mod supervise;
mod temporary;
mod up;

pub use down::{kill_daemon, take_down};
pub use error::{LocalError, PAGES};
pub use fresh::set_aside;
pub use host_run::host_run;
pub use join::{Joined, invite};
pub use launch::{Launcher, Say, find_agent, hold, is_running, stop_supervisor};
pub use machine::Machine;
pub use note::{SupervisorNote, Trouble};
pub use places::{home, state_directory, variable};
pub use progress::WORKING_THREADS;
pub use shape::{Shape, Wanted, Watch};
pub use share::Share;
pub use supervise::Supervision;
pub use temporary::TemporaryCluster;
pub use up::Up;
