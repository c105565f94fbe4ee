//! Room on the disk that only the journal gets: a file of zeros that is given up when the disk is full.
//!
//! Logs and checkpoints fill disks. What the journal needs then is little: that jobs end, that submissions are refused in good order. The reserve
//! lasts for that; it is made again once there is plenty of room.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;

use crate::Journal;

/// A reserve is made where so many times its size is free.
const PLENTY: u64 = 16;

/// What a daemon needs to start.
const LEAST: u64 = 4 << 20;

#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    bytes: u64,
}

impl Reserve {
    pub(crate) fn of(journal: &Path, bytes: u64) -> Self {
        let reserve = Self { path: path_of(journal), bytes };
        reserve.keep();
        reserve
    }

    /// Makes it where it is missing and there is room; a system that cannot has none.
    pub(crate) fn keep(&self) {
        let is_there = fs::metadata(&self.path).is_ok_and(|metadata| metadata.len() == self.bytes);
        if self.bytes == 0 || is_there || free_beside(&self.path) < PLENTY * self.bytes {
            return;
        }
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.path);
        let made =
            file.is_ok_and(|file| fallocate(file, FallocateFlags::empty(), 0, self.bytes as i64).is_ok());
        if !made {
            self.give_up();
        }
    }

    /// Whether there was something to give.
    pub(crate) fn give_up(&self) -> bool {
        fs::remove_file(&self.path).is_ok()
    }
}

/// Gives up the reserve of a journal that is about to be opened on a disk without room, so that its daemon can start.
pub fn make_room(journal: &Path) {
    if free_beside(journal) < LEAST {
        let _ = fs::remove_file(path_of(journal));
    }
}

fn path_of(journal: &Path) -> PathBuf {
    journal.with_extension("reserve")
}

fn free_beside(path: &Path) -> u64 {
    let folder = path.parent().unwrap_or(Path::new("."));
    statvfs(folder).map_or(0, |room| room.blocks_available() * room.fragment_size())
}

impl Journal {
    /// Keeps so many bytes of the disk for this journal.
    pub fn hold_reserve(&mut self, path: &Path, bytes: u64) {
        self.reserve = Some(Reserve::of(path, bytes));
    }

    /// Whether there is more room now, after the disk was full.
    pub(crate) fn give_up_reserve(&self) -> bool {
        self.reserve.as_ref().is_some_and(Reserve::give_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_takes_room_once_and_gives_it_up_once() {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("journal.sqlite");
        let reserve = Reserve::of(&journal, 1 << 20);
        assert_eq!(fs::metadata(folder.path().join("journal.reserve")).unwrap().len(), 1 << 20);
        assert!(reserve.give_up() && !reserve.give_up());
        reserve.keep();
        assert!(reserve.give_up());
        reserve.keep();
        make_room(&journal);
        assert!(reserve.give_up(), "there is room, so it stays");
        assert!(!Reserve::of(&journal, u64::MAX / PLENTY).give_up(), "there is not so much room");
    }
}
