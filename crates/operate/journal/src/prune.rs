//! Old history goes: jobs that ended long ago, with their runs and notes.
//!
//! Work is done in small pieces, so that commits wait for none of them for long. The newest job always stays: its number
//! is the last one given.

use bedplate_gangs::{JobId, Time};
use rusqlite::{Connection, params};
use serde::Serialize;

use crate::{Journal, JournalError, Reader, rows};

/// What was pruned, or would be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    pub jobs: u64,
    pub runs: u64,
    pub notes: u64,
}

impl std::ops::AddAssign for Pruned {
    fn add_assign(&mut self, more: Self) {
        self.jobs += more.jobs;
        self.runs += more.runs;
        self.notes += more.notes;
    }
}

/// Ended jobs that may go: before the cut, not awaited by a live job, not the newest of all. `?1` is the cut, `?2` a JSON list.
const OLD: &str =
    "ended_ms < ?1 AND id NOT IN (SELECT value FROM json_each(?2)) AND id < (SELECT max(id) FROM jobs)";

impl Reader {
    /// When the oldest of the newest `count` ended jobs ended; nothing when there are not more than that.
    pub fn end_of_newest(&self, count: u64) -> Result<Option<Time>, JournalError> {
        let Some(last) = count.checked_sub(1) else {
            return Ok(Some(Time::NEVER));
        };
        let sql =
            "SELECT ended_ms FROM jobs WHERE ended_ms IS NOT NULL ORDER BY ended_ms DESC LIMIT 2 OFFSET ?1";
        let read = || -> rusqlite::Result<Vec<u64>> {
            self.connection.prepare_cached(sql)?.query_map([last], |row| row.get(0))?.collect()
        };
        let found = read().map_err(JournalError::reading("the newest jobs that ended"))?;
        Ok((found.len() == 2).then(|| Time(found[0])))
    }

    /// What [`Journal::prune`] would remove in all.
    pub fn prunable(&self, before: Time, awaited: &[JobId]) -> Result<Pruned, JournalError> {
        let count = |sql: &str| -> rusqlite::Result<u64> {
            self.connection.query_row(sql, params![bound(before), list(awaited)], |row| row.get(0))
        };
        let counted = || -> rusqlite::Result<Pruned> {
            let live = rows::IS_LIVE;
            let old = format!("SELECT id FROM jobs WHERE {OLD} AND NOT ({live})");
            Ok(Pruned {
                jobs: count(&format!("SELECT count(*) FROM ({old})"))?,
                runs: count(&format!("SELECT count(*) FROM runs WHERE job IN ({old})"))?,
                notes: count(&format!("SELECT count(*) FROM notes WHERE job IN ({old})"))?
                    + count(
                        "SELECT count(*) FROM notes WHERE job IS NULL AND at_ms < ?1 AND ?2 IS NOT NULL",
                    )?,
            })
        };
        counted().map_err(JournalError::reading("old history"))
    }

    /// How many jobs have ended.
    pub fn ended_count(&self) -> Result<u64, JournalError> {
        ended_count(&self.connection).map_err(JournalError::reading("the number of jobs that ended"))
    }
}

impl Journal {
    /// Removes at most so many jobs that ended before then, and as many old notes about nodes. Nothing is removed once
    /// there is no more.
    pub fn prune(&mut self, before: Time, awaited: &[JobId], most: u32) -> Result<Pruned, JournalError> {
        let pruned = self.change(0, 0, |transaction| {
            remove(transaction, before, awaited, most).map_err(JournalError::writing)
        })?;
        if let Some(reserve) = &self.reserve {
            reserve.keep();
        }
        // Its row may be gone.
        self.forget_last_text();
        Ok(pruned)
    }
}

pub(crate) fn ended_count(connection: &Connection) -> rusqlite::Result<u64> {
    let sql =
        format!("SELECT (SELECT count(*) FROM jobs) - (SELECT count(*) FROM jobs WHERE {})", rows::IS_LIVE);
    connection.query_row(&sql, [], |row| row.get(0))
}

fn remove(connection: &Connection, before: Time, awaited: &[JobId], most: u32) -> rusqlite::Result<Pruned> {
    let sql = format!(
        "SELECT id, text_id FROM jobs WHERE {OLD} AND NOT ({}) ORDER BY ended_ms LIMIT ?3",
        rows::IS_LIVE
    );
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_map(params![bound(before), list(awaited), most], read)?;
    let jobs: Vec<(i64, i64)> = found.collect::<rusqlite::Result<_>>()?;
    let execute = |sql: &str, value: i64| connection.prepare_cached(sql)?.execute([value]);
    let mut pruned = Pruned::default();
    for (job, _) in &jobs {
        execute("DELETE FROM run_nodes WHERE job = ?1", *job)?;
        pruned.runs += execute("DELETE FROM runs WHERE job = ?1", *job)? as u64;
        pruned.notes += execute("DELETE FROM notes WHERE job = ?1", *job)? as u64;
        pruned.jobs += execute("DELETE FROM jobs WHERE id = ?1", *job)? as u64;
    }
    for (_, text) in &jobs {
        execute(
            "DELETE FROM texts WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM jobs WHERE text_id = ?1)",
            *text,
        )?;
    }
    let notes =
        "DELETE FROM notes WHERE id IN (SELECT id FROM notes WHERE job IS NULL AND at_ms < ?1 LIMIT ?2)";
    pruned.notes += connection.prepare_cached(notes)?.execute(params![bound(before), most])? as u64;
    Ok(pruned)
}

/// What SQLite can hold.
fn bound(time: Time) -> u64 {
    time.0.min(Time::NEVER.0)
}

fn list(jobs: &[JobId]) -> String {
    let numbers: Vec<String> = jobs.iter().map(|job| job.0.to_string()).collect();
    format!("[{}]", numbers.join(","))
}
