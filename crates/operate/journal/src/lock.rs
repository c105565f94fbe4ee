//! One daemon at a time: a lock on a file beside the journal, which names the process that holds it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_host::{FolderLock, LockError};

use crate::JournalError;

/// How long an earlier daemon may take to end.
const PATIENCE: Duration = Duration::from_secs(1);

/// Takes the lock of a journal.
pub(crate) fn take(journal: &Path) -> Result<FolderLock, JournalError> {
    let path = beside(journal);
    FolderLock::take(&path, PATIENCE).map_err(|error| match error {
        LockError::Held { holder } => {
            JournalError::InUse { path: journal.to_owned(), pid: process_of(holder) }
        }
        LockError::File(source) => JournalError::Folder { path: path.clone(), source },
    })
}

fn beside(journal: &Path) -> PathBuf {
    let mut name = journal.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// The number in `process 12 on node7`; the holder may not have written it yet.
fn process_of(holder: Option<String>) -> Option<u32> {
    holder?.split_whitespace().nth(1)?.parse().ok()
}
