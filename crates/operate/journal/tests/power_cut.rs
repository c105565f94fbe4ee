//! A power cut at any instant: the journal opens, is whole, and has every batch that was acknowledged.
//!
//! SQLite runs over a disk that remembers every write and sync (`bedplate_faultdisk`). For many instants the files are
//! made as that disk could have left them, and opened through the system's own file layer.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod support;

use std::path::PathBuf;

use bedplate_control::record::{Record, Restored};
use bedplate_faultdisk::{Disk, Draw, Fault, Files};
use bedplate_journal::{Journal, JournalOptions, Synchronous};
use support::{Folder, Records, Reference};

/// What a journal on a watched disk went through.
struct History {
    disk: Disk,
    /// What the batches so far amount to, and where the disk stood when the last of them was acknowledged.
    acknowledged: Vec<Acknowledged>,
    /// Kept until the end, for the files in it.
    _folder: Folder,
}

struct Acknowledged {
    at: usize,
    restored: Restored,
    notes: usize,
}

/// How the work is done.
#[derive(Clone, Copy)]
struct Work {
    seed: u64,
    batches: usize,
    synchronous: Synchronous,
    /// The disk fails now and then, and the batch is tried again.
    fails: bool,
}

impl History {
    fn make(work: Work) -> Self {
        let folder = Folder::new("power");
        let disk = Disk::register(&format!("power-{}", folder.path().display()));
        let options = JournalOptions {
            file_layer: Some(disk.name().to_owned()),
            synchronous: work.synchronous,
            // The log goes into the main file every few batches.
            checkpoint_pages: 30,
            ..JournalOptions::default()
        };
        let mut journal = Journal::open_with(&folder.journal(), &options).unwrap();
        disk.folder_was_synced();
        let mut history = Self { disk, acknowledged: Vec::new(), _folder: folder };
        let (mut records, mut reference) = (Records::new(work.seed), Reference::default());
        let mut draw = Draw::new(!work.seed);
        history.acknowledge(&reference);
        for _ in 0..work.batches {
            let batch = records.batch(8);
            if work.fails && draw.one_in(3) {
                history.commit_through_faults(&mut journal, &batch, &mut draw);
            } else {
                journal.commit(&batch).unwrap();
            }
            reference.apply(&batch);
            history.acknowledge(&reference);
        }
        drop(journal);
        history
    }

    fn acknowledge(&mut self, reference: &Reference) {
        self.acknowledged.push(Acknowledged {
            at: self.disk.position(),
            restored: reference.restored(),
            notes: reference.notes.len(),
        });
    }

    /// Fails a few times in a row with various faults, then succeeds.
    fn commit_through_faults(&self, journal: &mut Journal, batch: &[Record], draw: &mut Draw) {
        for _ in 0..1 + draw.below(3) {
            let fault = [Fault::Full, Fault::WriteError, Fault::SyncError][draw.below(3)];
            self.disk.fail(fault, draw.below(6));
            let result = journal.commit(batch);
            self.disk.recover();
            match result {
                // The fault came too late, or hit what happens after the commit.
                Ok(()) => return,
                Err(error) => assert!(error.is_passing(), "{error:?}"),
            }
        }
        journal.commit(batch).unwrap();
    }

    /// What is wrong with what the disk has after a power cut at `position`, if anything.
    fn flaw_after(&self, position: usize, seed: u64) -> Option<String> {
        let files = self.disk.after_power_cut(position, &mut Draw::new(seed));
        let found = match reopen(&files, seed) {
            Ok(found) => found,
            Err(flaw) => return Some(flaw),
        };
        let sure = self.acknowledged.iter().rposition(|state| state.at <= position);
        // The next batch was being written, and may be there as a whole.
        let possible = match sure {
            Some(sure) => sure..(sure + 2).min(self.acknowledged.len()),
            None => 0..1,
        };
        let is_right = |state: &Acknowledged| state.restored == found.restored && state.notes == found.notes;
        if self.acknowledged[possible].iter().any(is_right) {
            return None;
        }
        let other = self.acknowledged.iter().position(is_right);
        Some(format!("acknowledged {sure:?}, found {other:?}"))
    }
}

struct Found {
    restored: Restored,
    notes: usize,
}

fn reopen(files: &Files, seed: u64) -> Result<Found, String> {
    let folder = Folder::new("reopened");
    Disk::put(files, folder.path()).unwrap();
    // Whatever is left of the shared memory must not matter.
    let mut draw = Draw::new(seed);
    let remains: Vec<u8> = (0..32_768).map(|_| draw.number() as u8).collect();
    std::fs::write(shared_memory(&folder), remains).unwrap();
    let mut journal =
        Journal::open(&folder.journal()).map_err(|error| format!("does not open: {error:?}"))?;
    let restored = journal.restore().map_err(|error| format!("does not restore: {error:?}"))?;
    drop(journal);
    let connection = rusqlite::Connection::open(folder.journal()).unwrap();
    let integrity: String = connection
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .map_err(|error| error.to_string())?;
    if integrity != "ok" {
        return Err(integrity);
    }
    let notes = connection.query_row("SELECT count(*) FROM notes", [], |row| row.get(0)).unwrap();
    Ok(Found { restored, notes })
}

fn shared_memory(folder: &Folder) -> PathBuf {
    let mut name = folder.journal().into_os_string();
    name.push("-shm");
    name.into()
}

/// Cuts the power at random instants of several histories; the first flaw that shows, if any.
fn first_flaw(work: Work, histories: u64, cuts: u64) -> Option<String> {
    for seed in work.seed..work.seed + histories {
        let history = History::make(Work { seed, ..work });
        let mut draw = Draw::new(seed);
        for cut in 0..cuts {
            let position = draw.below(history.disk.position() + 1);
            let flaw = history.flaw_after(position, draw.number());
            if let Some(flaw) = flaw {
                return Some(format!("history {seed}, cut {cut} after event {position}: {flaw}"));
            }
        }
    }
    None
}

const FULL: Work = Work { seed: 1, batches: 40, synchronous: Synchronous::Full, fails: false };

#[test]
fn no_power_cut_loses_or_splits_an_acknowledged_batch() {
    assert_eq!(first_flaw(FULL, 8, 80), None);
}

#[test]
fn nor_does_one_after_the_disk_was_full_or_failed() {
    assert_eq!(first_flaw(Work { seed: 1_000, fails: true, ..FULL }, 8, 80), None);
}

/// The test itself is tested: a journal that does not wait for the disk is caught.
#[test]
fn a_journal_that_does_not_wait_for_the_disk_is_found_out() {
    for synchronous in [Synchronous::Normal, Synchronous::Off] {
        let flaw = first_flaw(Work { synchronous, ..FULL }, 1, 80);
        println!("{synchronous:?}: {}", flaw.as_deref().unwrap_or("nothing found"));
        assert!(flaw.is_some(), "{synchronous:?}");
    }
}
