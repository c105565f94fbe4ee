//! Queries: jobs, their runs, and the notes about them.
//!
//! A reader sees the last commit as of its question and holds nothing between questions, so that the log can go
//! into the main file.

use std::path::Path;
use std::sync::Arc;

use bedplate_control::record::{JobRow, JobState, Note, RunRow};
use bedplate_gangs::{JobId, Time};
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params, params_from_iter};

use crate::journal::BUSY;
use crate::{JournalError, rows, schema};

/// A connection that only reads. Open as many as there are threads that ask.
#[derive(Debug)]
pub struct Reader {
    pub(crate) connection: Connection,
}

/// Which jobs are wanted. Empty conditions hold for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFilter {
    /// Any of these.
    pub states: Vec<JobState>,
    pub user: Option<String>,
    pub account: Option<String>,
    pub name: Option<String>,
    /// Jobs that existed at some time from `since` on, and before `until`.
    pub since: Option<Time>,
    pub until: Option<Time>,
    /// Only jobs with smaller numbers: the last of one page leads to the next page.
    pub before: Option<JobId>,
    pub limit: u32,
}

impl Default for JobFilter {
    fn default() -> Self {
        Self {
            states: Vec::new(),
            user: None,
            account: None,
            name: None,
            since: None,
            until: None,
            before: None,
            limit: 100,
        }
    }
}

/// Whose notes are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoteSubject<'a> {
    Job(JobId),
    Node(&'a str),
}

impl Reader {
    /// The journal must exist and have the current format; the daemon sees to both.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(JournalError::opening(path))?;
        connection.busy_timeout(BUSY).map_err(JournalError::opening(path))?;
        schema::check(&connection, path)?;
        Ok(Self { connection })
    }

    /// Jobs that fit the filter, the newest first.
    pub fn jobs(&self, filter: &JobFilter) -> Result<Vec<JobRow>, JournalError> {
        self.find_jobs(filter).map_err(JournalError::reading("jobs"))
    }

    pub fn job(&self, job: JobId) -> Result<Option<JobRow>, JournalError> {
        self.find_job(job).map_err(JournalError::reading("a job"))
    }

    /// The first job that was submitted under a key, and how many tasks it has.
    pub fn job_of_key(&self, key: &str) -> Result<Option<(JobId, u32)>, JournalError> {
        let sql = "SELECT id, (SELECT count(*) FROM jobs AS task WHERE task.array_id = jobs.id)
             FROM jobs WHERE key = ?1 ORDER BY id DESC LIMIT 1";
        let read = || -> rusqlite::Result<Option<(u64, u32)>> {
            let mut statement = self.connection.prepare_cached(sql)?;
            statement.query_row([key], |row| Ok((row.get(0)?, row.get(1)?))).optional()
        };
        let found = read().map_err(JournalError::reading("a key"))?;
        Ok(found.map(|(first, tasks)| (JobId(first), tasks.max(1))))
    }

    /// The keys of all submissions that had one.
    pub fn keys(&self, mut each: impl FnMut(&str)) -> Result<(), JournalError> {
        let mut read = || -> rusqlite::Result<()> {
            let mut statement = self.connection.prepare("SELECT key FROM jobs WHERE key IS NOT NULL")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                each(row.get_ref(0)?.as_str()?);
            }
            Ok(())
        };
        read().map_err(JournalError::reading("keys"))
    }

    /// The jobs that a number means, with their states: the tasks of an array, all or the one of an index, or one job.
    pub fn states(&self, job: JobId, index: Option<u32>) -> Result<Vec<(JobId, JobState)>, JournalError> {
        let tasks =
            "SELECT id, state FROM jobs WHERE array_id = ?1 AND (?2 IS NULL OR array_index = ?2) ORDER BY id";
        let single = "SELECT id, state FROM jobs WHERE id = ?1 AND ?2 IS NULL AND array_id IS NULL";
        let read = |sql| -> rusqlite::Result<Vec<(JobId, JobState)>> {
            let mut statement = self.connection.prepare_cached(sql)?;
            let found = statement
                .query_map(params![job.0, index], |row| Ok((JobId(row.get(0)?), rows::state(row, 1)?)))?;
            found.collect()
        };
        let reading = JournalError::reading("the states of jobs");
        let found = read(tasks).and_then(|tasks| if tasks.is_empty() { read(single) } else { Ok(tasks) });
        found.map_err(reading)
    }

    /// The first tasks of an array by their indices; none for a job that is no array.
    pub fn tasks(&self, array: JobId, limit: usize) -> Result<Vec<(u32, JobId, JobState)>, JournalError> {
        let read = || -> rusqlite::Result<Vec<(u32, JobId, JobState)>> {
            let mut statement = self.connection.prepare_cached(
                "SELECT array_index, id, state FROM jobs WHERE array_id = ?1 ORDER BY id LIMIT ?2",
            )?;
            let found = statement.query_map(params![array.0, limit], |row| {
                Ok((row.get(0)?, JobId(row.get(1)?), rows::state(row, 2)?))
            })?;
            found.collect()
        };
        read().map_err(JournalError::reading("the tasks of an array"))
    }

    /// All runs of a job, in order.
    pub fn runs(&self, job: JobId) -> Result<Vec<RunRow>, JournalError> {
        self.find_runs(job).map_err(JournalError::reading("the runs of a job"))
    }

    /// The newest notes about a job or a node, the oldest of them first.
    pub fn notes(&self, subject: NoteSubject<'_>, limit: u32) -> Result<Vec<Note>, JournalError> {
        self.find_notes(subject, limit).map_err(JournalError::reading("notes"))
    }

    fn find_jobs(&self, filter: &JobFilter) -> rusqlite::Result<Vec<JobRow>> {
        let Conditions { sql, values } = conditions(filter);
        let sql = format!("{} {sql} ORDER BY jobs.id DESC LIMIT {}", select_jobs(), filter.limit);
        let mut statement = self.connection.prepare_cached(&sql)?;
        let jobs = statement.query_map(params_from_iter(values), job_with_text)?;
        jobs.collect()
    }

    fn find_job(&self, job: JobId) -> rusqlite::Result<Option<JobRow>> {
        let mut statement =
            self.connection.prepare_cached(&format!("{} WHERE jobs.id = ?1", select_jobs()))?;
        statement.query_row([job.0], job_with_text).optional()
    }

    fn find_runs(&self, job: JobId) -> rusqlite::Result<Vec<RunRow>> {
        let sql = format!("SELECT {} FROM runs WHERE job = ?1 ORDER BY number", rows::RUN_COLUMNS);
        let mut statement = self.connection.prepare_cached(&sql)?;
        let runs = statement.query_map([job.0], |row| rows::run(row, &self.connection))?;
        runs.collect()
    }

    fn find_notes(&self, subject: NoteSubject<'_>, limit: u32) -> rusqlite::Result<Vec<Note>> {
        let (column, value): (_, Value) = match subject {
            NoteSubject::Job(job) => ("job", job.0.cast_signed().into()),
            NoteSubject::Node(node) => ("node", node.to_owned().into()),
        };
        let sql =
            format!("SELECT at_ms, job, node, text FROM notes WHERE {column} = ?1 ORDER BY id DESC LIMIT ?2");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let notes = statement.query_map(params![value, limit], rows::note)?;
        let mut notes: Vec<Note> = notes.collect::<rusqlite::Result<_>>()?;
        notes.reverse();
        Ok(notes)
    }
}

fn select_jobs() -> String {
    format!("SELECT {}, text FROM jobs JOIN texts ON texts.id = text_id", rows::JOB_COLUMNS)
}

fn job_with_text(row: &rusqlite::Row<'_>) -> rusqlite::Result<JobRow> {
    let text: Arc<str> = row.get_ref(rows::JOB_COLUMN_COUNT)?.as_str()?.into();
    rows::job(row, text)
}

struct Conditions {
    sql: String,
    values: Vec<Value>,
}

fn conditions(filter: &JobFilter) -> Conditions {
    let mut parts: Vec<String> = Vec::new();
    let mut values: Vec<Value> = Vec::new();
    if !filter.states.is_empty() {
        let names: Vec<String> = filter.states.iter().map(|state| format!("'{}'", state.name())).collect();
        parts.push(format!("state IN ({})", names.join(", ")));
    }
    let mut add = |part: &str, value: Option<Value>| {
        if let Some(value) = value {
            parts.push(part.to_owned());
            values.push(value);
        }
    };
    let time = |time: Option<Time>| time.map(|time| Value::from(time.0.min(Time::NEVER.0).cast_signed()));
    add("user = ?", filter.user.clone().map(Value::from));
    add("account = ?", filter.account.clone().map(Value::from));
    add("name = ?", filter.name.clone().map(Value::from));
    add("(ended_ms IS NULL OR ended_ms >= ?)", time(filter.since));
    add("submitted_ms < ?", time(filter.until));
    add("jobs.id < ?", filter.before.map(|job| Value::from(job.0.cast_signed())));
    let sql = if parts.is_empty() { String::new() } else { format!("WHERE {}", parts.join(" AND ")) };
    Conditions { sql, values }
}
