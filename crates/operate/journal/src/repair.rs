//! Making a journal of what is left of one, with the loss in numbers.
//!
//! The hurt files are kept beside the journal. What the database still gives is read row by row from both ends of each table; a back-up
//! takes its place where that has more commits, or where nothing can be read.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bedplate_host::clock;
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, params_from_iter};
use serde::Serialize;

use crate::backup::copy_durably;
use crate::chain::{ChainHead, TABLES, sums_of};
use crate::check::{Depth, JournalCheck, check, examine, read_mark};
use crate::journal::suspicion;
use crate::mark::{Mark, Marked};
use crate::{JournalError, lock, mark, schema};

/// What a repair did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Repaired {
    pub before: JournalCheck,
    /// Where its rows come from: the journal itself, or a back-up.
    pub from: PathBuf,
    /// Where the hurt files are now; nothing where nothing was wrong.
    pub kept: Option<PathBuf>,
    /// For each table that has fewer rows than were written: its name, those that were, those that are.
    pub lost: Vec<(String, i64, i64)>,
}

/// Repairs the journal at `path`, which no daemon may have open. Nothing happens to one that is whole.
pub fn repair(path: &Path, backups: &[PathBuf]) -> Result<Repaired, JournalError> {
    let _lock = lock::take(path)?;
    let before = check(path)?;
    if before.is_whole() {
        return Ok(Repaired { before, from: path.to_owned(), kept: None, lost: Vec::new() });
    }
    let marked = read_mark(path)?;
    let failed = |source: io::Error| JournalError::Folder { path: path.to_owned(), source };
    let kept = keep_hurt(path).map_err(failed)?;
    let fresh = path.with_extension("repairing");
    remove_all(&fresh).map_err(failed)?;
    let salvaged = salvage(&kept.join(name_of(path)), &fresh)?;
    let best = newest(backups).filter(|(_, commits)| *commits > before.commits || salvaged.is_empty());
    let from = match best {
        None => path.to_owned(),
        Some((backup, _)) => {
            remove_all(&fresh).map_err(failed)?;
            fs::copy(&backup, &fresh).map_err(failed)?;
            backup
        }
    };
    let found = conclude(&fresh)?;
    remove_all(path).map_err(failed)?;
    copy_durably(&fresh, path).map_err(failed)?;
    remove_all(&fresh).map_err(failed)?;
    Mark::open(path).and_then(|mark| mark.begin(&found)).map_err(failed)?;
    let lost = match marked {
        Marked::At(mark) => {
            let pairs = TABLES.iter().zip(mark.sums.iter().zip(&found.sums));
            let lost = pairs.filter(|(_, (was, is))| is.rows < was.rows);
            lost.map(|(table, (was, is))| ((*table).to_owned(), was.rows, is.rows)).collect()
        }
        _ => Vec::new(),
    };
    Ok(Repaired { before, from, kept: Some(kept), lost })
}

/// The back-up that is whole and has most commits.
fn newest(backups: &[PathBuf]) -> Option<(PathBuf, u64)> {
    let whole = backups.iter().filter_map(|path| {
        let found = check(path).ok().filter(JournalCheck::is_whole)?;
        Some((path.clone(), found.commits))
    });
    whole.max_by_key(|(_, commits)| *commits)
}

fn name_of(path: &Path) -> &std::ffi::OsStr {
    path.file_name().unwrap_or(path.as_os_str())
}

/// The files of a database.
fn files_of(path: &Path) -> Vec<PathBuf> {
    let with = |end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    vec![path.to_owned(), with("-wal"), with("-shm"), mark::path_of(path), suspicion(path)]
}

fn remove_all(path: &Path) -> io::Result<()> {
    for file in files_of(path) {
        match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Copies them, so that a repair can be undone by hand.
fn keep_hurt(path: &Path) -> io::Result<PathBuf> {
    let folder = path.with_file_name(format!("hurt-{}", clock::unix_ms()));
    fs::create_dir(&folder)?;
    for file in files_of(path).iter().filter(|file| file.exists()) {
        fs::copy(file, folder.join(name_of(file)))?;
    }
    Ok(folder)
}

/// Puts every row of a hurt database that can be read into a new one; returns the tables of which some could.
fn salvage(hurt: &Path, fresh: &Path) -> Result<Vec<&'static str>, JournalError> {
    let mut connection = Connection::open(fresh).map_err(JournalError::opening(fresh))?;
    schema::prepare(&mut connection, fresh)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let Ok(source) = Connection::open_with_flags(hurt, flags) else { return Ok(Vec::new()) };
    let mut saved = Vec::new();
    let transaction = connection.transaction().map_err(JournalError::writing)?;
    // What the steps of the schema put in is in the hurt database too.
    transaction.execute("DELETE FROM clock", []).map_err(JournalError::writing)?;
    for table in TABLES {
        let mut rows = 0;
        for order in ["", "DESC"] {
            // From each end until the first row that cannot be read; those that were read already are there.
            rows += copy_rows(&source, &transaction, table, order).unwrap_or(0);
        }
        if rows > 0 {
            saved.push(table);
        }
    }
    let orphans = "DELETE FROM jobs WHERE text_id NOT IN (SELECT id FROM texts);
         DELETE FROM runs WHERE job NOT IN (SELECT id FROM jobs);
         DELETE FROM run_nodes WHERE NOT EXISTS
            (SELECT 1 FROM runs WHERE runs.job = run_nodes.job AND runs.number = run_nodes.number);
         INSERT OR IGNORE INTO clock (id, latest_ms) VALUES (1, 0);";
    transaction.execute_batch(orphans).map_err(JournalError::writing)?;
    transaction.commit().map_err(JournalError::writing)?;
    Ok(saved)
}

fn copy_rows(source: &Connection, to: &Connection, table: &str, order: &str) -> rusqlite::Result<usize> {
    let keys: Vec<String> = source
        .prepare(&format!("SELECT name FROM pragma_table_info('{table}') WHERE pk > 0 ORDER BY pk"))?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let ordered: Vec<String> = keys.iter().map(|key| format!("{key} {order}")).collect();
    let sql = format!("SELECT * FROM {table} NOT INDEXED ORDER BY {}", ordered.join(", "));
    let mut statement = source.prepare(&sql)?;
    let columns = statement.column_names().collect::<Vec<&str>>().join(", ");
    let count = statement.column_count();
    let places = vec!["?"; count].join(", ");
    let mut insert = to.prepare(&format!("INSERT OR IGNORE INTO {table} ({columns}) VALUES ({places})"))?;
    let mut rows = statement.query([])?;
    let mut copied = 0;
    // The rest behind a row that cannot be read is reached from the other end.
    while let Ok(Some(row)) = rows.next() {
        let values = (0..count).map(|at| row.get::<_, Value>(at)).collect::<rusqlite::Result<Vec<_>>>();
        // A value of another kind than its column's is not one that was written.
        copied += values.and_then(|values| insert.execute(params_from_iter(values))).unwrap_or(0);
    }
    Ok(copied)
}

/// The chain goes on from what is there.
fn conclude(fresh: &Path) -> Result<ChainHead, JournalError> {
    let mut connection = Connection::open(fresh).map_err(JournalError::opening(fresh))?;
    schema::prepare(&mut connection, fresh)?;
    let head = begin_chain(&connection)?;
    let found = examine(&connection, &Marked::Nothing, Depth::Whole);
    match found.damage.first() {
        None => Ok(head),
        Some(damage) => Err(JournalError::Hurt { path: fresh.to_owned(), damage: damage.to_string() }),
    }
}

/// A head for a journal as it is, behind the one that it has.
pub(crate) fn begin_chain(connection: &Connection) -> Result<ChainHead, JournalError> {
    let begin = || -> rusqlite::Result<ChainHead> {
        let jobs = connection.query_row("SELECT coalesce(max(id), 0) FROM jobs", [], |row| row.get(0))?;
        let known = ChainHead::load(connection)?.unwrap_or_default();
        let head = known.next(0, clock::unix_ms(), jobs, sums_of(connection)?);
        head.store(connection)?;
        Ok(head)
    };
    begin().map_err(JournalError::writing)
}
