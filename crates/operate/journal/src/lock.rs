//! One daemon at a time: a lock on a file beside the journal, which names the process that holds it.
//!
//! The lock belongs to the open file, so it goes with its process however that ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::JournalError;

/// How long an earlier daemon may take to end.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// Held as long as it lives.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    pub(crate) fn take(journal: &Path) -> Result<Self, JournalError> {
        let path = beside(journal);
        let failed = |source| JournalError::Folder { path: path.clone(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                // A process that was killed holds its files until the last of its threads is gone.
                Err(TryLockError::WouldBlock) if began.elapsed() < PATIENCE => thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => {
                    return Err(JournalError::InUse { path: journal.to_owned(), pid: holder(&mut file) });
                }
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
        }
        file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

fn beside(journal: &Path) -> PathBuf {
    let mut name = journal.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// The holder of the lock may not have written its number yet.
fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
