//! A gang inside an allocation of another scheduler: its ranks are started, watched and, after a failure, started again
//! on the nodes that remain, from the newest checkpoint that they announced.
//!
//! The *launcher* ([`launch`]) runs once, where the batch script runs. It starts a *helper* ([`help`]) on every node of the
//! allocation, spares included, each in a step of its own, so that the loss of one node ends no other. Helpers connect
//! back, start and stop ranks by order, and send a heartbeat; a node that is stopped rather than dead is noticed by its
//! silence. What to do is decided by [`LaunchedGang`], a state machine without clock or I/O, on the verdicts of `blame`.
//! [`local`] starts and replaces ranks on one machine, where there is no scheduler.

mod allocation;
mod error;
mod gang;
mod helper;
mod launcher;
pub mod local;
mod record;
mod signals;
mod slurm;
mod starts;
mod wire;

pub use allocation::Allocation;
pub use error::{LaunchError, PAGES};
pub use gang::{Absence, LaunchRules, LaunchedGang, LauncherOrder, Loss};
pub use helper::{HelperOptions, help};
pub use launcher::{LaunchOptions, launch};
pub use record::LaunchRecord;
pub use wire::{End, RanksStart};
