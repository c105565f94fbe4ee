//! One output folder, one writer: a lock that goes away with the process that holds it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::Path;

use crate::TrainError;

const LOCK_FILE: &str = "lock";

/// The right to write to an output folder, until it is dropped.
pub(crate) struct OutputLock {
    _file: File,
}

impl OutputLock {
    /// Creates the folder if necessary and takes its lock. A file system without locks has none, and is not refused for it.
    pub(crate) fn take(folder: &Path) -> Result<Self, TrainError> {
        let cannot = |source| TrainError::WriteOutput { path: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(cannot)?;
        let path = folder.join(LOCK_FILE);
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(&path).map_err(cannot)?;
        match file.try_lock() {
            Ok(()) => sign(&mut file).map_err(cannot)?,
            Err(TryLockError::WouldBlock) => {
                return Err(TrainError::FolderLocked { folder: folder.to_owned(), holder: read(&mut file) });
            }
            Err(TryLockError::Error(error)) if is_without_locks(&error) => {}
            Err(TryLockError::Error(source)) => return Err(cannot(source)),
        }
        Ok(Self { _file: file })
    }
}

fn is_without_locks(error: &io::Error) -> bool {
    const NO_LOCKS: i32 = 37;
    const NO_SUCH_CALL: i32 = 38;
    error.kind() == io::ErrorKind::Unsupported
        || [NO_LOCKS, NO_SUCH_CALL].map(Some).contains(&error.raw_os_error())
}

fn sign(file: &mut File) -> io::Result<()> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    file.set_len(0)?;
    writeln!(file, "process {} on {}", std::process::id(), host.trim())
}

fn read(file: &mut File) -> String {
    let mut text = String::new();
    let is_read = file.take(200).read_to_string(&mut text).is_ok() && !text.trim().is_empty();
    if is_read { bedplate_diag::shown(text.trim()) } else { "another process".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_writer_is_refused_and_told_who_the_first_is() {
        let folder = std::env::temp_dir().join(format!("bedplate-train-lock-{}", std::process::id()));
        let first = OutputLock::take(&folder).unwrap();
        let Err(TrainError::FolderLocked { holder, .. }) = OutputLock::take(&folder) else {
            panic!("two writers")
        };
        assert!(holder.starts_with(&format!("process {} on ", std::process::id())), "{holder}");
        drop(first);
        drop(OutputLock::take(&folder).unwrap());
        fs::remove_dir_all(&folder).unwrap();
    }
}
