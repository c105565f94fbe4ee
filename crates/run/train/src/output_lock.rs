//! One output folder, one writer: a lock that goes away with the process that holds it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bedplate_diag::shown;
use bedplate_host::{FolderLock, LockError};

use crate::TrainError;

const LOCK_FILE: &str = "lock";

/// Creates the folder if necessary and takes the right to write to it, until the lock is dropped.
pub(crate) fn take(folder: &Path) -> Result<FolderLock, TrainError> {
    let cannot = |source| TrainError::WriteOutput { path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(cannot)?;
    FolderLock::take(&folder.join(LOCK_FILE), Duration::ZERO).map_err(|error| match error {
        LockError::Held { holder } => {
            let holder = holder.map_or_else(|| "another process".to_owned(), |holder| shown(&holder));
            TrainError::FolderLocked { folder: folder.to_owned(), holder }
        }
        LockError::File(source) => cannot(source),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_writer_is_refused_and_told_who_the_first_is() {
        let folder = std::env::temp_dir().join(format!("bedplate-train-lock-{}", std::process::id()));
        let first = take(&folder).unwrap();
        let Err(TrainError::FolderLocked { holder, .. }) = take(&folder) else { panic!("two writers") };
        assert!(holder.starts_with(&format!("process {} on ", std::process::id())), "{holder}");
        drop(first);
        drop(take(&folder).unwrap());
        fs::remove_dir_all(&folder).unwrap();
    }
}
