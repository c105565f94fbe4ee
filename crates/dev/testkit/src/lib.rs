//! What tests share: the rules of the workspace, and golden runs of programs.
//!
//! Used as a dev-dependency only. [`tidy`] holds the architecture's rules as data and checks a workspace
//! against them; [`homes`] names the one place of each small tool; [`Transcript`] runs a program and renders what a user would see; [`counting`] counts allocations; a [`Mutator`] breaks texts;
//! a [`HangingMount`] is a file system that never answers; [`wait_until`] and its kin wait for what other threads and processes do.

pub mod book;
pub mod counting;
mod hanging;
pub mod homes;
mod hosts;
mod logs;
mod map;
mod mutate;
mod programs;
pub mod tidy;
mod transcript;
mod waiting;
mod workspace;

pub use hanging::{Hanging, HangingMount};
pub use hosts::{PLAIN_HOST, host_of_ranks};
pub use logs::{has_logged, keep_logs};
pub use map::{ArchitectureMap, CrateLayer};
pub use mutate::Mutator;
pub use programs::beside;
pub use transcript::Transcript;
pub use waiting::{PATIENCE, wait_for, wait_to_see, wait_until};
pub use workspace::{Dependency, Package, Use, Workspace, root};
