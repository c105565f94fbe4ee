//! The flight recorder: the last calls of a rank, written down when something goes wrong or stands still.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use bedplate_host::replace_file;
use serde::{Deserialize, Serialize};

use crate::{Call, Fault};

/// A call of this rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    pub group: String,
    /// The ranks of the group.
    pub ranks: Vec<u32>,
    /// Counts the calls of the group on this rank.
    pub number: u64,
    pub call: Call,
    pub bytes: u64,
    /// Microseconds since the world was made.
    pub entered_us: u64,
    /// None while it lasts, and when it failed.
    pub left_us: Option<u64>,
}

/// What a rank writes down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlightRecord {
    pub rank: u32,
    pub world: u32,
    pub epoch: u64,
    /// When it was written, in microseconds since the world was made.
    pub at_us: u64,
    pub fault: Option<Fault>,
    /// Oldest first.
    pub calls: Vec<Recorded>,
}

impl FlightRecord {
    /// The name of a rank's file in the folder of a run.
    pub fn file_name(rank: u32) -> String {
        format!("flight-{rank}.json")
    }
}

#[derive(Debug)]
pub(crate) struct Recorder {
    began: Instant,
    ring: Mutex<Ring>,
}

#[derive(Debug)]
struct Ring {
    groups: Vec<NamedGroup>,
    entries: Vec<Entry>,
    next: usize,
    most: usize,
}

#[derive(Debug)]
struct NamedGroup {
    name: String,
    /// The same on all members, and different for every group.
    key: String,
    ranks: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    group: usize,
    number: u64,
    call: Call,
    bytes: u64,
    entered_us: u64,
    left_us: Option<u64>,
}

/// Where a call is written down.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecorderLine {
    at: usize,
    serial: usize,
}

impl Recorder {
    pub(crate) fn new(most: usize) -> Self {
        let most = most.max(1);
        let ring = Ring { groups: Vec::new(), entries: Vec::with_capacity(most), next: 0, most };
        Self { began: Instant::now(), ring: Mutex::new(ring) }
    }

    /// Names a group once, so that its calls need only a number.
    pub(crate) fn add_group(&self, name: &str, key: &str, ranks: &[u32]) -> usize {
        let mut ring = self.lock();
        let (name, key) = (name.to_owned(), key.to_owned());
        ring.groups.push(NamedGroup { name, key, ranks: ranks.to_vec() });
        ring.groups.len() - 1
    }

    pub(crate) fn enter(&self, group: usize, number: u64, call: Call, bytes: usize) -> RecorderLine {
        let entered_us = self.now();
        let entry = Entry { group, number, call, bytes: bytes as u64, entered_us, left_us: None };
        let mut ring = self.lock();
        let serial = ring.next;
        let at = serial % ring.most;
        ring.next += 1;
        if at == ring.entries.len() {
            ring.entries.push(entry)
        } else {
            ring.entries[at] = entry
        }
        RecorderLine { at, serial }
    }

    pub(crate) fn leave(&self, line: RecorderLine) {
        let now = self.now();
        let mut ring = self.lock();
        // Other groups may have gone round the ring meanwhile.
        if ring.next - line.serial <= ring.most {
            ring.entries[line.at].left_us = Some(now);
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// How long the oldest open call has been open.
    pub(crate) fn longest_open_us(&self) -> u64 {
        let now = self.now();
        let ring = self.lock();
        let open = ring.entries.iter().filter(|entry| entry.left_us.is_none());
        open.map(|entry| now.saturating_sub(entry.entered_us)).max().unwrap_or(0)
    }

    /// The collective that this rank made in a group under a number, with the group's name, if it did and still knows.
    pub(crate) fn find(&self, key: &str, number: u64) -> Option<(String, Call)> {
        let ring = self.lock();
        let group = ring.groups.iter().position(|group| group.key == key)?;
        let is_wanted = |entry: &&Entry| {
            entry.group == group && entry.number == number && entry.call.operation.is_collective()
        };
        let entry = ring.entries.iter().find(is_wanted)?;
        Some((ring.groups[group].name.clone(), entry.call))
    }

    pub(crate) fn record(&self, rank: u32, world: u32, epoch: u64, fault: Option<Fault>) -> FlightRecord {
        let at_us = self.now();
        let ring = self.lock();
        let oldest = if ring.entries.len() < ring.most { 0 } else { ring.next % ring.most };
        let (after, before) = ring.entries.split_at(oldest);
        let calls = before.iter().chain(after).map(|entry| ring.recorded(entry)).collect();
        FlightRecord { rank, world, epoch, at_us, fault, calls }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ring> {
        self.ring.lock().expect("no holder of this lock panics")
    }
}

impl Ring {
    fn recorded(&self, entry: &Entry) -> Recorded {
        let Entry { group, number, call, bytes, entered_us, left_us } = *entry;
        let NamedGroup { name, ranks, .. } = &self.groups[group];
        let (group, ranks) = (name.clone(), ranks.clone());
        Recorded { group, ranks, number, call, bytes, entered_us, left_us }
    }
}

/// Writes a record under its final name at once, whole or not at all.
pub(crate) fn write(record: &FlightRecord, folder: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = folder.join(FlightRecord::file_name(record.rank));
    replace_file(&path, &serde_json::to_vec(record)?)?;
    Ok(path)
}
