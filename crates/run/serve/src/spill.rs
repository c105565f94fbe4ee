//! Blocks outside the pool: those of sequences that were swapped out, and prefixes that fell out of it.
//!
//! Prefixes go to host memory and, where that is full, to files of a folder; the least recently used are forgotten. They are found again by
//! their key, which follows from all tokens before them.

mod disk;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use bedplate_batching::BlockKey;
use disk::{Disk, remove_what_was_left};

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
            disk.put(key, block);
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use bedplate_testkit::{Hanging, HangingMount};

    use super::disk::EXTENSION;
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
        spill.disk.as_ref().unwrap().settle();
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

    #[test]
    fn a_folder_that_stops_answering_costs_prefixes_and_no_time() {
        let folder = std::env::temp_dir().join(format!("bedplate-spill-dead-{}", std::process::id()));
        let mut spill = Spill::new(0, Some((folder.clone(), 100))).unwrap();
        spill.put(BlockKey(1), block(1));
        spill.disk.as_ref().unwrap().settle();
        let of_engine = fs::read_dir(&folder).unwrap().flatten().next().unwrap().path();
        let Some(mount) = HangingMount::at(&of_engine, "s3fs", Hanging::Everything) else { return };
        for number in 2..60 {
            spill.put(BlockKey(number), block(2));
            assert_eq!(spill.take(BlockKey(1)), None);
            assert_eq!(spill.take(BlockKey(number)), None);
            assert!(spill.disk.as_ref().unwrap().is_stuck(), "from now on it is not waited for");
        }
        drop(mount);
        drop(spill);
        fs::remove_dir_all(folder).unwrap();
    }
}
