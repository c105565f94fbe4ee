//! Whether a journal is what was written, and in numbers what is missing.

use std::fmt;
use std::path::Path;

use bedplate_host::clock;
use rusqlite::Connection;
use serde::Serialize;

use crate::chain::{ChainHead, TABLES, small_sums_of, sums_of};
use crate::mark::{Mark, Marked};
use crate::{JournalError, Reader};

/// What is wrong with a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Damage {
    /// Commits that were acknowledged are not there: it was emptied, cut, or replaced by an older copy.
    Behind { commits: u64, records: u64, jobs: u64, last_ms: u64, known_ms: u64 },
    /// It has another past than its mark: it is that of another cluster, or went on from an older copy.
    OtherPast { commits: u64 },
    /// Rows are not as they were written.
    Altered { table: &'static str, rows: i64, found: i64 },
    /// The row that says what all others amount to is missing or altered itself.
    NoChain,
    /// The database is damaged as such.
    Structure { what: String },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Behind { commits, records, jobs, last_ms, known_ms } => {
                let seconds = seconds_between(*last_ms, *known_ms);
                write!(
                    f,
                    "the last {commits} commits with {records} records and {jobs} new jobs are missing, {seconds:.1} s of history"
                )
            }
            Damage::OtherPast { commits } => {
                write!(f, "its past is not the one of its mark, as of commit {commits}")
            }
            Damage::Altered { table, rows, found } if rows == found => {
                write!(f, "of {rows} rows in `{table}` some are not as they were written")
            }
            Damage::Altered { table, rows, found } => {
                write!(f, "`{table}` had {rows} rows and has {found}")
            }
            Damage::NoChain => write!(f, "the row that sums up all others is missing or altered"),
            Damage::Structure { what } => write!(f, "the database is damaged: {what}"),
        }
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JournalCheck {
    pub commits: u64,
    pub records: u64,
    /// The time of the last commit.
    pub at_ms: u64,
    pub damage: Vec<Damage>,
    /// What is no damage, but takes a proof away.
    pub remarks: Vec<String>,
}

impl JournalCheck {
    pub fn is_whole(&self) -> bool {
        self.damage.is_empty()
    }
}

/// Reads all of a journal, which may be in use.
pub fn check(path: &Path) -> Result<JournalCheck, JournalError> {
    // Before the journal, which may go on meanwhile.
    let marked = read_mark(path)?;
    let there = std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0);
    if !there {
        return Ok(empty(&marked));
    }
    let reader = match Reader::open(path) {
        Ok(reader) => reader,
        Err(JournalError::Older { found: 0, .. }) => return Ok(empty(&marked)),
        Err(JournalError::Open { source, .. }) => {
            let damage = vec![Damage::Structure { what: source.to_string() }];
            return Ok(JournalCheck { commits: 0, records: 0, at_ms: 0, damage, remarks: Vec::new() });
        }
        Err(error) => return Err(error),
    };
    let snapshot = reader.connection.unchecked_transaction().map_err(JournalError::opening(path))?;
    Ok(examine(&snapshot, &marked, Depth::Whole))
}

/// Of a file without anything in it.
pub(crate) fn empty(marked: &Marked) -> JournalCheck {
    let damage = behind(&ChainHead::default(), marked).into_iter().collect();
    JournalCheck { commits: 0, records: 0, at_ms: 0, damage, remarks: Vec::new() }
}

pub(crate) fn read_mark(path: &Path) -> Result<Marked, JournalError> {
    Mark::read(path).map_err(|source| JournalError::Folder { path: path.to_owned(), source })
}

/// How much of a journal is read to find damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    Whole,
    /// The chain, its mark and the small tables, for a journal of which the whole would keep a cluster waiting.
    Quick,
}

/// As of one transaction.
pub(crate) fn examine(connection: &Connection, marked: &Marked, depth: Depth) -> JournalCheck {
    let structure = |error: rusqlite::Error| Damage::Structure { what: error.to_string() };
    let mut damage = Vec::new();
    let structural = if depth == Depth::Whole { integrity(connection) } else { Ok(None) };
    match structural {
        Ok(None) => {}
        Ok(Some(what)) => damage.push(Damage::Structure { what }),
        Err(error) => damage.push(structure(error)),
    }
    let head = ChainHead::load(connection).unwrap_or_else(|error| {
        damage.push(structure(error));
        None
    });
    let head = match head {
        Some(head) => head,
        None => {
            damage.push(Damage::NoChain);
            return JournalCheck { commits: 0, records: 0, at_ms: 0, damage, remarks: Vec::new() };
        }
    };
    let sums = match depth {
        Depth::Whole => sums_of(connection),
        Depth::Quick => small_sums_of(connection, head.sums),
    };
    match sums {
        Ok(sums) => damage.extend(altered(&head, &sums)),
        Err(error) => damage.push(structure(error)),
    }
    damage.extend(behind(&head, marked));
    let remarks = match marked {
        Marked::At(_) => Vec::new(),
        Marked::Nothing => vec!["there is no mark, so whether it is the newest is not known".to_owned()],
        Marked::Unreadable => {
            vec!["its mark cannot be read, so whether it is the newest is not known".to_owned()]
        }
    };
    JournalCheck { commits: head.commits, records: head.records, at_ms: head.at_ms, damage, remarks }
}

fn integrity(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let mut statement = connection.prepare("PRAGMA integrity_check(3)")?;
    let found: Vec<String> = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok((found != ["ok"]).then(|| found.join("; ").replace('\n', " ")))
}

fn altered(head: &ChainHead, sums: &crate::chain::Sums) -> Vec<Damage> {
    let pairs = TABLES.iter().zip(head.sums.iter().zip(sums));
    let differ = pairs.filter(|(_, (wanted, found))| wanted != found);
    differ
        .map(|(table, (wanted, found))| Damage::Altered { table, rows: wanted.rows, found: found.rows })
        .collect()
}

fn behind(head: &ChainHead, marked: &Marked) -> Option<Damage> {
    let Marked::At(mark) = marked else { return None };
    if head.commits < mark.commits {
        return Some(Damage::Behind {
            commits: mark.commits - head.commits,
            records: mark.records.saturating_sub(head.records),
            jobs: mark.jobs.saturating_sub(head.jobs),
            last_ms: if head.commits == 0 { mark.at_ms } else { head.at_ms },
            known_ms: mark.at_ms,
        });
    }
    // A journal that is ahead is one of which the mark did not reach the disk.
    (head.commits == mark.commits && !head.is_same(mark))
        .then_some(Damage::OtherPast { commits: head.commits })
}

/// How old the last commit of a copy is now, in seconds.
pub fn age_of(check: &JournalCheck) -> f64 {
    seconds_between(check.at_ms, clock::unix_ms())
}

fn seconds_between(from_ms: u64, to_ms: u64) -> f64 {
    to_ms.saturating_sub(from_ms) as f64 / 1000.0
}
