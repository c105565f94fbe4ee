//! Records into rows. A record replaces the row that it is about.

use bedplate_control::record::{
    HeldShare, JobRow, JobState, Joined, Life, NodeRow, Note, Record, RunRow, ShareRow,
};
use bedplate_gangs::{JobId, Time};
use rusqlite::{Connection, ToSql, named_params, params};

use crate::journal::LastText;
use crate::{JournalError, rows};

/// Writes all records into the transaction that is open.
pub(crate) fn write(
    connection: &Connection,
    records: &[Record],
    last_text: &mut Option<LastText>,
) -> Result<(), JournalError> {
    for record in records {
        match record {
            Record::Submitted(row) => submitted(connection, row, last_text),
            Record::Job { job, life } => known(job.0, update_job(connection, job.0, life))?,
            Record::Arriving { array, next } => known(array.0, arriving(connection, array.0, *next))?,
            Record::Run(row) => run(connection, row),
            Record::Node(row) => node(connection, row),
            Record::Share(row) => share(connection, row),
            Record::Note(row) => note(connection, row),
        }
        .map_err(JournalError::writing)?;
    }
    let latest = records.iter().map(latest).max().unwrap_or_default();
    advance_clock(connection, latest).map_err(JournalError::writing)
}

/// The latest time that a record speaks of.
fn latest(record: &Record) -> Time {
    let of_life = |life: &Life| Time(life.started_ms.max(life.ended_ms).unwrap_or_default());
    match record {
        Record::Submitted(row) => row.submitted.max(of_life(&row.life)),
        Record::Job { life, .. } => of_life(life),
        Record::Arriving { .. } => Time::ZERO,
        Record::Run(row) => row.started.max(row.running.max(row.ended).unwrap_or_default()),
        Record::Node(row) => row.losses.iter().copied().chain(row.found_out).max().unwrap_or_default(),
        Record::Share(row) => row.at,
        Record::Note(row) => Time(row.at_ms),
    }
}

fn advance_clock(connection: &Connection, latest: Time) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached("UPDATE clock SET latest_ms = ?1 WHERE latest_ms < ?1")?;
    statement.execute([latest.0])?;
    Ok(())
}

fn submitted(
    connection: &Connection,
    row: &JobRow,
    last_text: &mut Option<LastText>,
) -> rusqlite::Result<()> {
    let text_id = text(connection, row, last_text)?;
    let mut statement = connection.prepare_cached(
        "INSERT INTO jobs (id, array_id, array_index, user, name, account, submitted_ms, key, text_id, state,
            is_held, runs, restarts, checkpoint_step, checkpoint_path, started_ms, ended_ms, exit_status, reason, why, charges)
         VALUES (:id, :array_id, :array_index, :user, :name, :account, :submitted_ms, :key, :text_id, :state,
            :is_held, :runs, :restarts, :checkpoint_step, :checkpoint_path, :started_ms, :ended_ms, :exit_status,
            :reason, :why, :charges)
         ON CONFLICT (id) DO UPDATE SET array_id = excluded.array_id, array_index = excluded.array_index,
            user = excluded.user, name = excluded.name, account = excluded.account,
            submitted_ms = excluded.submitted_ms, key = excluded.key, text_id = excluded.text_id,
            state = excluded.state, is_held = excluded.is_held, runs = excluded.runs,
            restarts = excluded.restarts, checkpoint_step = excluded.checkpoint_step, checkpoint_path = excluded.checkpoint_path,
            started_ms = excluded.started_ms, ended_ms = excluded.ended_ms,
            exit_status = excluded.exit_status, reason = excluded.reason, why = excluded.why,
            charges = excluded.charges",
    )?;
    let own = named_params! {
        ":id": row.id.0,
        ":array_id": row.array.map(|place| place.array.0),
        ":array_index": row.array.map(|place| place.index),
        ":user": row.user,
        ":name": row.name,
        ":account": row.account,
        ":submitted_ms": row.submitted.0,
        ":key": row.key,
        ":text_id": text_id,
    };
    with_life(own, &row.life, |parameters| statement.execute(parameters))?;
    Ok(())
}

/// The row of the job's text. Jobs of an array come one after the other and have the same.
fn text(connection: &Connection, row: &JobRow, last_text: &mut Option<LastText>) -> rusqlite::Result<i64> {
    if let Some(last) = last_text
        && last.text == row.text
    {
        return Ok(last.id);
    }
    connection.prepare_cached("INSERT INTO texts (text) VALUES (?1)")?.execute([&*row.text])?;
    let id = connection.last_insert_rowid();
    *last_text = Some(LastText { text: row.text.clone(), id });
    Ok(id)
}

/// The outer error is a change of a job that was never submitted.
fn known(job: u64, changed: rusqlite::Result<usize>) -> Result<rusqlite::Result<()>, JournalError> {
    match changed {
        Ok(0) => Err(JournalError::UnknownJob { job }),
        other => Ok(other.map(|_| ())),
    }
}

fn arriving(connection: &Connection, array: u64, next: Option<JobId>) -> rusqlite::Result<usize> {
    let mut statement = connection.prepare_cached("UPDATE jobs SET arriving = ?2 WHERE id = ?1")?;
    statement.execute(params![array, next.map(|job| job.0)])
}

fn update_job(connection: &Connection, job: u64, life: &Life) -> rusqlite::Result<usize> {
    let mut statement = connection.prepare_cached(
        "UPDATE jobs SET state = :state, is_held = :is_held, runs = :runs, restarts = :restarts,
            checkpoint_step = :checkpoint_step,
            checkpoint_path = :checkpoint_path, started_ms = :started_ms, ended_ms = :ended_ms,
            exit_status = :exit_status, reason = :reason, why = :why, charges = :charges
         WHERE id = :id",
    )?;
    with_life(named_params! { ":id": job }, life, |parameters| statement.execute(parameters))
}

/// Executes with parameters of its own and those of a job's life.
fn with_life(
    own: &[(&str, &dyn ToSql)],
    life: &Life,
    execute: impl FnOnce(&[(&str, &dyn ToSql)]) -> rusqlite::Result<usize>,
) -> rusqlite::Result<usize> {
    let life = named_params! {
        ":state": life.state.name(),
        ":is_held": life.is_held,
        ":runs": life.runs,
        ":restarts": life.restarts,
        ":checkpoint_step": life.checkpoint.as_ref().map(|checkpoint| checkpoint.step),
        ":checkpoint_path": life.checkpoint.as_ref().and_then(|checkpoint| checkpoint.path.as_deref()),
        ":started_ms": life.started_ms,
        ":ended_ms": life.ended_ms,
        ":exit_status": life.exit_status,
        ":reason": life.reason.as_ref().map(|reason| &reason.text),
        ":why": rows::json_text(life.reason.as_ref())?,
        ":charges": rows::json_text((!life.charges.is_empty()).then_some(&life.charges))?,
    };
    execute(&[own, life].concat())
}

fn run(connection: &Connection, row: &RunRow) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(
        "INSERT INTO runs (job, number, phase, gpus, started_ms, running_ms, ended_ms, reason, cpu_ms,
            energy_joules, ends_ms, stops_as, steps, why, began, master_port)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
         ON CONFLICT (job, number) DO UPDATE SET phase = excluded.phase, gpus = excluded.gpus,
            started_ms = excluded.started_ms, running_ms = excluded.running_ms, ended_ms = excluded.ended_ms,
            reason = excluded.reason, cpu_ms = excluded.cpu_ms, energy_joules = excluded.energy_joules,
            ends_ms = excluded.ends_ms, stops_as = excluded.stops_as, steps = excluded.steps, why = excluded.why,
            began = excluded.began, master_port = excluded.master_port",
    )?;
    statement.execute(params![
        row.run.job,
        row.run.number,
        rows::phase_name(row.phase),
        row.gpus(),
        row.started.0,
        row.running.map(|time| time.0),
        row.ended.map(|time| time.0),
        row.reason.as_ref().map(|reason| &reason.text),
        row.cpu_ms,
        row.energy_joules,
        row.ends.0,
        row.stops_as.map(JobState::name),
        rows::json_text(row.steps.as_ref())?,
        rows::json_text(row.reason.as_ref())?,
        (row.began != row.run.number).then_some(row.began),
        row.master_port,
    ])?;
    // The devices of a run do not change, so all but the first write find them as they are.
    if rows::shares_of(connection, row.run)? != row.shares {
        replace_shares(connection, row)?;
    }
    Ok(())
}

fn replace_shares(connection: &Connection, row: &RunRow) -> rusqlite::Result<()> {
    let (job, number) = (row.run.job, row.run.number);
    connection
        .prepare_cached("DELETE FROM run_nodes WHERE job = ?1 AND number = ?2")?
        .execute(params![job, number])?;
    let mut statement = connection.prepare_cached(
        "INSERT INTO run_nodes (job, number, place, node, role, devices, gpus, joined, first_rank)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?;
    for (place, HeldShare { node, role, devices, joined }) in row.shares.iter().enumerate() {
        let (devices, gpus) = (devices.cast_signed(), devices.count_ones());
        let (run, first_rank) = joined.map(|Joined { run, first_rank }| (run, first_rank)).unzip();
        statement.execute(params![job, number, place, node, role, devices, gpus, run, first_rank])?;
    }
    Ok(())
}

fn node(connection: &Connection, row: &NodeRow) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(
        "INSERT OR REPLACE INTO nodes (name, drained, address, incarnation, losses_ms, why, acknowledged_ms, found_out_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    let incarnation = row.incarnation.cast_signed();
    statement.execute(params![
        row.name,
        row.drained.as_ref().map(|reason| &reason.text),
        row.address,
        incarnation,
        rows::times_text(&row.losses),
        rows::json_text(row.drained.as_ref())?,
        row.acknowledged_ms.cast_signed(),
        row.found_out.map(|time| time.0),
    ])?;
    Ok(())
}

fn share(connection: &Connection, row: &ShareRow) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(
        "INSERT OR REPLACE INTO shares (account, user, gpu_ms, faded, at_ms) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    let gpu_ms = i64::try_from(row.gpu_ms)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    statement.execute(params![row.account, row.user, gpu_ms, row.faded, row.at.0])?;
    Ok(())
}

fn note(connection: &Connection, row: &Note) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT INTO notes (at_ms, job, node, text) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![row.at_ms, row.job, row.node, row.text])?;
    Ok(())
}
