//! All that a restarted control plane needs, read in one pass over each table.

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_control::record::{ArrivingRow, EndedRow, JobRow, Restored, RunRow};
use bedplate_gangs::{JobId, Time};
use rusqlite::{Connection, OptionalExtension, Row};

use crate::{JournalError, prune, rows};

pub(crate) fn restore(connection: &Connection) -> Result<Restored, JournalError> {
    let latest = number(connection, "SELECT latest_ms FROM clock");
    let newest_job = number(connection, "SELECT coalesce(max(id), 0) FROM jobs");
    Ok(Restored {
        next_job: newest_job.map_err(JournalError::reading("the newest job"))? + 1,
        jobs: live_jobs(connection).map_err(JournalError::reading("the jobs"))?,
        arriving: arriving(connection).map_err(JournalError::reading("the arrays that are not whole"))?,
        ended: mates_of_live_tasks(connection).map_err(JournalError::reading("the jobs that ended"))?,
        runtime_samples: runtime_samples(connection)
            .map_err(JournalError::reading("the jobs that ended last"))?,
        ended_count: prune::ended_count(connection).map_err(JournalError::reading("the number of jobs"))?,
        runs: live_runs(connection).map_err(JournalError::reading("the runs"))?,
        nodes: all(connection, NODES, rows::node).map_err(JournalError::reading("the nodes"))?,
        shares: all(connection, SHARES, rows::share).map_err(JournalError::reading("the shares"))?,
        latest: Time(latest.map_err(JournalError::reading("the clock"))?),
    })
}

const NODES: &str =
    "SELECT name, drained, address, incarnation, losses_ms, why, acknowledged_ms, found_out_ms
    FROM nodes ORDER BY name";
const SHARES: &str = "SELECT account, user, gpu_ms, faded, at_ms FROM shares ORDER BY account, user";

fn number(connection: &Connection, sql: &str) -> rusqlite::Result<u64> {
    connection.query_row(sql, [], |row| row.get(0))
}

fn all<T>(
    connection: &Connection,
    sql: &str,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection.prepare(sql)?.query_map([], read)?.collect()
}

/// Jobs of the history that a control plane learns run times from.
const MOST_RUNTIME_SAMPLES: usize = 10_000;

fn live_jobs(connection: &Connection) -> rusqlite::Result<Vec<JobRow>> {
    jobs(connection, &format!("WHERE {} ORDER BY jobs.id", rows::IS_LIVE))?.into_iter().collect()
}

fn arriving(connection: &Connection) -> rusqlite::Result<Vec<ArrivingRow>> {
    let sql = "SELECT id, arriving FROM jobs WHERE arriving IS NOT NULL ORDER BY id";
    let next = all(connection, sql, |row| row.get::<_, u64>(1))?;
    let first = jobs(connection, "WHERE arriving IS NOT NULL ORDER BY jobs.id")?;
    let row =
        |(first, next): (rusqlite::Result<JobRow>, u64)| Ok(ArrivingRow { first: first?, next: JobId(next) });
    first.into_iter().zip(next).map(row).collect()
}

/// The newest jobs for which [`JobRow::is_runtime_sample`], in the order in which they ended. What cannot be read teaches nothing.
fn runtime_samples(connection: &Connection) -> rusqlite::Result<Vec<JobRow>> {
    let newest = format!(
        "WHERE runs = 1 AND restarts = 0 AND started_ms IS NOT NULL AND ended_ms IS NOT NULL
            AND state IN ('succeeded', 'failed', 'cancelled', 'timed_out')
         ORDER BY ended_ms DESC, jobs.id DESC LIMIT {MOST_RUNTIME_SAMPLES}"
    );
    let mut runtime_samples: Vec<JobRow> = jobs(connection, &newest)?.into_iter().flatten().collect();
    runtime_samples.reverse();
    Ok(runtime_samples)
}

/// Jobs with the same text share it in memory too.
fn jobs(connection: &Connection, which: &str) -> rusqlite::Result<Vec<rusqlite::Result<JobRow>>> {
    let sql = format!(
        "SELECT {}, text_id, text FROM jobs JOIN texts ON texts.id = text_id {which}",
        rows::JOB_COLUMNS
    );
    let mut texts: BTreeMap<i64, Arc<str>> = BTreeMap::new();
    let read = |row: &Row<'_>| {
        let id = row.get(rows::JOB_COLUMN_COUNT)?;
        let text = match texts.get(&id) {
            Some(text) => text.clone(),
            None => {
                let text: Arc<str> = row.get_ref(rows::JOB_COLUMN_COUNT + 1)?.as_str()?.into();
                texts.insert(id, text.clone());
                text
            }
        };
        rows::job(row, text)
    };
    Ok(connection.prepare(&sql)?.query_map([], read)?.collect())
}

const ENDED: &str = "id, state, array_id, array_index";

/// Tasks that have ended, of arrays of which others have not.
fn mates_of_live_tasks(connection: &Connection) -> rusqlite::Result<Vec<EndedRow>> {
    let live = rows::IS_LIVE;
    let sql = format!(
        "SELECT {ENDED} FROM jobs WHERE array_id IN (SELECT array_id FROM jobs WHERE {live} AND array_id IS NOT NULL)
            AND NOT ({live}) ORDER BY id"
    );
    all(connection, &sql, ended)
}

pub(crate) fn ended_jobs(connection: &Connection, jobs: &[JobId]) -> rusqlite::Result<Vec<EndedRow>> {
    let sql = format!("SELECT {ENDED} FROM jobs WHERE id = ?1 AND NOT ({})", rows::IS_LIVE);
    let mut statement = connection.prepare_cached(&sql)?;
    let mut found = Vec::new();
    for job in jobs {
        found.extend(statement.query_row([job.0], ended).optional()?);
    }
    Ok(found)
}

fn ended(row: &Row<'_>) -> rusqlite::Result<EndedRow> {
    Ok(EndedRow { id: JobId(row.get(0)?), state: rows::state(row, 1)?, array: rows::array_place(row, 2)? })
}

fn live_runs(connection: &Connection) -> rusqlite::Result<Vec<RunRow>> {
    let sql = format!(
        "SELECT {} FROM jobs CROSS JOIN runs ON runs.job = jobs.id
         WHERE {} AND phase <> 'ended' AND number = (SELECT max(number) FROM runs WHERE job = jobs.id)
         ORDER BY jobs.id",
        rows::RUN_COLUMNS,
        rows::IS_LIVE
    );
    all(connection, &sql, |row| rows::run(row, connection))
}
