//! What tests share: the rules of the workspace, and golden runs of programs.
//!
//! Used as a dev-dependency only. [`tidy`] holds the architecture's rules as data and checks a workspace
//! against them; [`Transcript`] runs a program and renders what a user would see; [`counting`] counts allocations.

pub mod book;
pub mod counting;
mod logs;
mod map;
mod programs;
pub mod tidy;
mod transcript;
mod workspace;

pub use logs::{has_logged, keep_logs};
pub use map::{ArchitectureMap, CrateLayer};
pub use programs::beside;
pub use transcript::Transcript;
pub use workspace::{Dependency, Package, Use, Workspace, root};
