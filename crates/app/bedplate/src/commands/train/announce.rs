//! What a run in a job hears from its environment and says to its agent.

use std::path::PathBuf;

use bedplate_train::Resume;

/// The file in which a rank says how far it is; absent outside of jobs.
pub(super) fn from_environment() -> Option<PathBuf> {
    std::env::var_os("BEDPLATE_REPORT").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The newest checkpoint that the job announced before; in any job the newest there is.
pub(super) fn resume_from_environment() -> Resume {
    let announced = std::env::var_os("BEDPLATE_CHECKPOINT_PATH").map(PathBuf::from);
    match announced.filter(|path| path.exists()) {
        Some(path) => Resume::From(path),
        None if from_environment().is_some() => Resume::IfPossible,
        None => Resume::No,
    }
}
