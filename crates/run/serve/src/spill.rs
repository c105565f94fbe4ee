//! Blocks outside the pool: those of sequences that were swapped out, and prefixes that fell out of it.
//!
//! Prefixes go to host memory and, where that is full, to files of a folder; the least recently used are forgotten. They are found again by
//! their key, which follows from all tokens before them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bedplate_batching::BlockKey;

use crate::events;

/// Prefixes that fell out of the pool.
#[derive(Debug, Default)]
pub(crate) struct Spill {
    memory: Tier<Box<[u8]>>,
    disk: Option<Disk>,
}

/// Entries by key, the least recently used first in `order`.
#[derive(Debug)]
struct Tier<T> {
    entries: BTreeMap<BlockKey, (u64, T)>,
    order: BTreeMap<u64, BlockKey>,
    clock: u64,
    most: usize,
}

#[derive(Debug)]
struct Disk {
    /// Of this engine alone.
    folder: PathBuf,
    files: Tier<()>,
    /// The newest block could not be written.
    is_failing: bool,
    /// Locked as long as the engine lives.
    _lock: File,
}

impl<T> Default for Tier<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), order: BTreeMap::new(), clock: 0, most: 0 }
    }
}

impl<T> Tier<T> {
    fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    fn take(&mut self, key: BlockKey) -> Option<T> {
        let (used, entry) = self.entries.remove(&key)?;
        self.order.remove(&used);
        Some(entry)
    }

    /// Adds an entry, and gives the one that has to leave for it.
    fn put(&mut self, key: BlockKey, entry: T) -> Option<(BlockKey, T)> {
        if self.most == 0 {
            return Some((key, entry));
        }
        self.take(key);
        self.clock += 1;
        self.order.insert(self.clock, key);
        self.entries.insert(key, (self.clock, entry));
        if self.entries.len() <= self.most {
            return None;
        }
        let (_, oldest) = self.order.pop_first()?;
        self.entries.remove(&oldest).map(|(_, entry)| (oldest, entry))
    }
}

impl Spill {
    /// For so many blocks in memory, and so many in a folder. Other processes may use the same folder; what those have left that are gone
    /// is removed.
    pub(crate) fn new(in_memory: usize, on_disk: Option<(PathBuf, usize)>) -> io::Result<Self> {
        let disk = match on_disk {
            None => None,
            Some((folder, most)) => {
                fs::create_dir_all(&folder)?;
                // One engine at a time clears and moves in. Where a file system cannot lock a folder, each does it at its own risk.
                let whole = File::open(&folder)?;
                let _ = whole.lock();
                remove_what_was_left(&folder)?;
                Some(Disk::new(&folder, most)?)
            }
        };
        Ok(Self { memory: Tier::new(in_memory), disk })
    }

    pub(crate) fn is_used(&self) -> bool {
        self.memory.most > 0 || self.disk.is_some()
    }

    /// Keeps a block.
    pub(crate) fn put(&mut self, key: BlockKey, block: Box<[u8]>) {
        let Some((key, block)) = self.memory.put(key, block) else { return };
        if let Some(disk) = &mut self.disk {
            disk.put(key, &block);
        }
    }

    #[cfg(test)]
    fn has(&self, key: BlockKey) -> bool {
        let is_on_disk = |disk: &Disk| disk.files.entries.contains_key(&key);
        self.memory.entries.contains_key(&key) || self.disk.as_ref().is_some_and(is_on_disk)
    }

    /// Takes a block back. None where it was not kept, or its file can no longer be read.
    pub(crate) fn take(&mut self, key: BlockKey) -> Option<Box<[u8]>> {
        self.memory.take(key).or_else(|| self.disk.as_mut()?.take(key))
    }
}

const EXTENSION: &str = "kv";
/// How folders of engines begin, and the file in each that a living engine has locked.
const FOLDER: &str = "engine-";
const LOCK: &str = "lock";

/// Removes the folders of engines that are gone.
fn remove_what_was_left(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        let is_of_engine = entry.file_name().to_string_lossy().starts_with(FOLDER);
        if let (true, Ok(lock)) = (is_of_engine, File::open(entry.path().join(LOCK)))
            && lock.try_lock().is_ok()
        {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

impl Disk {
    fn new(parent: &Path, most: usize) -> io::Result<Self> {
        // A name that is taken is that of an engine that lives, perhaps in another container with the same process number.
        let name = |number: u32| parent.join(format!("{FOLDER}{}-{number}", std::process::id()));
        let mut number = 0;
        while name(number).exists() {
            number += 1;
        }
        let folder = name(number);
        fs::create_dir(&folder)?;
        let lock = File::create(folder.join(LOCK))?;
        lock.try_lock().map_err(io::Error::from)?;
        Ok(Self { folder, files: Tier::new(most), is_failing: false, _lock: lock })
    }

    fn path(&self, key: BlockKey) -> PathBuf {
        self.folder.join(format!("{:016x}.{EXTENSION}", key.0))
    }

    fn put(&mut self, key: BlockKey, block: &[u8]) {
        // A full disk costs a prefix, not an answer. It is said once, however many blocks it costs.
        if let Err(error) = write_private(&self.path(key), block) {
            if !std::mem::replace(&mut self.is_failing, true) {
                events::spill_failed(&error);
            }
            let _ = fs::remove_file(self.path(key));
            return;
        }
        self.is_failing = false;
        if let Some((oldest, ())) = self.files.put(key, ()) {
            let _ = fs::remove_file(self.path(oldest));
        }
    }

    fn take(&mut self, key: BlockKey) -> Option<Box<[u8]>> {
        self.files.take(key)?;
        let path = self.path(key);
        let block = fs::read(&path).ok();
        let _ = fs::remove_file(path);
        block.map(Vec::into_boxed_slice)
    }
}

/// Keys and values tell what was asked, so nobody else may read them.
fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(bytes)
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn block(number: u8) -> Box<[u8]> {
        vec![number; 8].into_boxed_slice()
    }

    #[test]
    fn the_least_recently_used_leave_memory_for_the_disk_and_then_for_good() {
        let folder = std::env::temp_dir().join(format!("bedplate-spill-{}", std::process::id()));
        let mut spill = Spill::new(2, Some((folder.clone(), 1))).unwrap();
        (1..=4).for_each(|number| spill.put(BlockKey(number), block(number as u8)));
        assert_eq!([1, 2, 3, 4].map(|key| spill.has(BlockKey(key))), [false, true, true, true]);
        let of_engine = fs::read_dir(&folder).unwrap().flatten().next().unwrap().path();
        let is_block = |entry: &fs::DirEntry| entry.path().extension().is_some_and(|kind| kind == EXTENSION);
        let files: Vec<_> = fs::read_dir(of_engine).unwrap().flatten().filter(is_block).collect();
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(spill.take(BlockKey(2)), Some(block(2)));
        assert_eq!(spill.take(BlockKey(2)), None);
        assert_eq!(spill.take(BlockKey(4)), Some(block(4)));
        drop(spill);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn engines_share_a_folder_and_clear_what_is_left_of_those_that_are_gone() {
        let folder = std::env::temp_dir().join(format!("bedplate-spill-shared-{}", std::process::id()));
        let left = folder.join("engine-1-0");
        fs::create_dir_all(&left).unwrap();
        fs::write(left.join("lock"), "").unwrap();
        fs::write(left.join("0000000000000001.kv"), "old").unwrap();
        let mut first = Spill::new(0, Some((folder.clone(), 4))).unwrap();
        assert!(!left.exists(), "nobody holds it");
        first.put(BlockKey(1), block(1));
        let second = Spill::new(0, Some((folder.clone(), 4))).unwrap();
        assert_eq!(first.take(BlockKey(1)), Some(block(1)), "one that lives keeps its files");
        drop((first, second));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::remove_dir_all(folder).unwrap();
    }
}
