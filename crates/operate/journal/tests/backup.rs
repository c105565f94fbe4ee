//! Back-ups that a daemon makes by itself, and what is made of them elsewhere.

mod support;

use std::fs;

use bedplate_journal::{
    BackupRules, Journal, JournalError, back_up, backups, check, keep_backups, restore_from,
};
use support::{Folder, Records};

#[test]
fn backups_are_made_when_due_kept_within_limits_and_restored_elsewhere() {
    let folder = Folder::new("backups");
    let mut journal = Journal::open(&folder.journal()).unwrap();
    let mut records = Records::new(3);
    fs::write(folder.path().join("key.der"), "a key").unwrap();
    let always = BackupRules { every_s: 0, most: 2, ..BackupRules::default() };
    let mut last = journal.restore().unwrap();
    for _ in 0..4 {
        journal.commit(&records.batch(8)).unwrap();
        last = journal.restore().unwrap();
        let made = keep_backups(folder.path(), &always).unwrap().unwrap();
        assert_eq!(backups(folder.path())[0].parent(), Some(made.as_path()), "the newest is the first");
    }
    assert_eq!(backups(folder.path()).len(), 2);
    assert_eq!(keep_backups(folder.path(), &BackupRules::default()).unwrap(), None, "none is due");
    let small = BackupRules { most_bytes: 1, ..always };
    keep_backups(folder.path(), &small).unwrap().unwrap();
    assert_eq!(backups(folder.path()).len(), 1, "the newest stays however large it is");
    let full = BackupRules { free_bytes: u64::MAX / 2, ..always };
    assert!(matches!(keep_backups(folder.path(), &full), Err(JournalError::NoRoom { .. })));

    // The journal goes on after the back-up.
    journal.commit(&records.batch(8)).unwrap();
    let other = Folder::new("restored");
    let state = other.path().join("state");
    let found = restore_from(&backups(folder.path())[0], &state).unwrap();
    assert!(found.is_whole());
    assert_eq!(fs::read(state.join("key.der")).unwrap(), b"a key");
    let mut restored = Journal::open(&state.join("journal.sqlite")).unwrap();
    assert_eq!(restored.restore().unwrap(), last);
    restored.commit(&Records::new(3).batch(1)).unwrap();
    assert!(check(&state.join("journal.sqlite")).unwrap().is_whole());
    let again = restore_from(&backups(folder.path())[0], &state);
    assert!(matches!(again, Err(JournalError::There { .. })), "{again:?}");
}

#[test]
fn a_backup_that_was_cut_off_is_not_brought_up() {
    let folder = Folder::new("cut-backup");
    let mut journal = Journal::open(&folder.journal()).unwrap();
    journal.commit(&Records::new(4).batch(50)).unwrap();
    let made = folder.path().join("backups/one");
    back_up(folder.path(), &made).unwrap();
    let copy = made.join("journal.sqlite");
    let bytes = fs::read(&copy).unwrap();
    for length in [bytes.len() - 4096, bytes.len() / 2, 100] {
        fs::write(&copy, &bytes[..length]).unwrap();
        let refused = restore_from(&made, &folder.path().join("state"));
        assert!(refused.is_err() && !folder.path().join("state/journal.sqlite").exists(), "{refused:?}");
    }
}
