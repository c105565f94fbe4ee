//! Ranks on this machine, without a scheduler: those of a training run, which are replaced when they are killed, and those
//! of a model that is served by several.
//!
//! A process finds out from its environment what it is ([`join`], [`RankPart`]); the one that starts the others tells them so.

mod launcher;
mod others;
mod rank;

pub use launcher::{LocalEnd, LocalLaunch};
pub use others::{OtherRanks, start_others};
pub use rank::{
    RankPart, Variables, end_with_launcher, is_launched, is_told_by_another, join, survives, variables,
    without_batch_script,
};

use bedplate_diag::{Diagnostic, Page, pages};

/// Set for processes that a program started as ranks of its run.
const LAUNCHED: &str = "BEDPLATE_TRAIN_LAUNCHED";
/// Set for a process that waits for a place.
const SPARE: &str = "BEDPLATE_TRAIN_SPARE";
/// The exit code of a rank that ended because another one failed, or because there was no place for it.
pub const ANOTHER_FAILED: u8 = 75;

#[derive(Debug, thiserror::Error)]
pub enum RanksError {
    #[error("rank {rank} was killed by {signal}")]
    Killed { rank: u32, signal: String },
    #[error("cannot start the ranks")]
    Start { source: std::io::Error },
}

pages! { pub PAGES "ranks":
    KILLED "killed" Transient
        "Ranks of the run were killed from outside: by a person, or by the system when memory ran out. No rank that could go on was left."
        "look at `dmesg` for the kernel's out-of-memory killer; then start the run again with `--resume`"
    START "cannot-start" Transient
        "The processes of the ranks could not be started, or no port was free for them to meet."
        "check the limits of processes and open files (`ulimit -a`), then try again"
}

impl Diagnostic for RanksError {
    fn page(&self) -> &'static Page {
        match self {
            RanksError::Killed { .. } => &KILLED,
            RanksError::Start { .. } => &START,
        }
    }
}

fn cannot_start(source: std::io::Error) -> RanksError {
    RanksError::Start { source }
}
