//! Locks on folders: one writer at a time, told apart by process.
//!
//! The lock belongs to the open file, so it goes with its process however that ends. The file names its holder, for the error of the next.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(5);
/// The longest name of a holder that is read.
const LONGEST: u64 = 200;

/// The right to write to a folder, until it is dropped.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

/// Why a lock was not taken.
#[derive(Debug)]
pub enum LockError {
    /// Another process has it; what it wrote of itself, `process 12 on node7`, where it has written yet.
    Held {
        holder: Option<String>,
    },
    File(io::Error),
}

impl From<io::Error> for LockError {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

impl FolderLock {
    /// Takes the lock of a file that is created if missing. `patience` is for a holder that is ending: a killed process holds its
    /// files until the last of its threads is gone. A file system without locks has none, and is not refused for it.
    pub fn take(path: &Path, patience: Duration) -> Result<Self, LockError> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if began.elapsed() < patience => thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => return Err(LockError::Held { holder: holder(&mut file) }),
                Err(TryLockError::Error(error)) if is_without_locks(&error) => break,
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
        }
        sign(&mut file)?;
        Ok(Self { _file: file })
    }

    /// Whether the lock of a file could be taken now; a missing file is nobody's.
    pub fn is_free(path: &Path) -> bool {
        File::open(path).is_ok_and(|file| file.try_lock().is_ok())
    }
}

fn is_without_locks(error: &io::Error) -> bool {
    let missing = [nix::errno::Errno::ENOLCK, nix::errno::Errno::ENOSYS].map(|code| Some(code as i32));
    error.kind() == io::ErrorKind::Unsupported || missing.contains(&error.raw_os_error())
}

fn sign(file: &mut File) -> io::Result<()> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "process {} on {}", std::process::id(), host.trim())
}

fn holder(file: &mut File) -> Option<String> {
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_refused_and_told_who_the_first_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        assert!(!FolderLock::is_free(&path), "there is no lock yet");
        let first = FolderLock::take(&path, Duration::ZERO).unwrap();
        assert!(!FolderLock::is_free(&path));
        let Err(LockError::Held { holder }) = FolderLock::take(&path, Duration::from_millis(20)) else {
            panic!("two holders")
        };
        assert!(holder.unwrap().starts_with(&format!("process {} on ", std::process::id())));
        drop(first);
        assert!(FolderLock::is_free(&path));
        drop(FolderLock::take(&path, Duration::ZERO).unwrap());
        assert!(matches!(FolderLock::take(folder.path(), Duration::ZERO), Err(LockError::File(_))));
    }
}
