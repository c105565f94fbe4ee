//! A journal whose files were cut, altered, exchanged or replaced by older ones is found out, or holds exactly what was written.
//!
//! `BEDPLATE_CORRUPTIONS=500` tries as many instead of a sample.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bedplate_control::record::Restored;
use bedplate_faultdisk::Draw;
use bedplate_gangs::Time;
use bedplate_journal::{
    Damage, Journal, JournalError, JournalOptions, NewToken, Reader, check, repair, suspect,
};
use rusqlite::types::Value;
use support::{Folder, Records};

const SAMPLE: u64 = 60;
const FILES: [&str; 4] = ["journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm", "journal.mark"];
const TABLES: [&str; 9] =
    ["texts", "jobs", "runs", "run_nodes", "nodes", "shares", "notes", "clock", "tokens"];

/// The files of a journal at one moment, as a kill leaves them.
type Snapshot = BTreeMap<&'static str, Vec<u8>>;

fn files_of(folder: &Path) -> Snapshot {
    FILES.iter().filter_map(|name| Some((*name, fs::read(folder.join(name)).ok()?))).collect()
}

fn put(files: &Snapshot, folder: &Path) {
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes).unwrap();
    }
}

/// Everything that the tables hold.
fn dump(journal: &Path) -> Vec<Vec<Value>> {
    let connection = rusqlite::Connection::open(journal).unwrap();
    let rows = TABLES.iter().flat_map(|table| {
        let columns = if *table == "clock" { "id, latest_ms" } else { "*" };
        let mut statement =
            connection.prepare(&format!("SELECT {columns} FROM {table} ORDER BY 1, 2")).unwrap();
        let count = statement.column_count();
        let read = |row: &rusqlite::Row<'_>| (0..count).map(|at| row.get(at)).collect();
        statement.query_map([], read).unwrap().collect::<rusqlite::Result<Vec<Vec<Value>>>>().unwrap()
    });
    rows.collect()
}

struct History {
    /// As of every few commits, the newest last.
    snapshots: Vec<Snapshot>,
    /// After an end in good order.
    closed: Snapshot,
    rows: Vec<Vec<Value>>,
    restored: Restored,
}

fn history(seed: u64) -> History {
    let folder = Folder::new("history");
    let (mut records, mut draw) = (Records::new(seed), Draw::new(seed));
    let mut journal = Journal::open(&folder.journal()).unwrap();
    let mut snapshots = Vec::new();
    for commit in 0..60_u64 {
        journal.commit(&records.batch(6)).unwrap();
        if draw.one_in(8) {
            let token = NewToken {
                hash: [commit as u8; 32],
                role: "user".into(),
                user: "ada".into(),
                label: String::new(),
                created: Time(commit),
                expires: None,
                is_one_time: true,
            };
            let id = journal.add_token(&token).unwrap();
            let _ = draw.one_in(2) && journal.redeem_token(id, Time(commit)).unwrap();
            let _ = draw.one_in(4) && journal.revoke_token(id).unwrap();
        }
        if commit % 20 == 19 {
            // The log goes into the main file now and then.
            let other = rusqlite::Connection::open(folder.journal()).unwrap();
            let _: i64 = other.query_row("PRAGMA wal_checkpoint(RESTART)", [], |row| row.get(0)).unwrap();
        }
        if commit % 7 == 4 {
            snapshots.push(files_of(folder.path()));
        }
    }
    // Nothing is said about these any more.
    journal.prune(Time(1_790_000_000_000 + 5 * 86_400_000), &[], 3).unwrap();
    snapshots.push(files_of(folder.path()));
    let restored = journal.restore().unwrap();
    drop(journal);
    History { snapshots, closed: files_of(folder.path()), rows: dump(&folder.journal()), restored }
}

/// Hurts the files in one way; says which.
fn hurt(files: &mut Snapshot, history: &History, draw: &mut Draw) -> String {
    let names: Vec<&'static str> = files.keys().copied().collect();
    // The main file and its log matter most.
    let name = names[draw.below(names.len())];
    let bytes = files.get_mut(name).unwrap();
    let place = draw.below(bytes.len().max(1));
    let what = match draw.below(6) {
        0 if !bytes.is_empty() => {
            bytes[place] ^= 1 << draw.below(8);
            format!("bit flipped at {place}")
        }
        1 => {
            bytes.truncate(place);
            format!("cut to {place}")
        }
        2 => {
            bytes.clear();
            "emptied".to_owned()
        }
        3 if bytes.len() >= 2 * 512 => {
            let pages = bytes.len() / 512;
            let (a, b) = (draw.below(pages) * 512, draw.below(pages) * 512);
            for at in 0..512 {
                bytes.swap(a + at, b + at);
            }
            format!("sectors at {a} and {b} exchanged")
        }
        4 => {
            let old = &history.snapshots[draw.below(history.snapshots.len())];
            match old.get(name) {
                Some(old) => bytes.clone_from(old),
                None => bytes.clear(),
            }
            "replaced by an older one".to_owned()
        }
        5 => {
            let old = &history.snapshots[draw.below(history.snapshots.len() - 1)];
            for name in ["journal.sqlite", "journal.sqlite-wal"] {
                files.insert(name, old.get(name).cloned().unwrap_or_default());
            }
            return "the whole database is an older one".to_owned();
        }
        _ => {
            for byte in bytes.iter_mut().skip(place).take(4096) {
                *byte = 0;
            }
            format!("a page of zeros at {place}")
        }
    };
    format!("{name}: {what}")
}

/// What became of a corruption: found, or harmless.
fn is_found(history: &History, files: &Snapshot, what: &str) -> bool {
    let folder = Folder::new("hurt");
    put(files, folder.path());
    let checked = check(&folder.journal()).map(|check| check.is_whole());
    match Journal::open(&folder.journal()) {
        Ok(mut journal) => {
            assert!(matches!(checked, Ok(true)), "{what}: opened, though the check says {checked:?}");
            assert_eq!(journal.restore().unwrap(), history.restored, "{what}");
            drop(journal);
            assert!(dump(&folder.journal()) == history.rows, "{what}");
            false
        }
        Err(error) => {
            assert!(!matches!(checked, Ok(true)), "{what}: {error:?}");
            repairs(&folder, what);
            true
        }
    }
}

/// What is left is a journal again.
fn repairs(folder: &Folder, what: &str) {
    let repaired = match repair(&folder.journal(), &[]) {
        Ok(repaired) => repaired,
        // The file says that it is not ours; a repair would have nothing to go by.
        Err(JournalError::NotAJournal { .. } | JournalError::Newer { .. } | JournalError::Older { .. }) => {
            return;
        }
        Err(error) => panic!("{what}: {error:?}"),
    };
    assert!(repaired.kept.is_some_and(|kept| kept.join("journal.sqlite").exists()), "{what}");
    let found = check(&folder.journal()).unwrap();
    assert!(found.is_whole(), "{what}: {found:?}");
    Journal::open(&folder.journal()).unwrap().restore().unwrap();
}

#[test]
fn corruptions_are_found_or_harmless() {
    let wanted = std::env::var("BEDPLATE_CORRUPTIONS").ok().and_then(|count| count.parse().ok());
    let count: u64 = wanted.unwrap_or(SAMPLE);
    let mut found = 0;
    let mut history = history(1);
    for number in 0..count {
        if number % 50 == 49 {
            history = self::history(number);
        }
        let mut draw = Draw::new(number);
        let mut files = match draw.one_in(2) {
            true => history.closed.clone(),
            false => history.snapshots.last().unwrap().clone(),
        };
        let what = hurt(&mut files, &history, &mut draw);
        found += u64::from(is_found(&history, &files, &format!("corruption {number}: {what}")));
    }
    println!("{found} of {count} corruptions were found, the others are harmless");
    assert!(found > count / 4, "{found} of {count}");
}

#[test]
fn untouched_files_are_whole_after_a_kill_and_after_an_end() {
    let history = history(3);
    for files in [&history.closed, history.snapshots.last().unwrap()] {
        assert!(!is_found(&history, files, "untouched"));
    }
}

#[test]
fn an_older_copy_is_refused_with_its_loss_in_numbers_and_a_repair_takes_the_newest_backup() {
    let history = history(5);
    let folder = Folder::new("older");
    put(&history.closed, folder.path());
    let backup = folder.path().join("backup.sqlite");
    fs::copy(folder.journal(), &backup).unwrap();
    let old = &history.snapshots[2];
    fs::write(folder.journal(), &old["journal.sqlite"]).unwrap();
    fs::write(folder.path().join("journal.sqlite-wal"), &old["journal.sqlite-wal"]).unwrap();
    let error = Journal::open(&folder.journal()).unwrap_err();
    assert!(matches!(error, JournalError::Hurt { .. }), "{error:?}");
    let damage = check(&folder.journal()).unwrap().damage;
    let [Damage::Behind { commits, records, jobs, .. }] = &damage[..] else { panic!("{damage:?}") };
    assert!(*commits > 10 && records > commits && *jobs > 0, "{damage:?}");
    let newest = repair(&folder.journal(), &[folder.path().join("nothing"), backup.clone()]).unwrap();
    assert_eq!((newest.from, newest.lost), (backup, Vec::new()));
    assert!(dump(&folder.journal()) == history.rows);
    assert_eq!(Journal::open(&folder.journal()).unwrap().restore().unwrap(), history.restored);
    let reader = Reader::open(&folder.journal()).unwrap();
    assert!(!reader.tokens().unwrap().is_empty());
}

#[test]
fn a_row_that_somebody_else_altered_is_found_by_its_table() {
    let history = history(7);
    let folder = Folder::new("altered");
    put(&history.closed, folder.path());
    let connection = rusqlite::Connection::open(folder.journal()).unwrap();
    connection.execute("UPDATE jobs SET user = 'eve' WHERE id = (SELECT max(id) FROM jobs)", []).unwrap();
    connection.execute("DELETE FROM notes WHERE id = (SELECT min(id) FROM notes)", []).unwrap();
    drop(connection);
    let damage = check(&folder.journal()).unwrap().damage;
    let said: Vec<String> = damage.iter().map(ToString::to_string).collect();
    assert!(said[0].ends_with("in `jobs` some are not as they were written"), "{said:?}");
    assert!(said[1].starts_with("`notes` had ") && said.len() == 2, "{said:?}");
    let error = Journal::open(&folder.journal()).unwrap_err();
    assert!(error.to_string().contains("is hurt: of "), "{error}");
    let repaired = repair(&folder.journal(), &[]).unwrap();
    assert_eq!(
        repaired.lost.iter().map(|(table, was, is)| (&table[..], was - is)).collect::<Vec<_>>(),
        [("notes", 1)]
    );
}

#[test]
fn a_first_opening_that_was_cut_off_goes_on_and_a_chain_that_is_gone_is_damage() {
    let history = history(9);
    let folder = Folder::new("begun");
    put(&history.closed, folder.path());
    let forget = || {
        let connection = rusqlite::Connection::open(folder.journal()).unwrap();
        connection.execute("UPDATE clock SET chain = NULL", []).unwrap();
    };
    forget();
    assert!(matches!(Journal::open(&folder.journal()), Err(JournalError::Hurt { .. })));
    assert_eq!(check(&folder.journal()).unwrap().damage, [Damage::NoChain]);
    fs::remove_file(folder.path().join("journal.mark")).unwrap();
    assert_eq!(Journal::open(&folder.journal()).unwrap().restore().unwrap(), history.restored);
    assert!(check(&folder.journal()).unwrap().is_whole());
}

#[test]
fn a_journal_too_large_to_be_read_first_is_opened_until_it_is_suspected() {
    let history = history(11);
    let folder = Folder::new("large");
    put(&history.closed, folder.path());
    let connection = rusqlite::Connection::open(folder.journal()).unwrap();
    connection.execute("UPDATE jobs SET name = 'other' WHERE id = (SELECT max(id) FROM jobs)", []).unwrap();
    drop(connection);
    let small = JournalOptions { examined_bytes: 0, ..JournalOptions::default() };
    let journal = Journal::open_with(&folder.journal(), &small).unwrap();
    assert!(!journal.is_examined());
    drop(journal);
    assert!(!check(&folder.journal()).unwrap().is_whole());
    suspect(&folder.journal()).unwrap();
    assert!(matches!(Journal::open_with(&folder.journal(), &small), Err(JournalError::Hurt { .. })));
    repair(&folder.journal(), &[]).unwrap();
    assert!(Journal::open(&folder.journal()).unwrap().is_examined());
    assert!(!folder.path().join("journal.suspect").exists());
}
