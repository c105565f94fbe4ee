//! Rows into the types of `bedplate_control`.

use std::sync::Arc;

use bedplate_control::record::{
    ArrayPlace, HeldShare, JobRow, JobState, Joined, Life, NodeRow, Note, RunPhase, RunRow, ShareRow,
};
use bedplate_control::wire::{Checkpoint, RunId};
use bedplate_diag::Reason;
use bedplate_gangs::{JobId, Time};
use rusqlite::types::Type;
use rusqlite::{Connection, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The columns that [`job`] reads, in its order.
pub(crate) const JOB_COLUMNS: &str = "jobs.id, array_id, array_index, user, name, account, submitted_ms, key, state, \
     is_held, runs, checkpoint_step, checkpoint_path, started_ms, ended_ms, exit_status, reason, restarts, why, charges";
/// How many those are.
pub(crate) const JOB_COLUMN_COUNT: usize = 20;
/// The columns that [`run`] reads, in its order.
pub(crate) const RUN_COLUMNS: &str = "runs.job, runs.number, runs.phase, runs.started_ms, runs.running_ms, \
     runs.ended_ms, runs.reason, runs.cpu_ms, runs.energy_joules, runs.ends_ms, runs.stops_as, runs.steps, runs.why, \
     runs.began, runs.master_port";
/// The states of [`JobState`] that are not final, as the index `jobs_live` has them.
pub(crate) const IS_LIVE: &str = "state IN ('waiting', 'starting', 'running', 'stopping', 'suspended')";

pub(crate) fn job(row: &Row<'_>, text: Arc<str>) -> rusqlite::Result<JobRow> {
    let checkpoint = match row.get::<_, Option<u64>>(11)? {
        Some(step) => Some(Checkpoint { step, path: row.get(12)? }),
        None => None,
    };
    Ok(JobRow {
        id: JobId(row.get(0)?),
        array: array_place(row, 1)?,
        user: row.get(3)?,
        name: row.get(4)?,
        account: row.get(5)?,
        submitted: Time(row.get(6)?),
        key: row.get(7)?,
        text,
        life: Life {
            state: state(row, 8)?,
            is_held: row.get(9)?,
            runs: row.get(10)?,
            restarts: row.get(17)?,
            checkpoint,
            started_ms: row.get(13)?,
            ended_ms: row.get(14)?,
            exit_status: row.get(15)?,
            reason: reason(row, 16, 18)?,
            charges: json(row, 19)?.unwrap_or_default(),
        },
    })
}

/// From two columns, the array and the index.
pub(crate) fn array_place(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<ArrayPlace>> {
    Ok(match row.get::<_, Option<u64>>(at)? {
        Some(array) => Some(ArrayPlace { array: JobId(array), index: row.get(at + 1)? }),
        None => None,
    })
}

pub(crate) fn state(row: &Row<'_>, at: usize) -> rusqlite::Result<JobState> {
    let name = row.get_ref(at)?.as_str()?;
    JobState::named(name).ok_or_else(|| unknown(at, name))
}

pub(crate) fn run(row: &Row<'_>, connection: &Connection) -> rusqlite::Result<RunRow> {
    let run = RunId { job: row.get(0)?, number: row.get(1)? };
    Ok(RunRow {
        run,
        phase: phase(row, 2)?,
        shares: shares_of(connection, run)?,
        started: Time(row.get(3)?),
        running: row.get::<_, Option<u64>>(4)?.map(Time),
        ended: row.get::<_, Option<u64>>(5)?.map(Time),
        reason: reason(row, 6, 12)?,
        cpu_ms: row.get(7)?,
        energy_joules: row.get(8)?,
        ends: Time(row.get(9)?),
        stops_as: row.get::<_, Option<String>>(10)?.map(|_| state(row, 10)).transpose()?,
        steps: json(row, 11)?,
        began: row.get::<_, Option<u32>>(13)?.unwrap_or(run.number),
        master_port: row.get(14)?,
    })
}

/// A value that was written as JSON, where there is one.
fn json<T: DeserializeOwned>(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<T>> {
    let text = row.get::<_, Option<String>>(at)?;
    text.map(|text| serde_json::from_str(&text).map_err(|_| unknown(at, &text))).transpose()
}

/// A value as the text that [`json`] reads.
pub(crate) fn json_text<T: Serialize>(value: Option<&T>) -> rusqlite::Result<Option<String>> {
    let failed = |error| rusqlite::Error::ToSqlConversionFailure(Box::new(error));
    value.map(|value| serde_json::to_string(value).map_err(failed)).transpose()
}

/// A reason from its sentence and its JSON. Format 1 had sentences alone.
fn reason(row: &Row<'_>, sentence: usize, whole: usize) -> rusqlite::Result<Option<Reason>> {
    let sentence = row.get::<_, Option<String>>(sentence)?;
    Ok(json(row, whole)?.or(sentence.map(|text| Reason::new("not_recorded", text))))
}

/// What a run holds, in the order of its ranks.
pub(crate) fn shares_of(connection: &Connection, run: RunId) -> rusqlite::Result<Vec<HeldShare>> {
    let mut statement = connection.prepare_cached(
        "SELECT node, role, devices, joined, first_rank FROM run_nodes WHERE job = ?1 AND number = ?2 ORDER BY place",
    )?;
    let rows = statement.query_map(params![run.job, run.number], |row| {
        let joined = row.get::<_, Option<u32>>(3)?.zip(row.get(4)?);
        Ok(HeldShare {
            node: row.get(0)?,
            role: row.get(1)?,
            devices: row.get::<_, i64>(2)?.cast_unsigned(),
            joined: joined.map(|(run, first_rank)| Joined { run, first_rank }),
        })
    })?;
    rows.collect()
}

const PHASES: [(&str, RunPhase); 4] = [
    ("preparing", RunPhase::Preparing),
    ("running", RunPhase::Running),
    ("suspended", RunPhase::Suspended),
    ("ended", RunPhase::Ended),
];

pub(crate) fn phase_name(phase: RunPhase) -> &'static str {
    match phase {
        RunPhase::Preparing => "preparing",
        RunPhase::Running => "running",
        RunPhase::Suspended => "suspended",
        RunPhase::Ended => "ended",
    }
}

fn phase(row: &Row<'_>, at: usize) -> rusqlite::Result<RunPhase> {
    let name = row.get_ref(at)?.as_str()?;
    let found = PHASES.iter().find(|(known, _)| *known == name);
    found.map(|(_, phase)| *phase).ok_or_else(|| unknown(at, name))
}

/// `name, drained, address, incarnation, losses_ms, why, acknowledged_ms, found_out_ms`.
pub(crate) fn node(row: &Row<'_>) -> rusqlite::Result<NodeRow> {
    Ok(NodeRow {
        name: row.get(0)?,
        drained: reason(row, 1, 5)?,
        address: row.get(2)?,
        incarnation: row.get::<_, i64>(3)?.cast_unsigned(),
        losses: times(row, 4)?,
        acknowledged_ms: row.get::<_, i64>(6)?.cast_unsigned(),
        found_out: row.get::<_, Option<u64>>(7)?.map(Time),
    })
}

/// `account, user, gpu_ms, faded, at_ms`.
pub(crate) fn share(row: &Row<'_>) -> rusqlite::Result<ShareRow> {
    Ok(ShareRow {
        account: row.get(0)?,
        user: row.get(1)?,
        gpu_ms: row.get::<_, u64>(2)?.into(),
        faded: row.get(3)?,
        at: Time(row.get(4)?),
    })
}

/// `at_ms, job, node, text`.
pub(crate) fn note(row: &Row<'_>) -> rusqlite::Result<Note> {
    Ok(Note { at_ms: row.get(0)?, job: row.get(1)?, node: row.get(2)?, text: row.get(3)? })
}

/// A JSON list, which SQL can take apart with `json_each`.
pub(crate) fn times_text(times: &[Time]) -> String {
    let numbers: Vec<String> = times.iter().map(|time| time.0.to_string()).collect();
    format!("[{}]", numbers.join(","))
}

fn times(row: &Row<'_>, at: usize) -> rusqlite::Result<Vec<Time>> {
    let text = row.get_ref(at)?.as_str()?;
    let numbers = text.trim_start_matches('[').trim_end_matches(']').split(',').map(str::trim);
    let times = numbers.filter(|number| !number.is_empty()).map(|number| number.parse().map(Time));
    times.collect::<Result<_, _>>().map_err(|_| unknown(at, text))
}

/// A word that this program never wrote.
fn unknown(at: usize, found: &str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, Type::Text, format!("`{found}` is not known").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_of_live_jobs_has_every_state_that_is_not_final() {
        let live = JobState::ALL.iter().filter(|(_, state)| !state.is_final());
        let names: Vec<String> = live.map(|(name, _)| format!("'{name}'")).collect();
        assert_eq!(IS_LIVE, format!("state IN ({})", names.join(", ")));
        assert!(include_str!("schema/1.sql").contains(IS_LIVE));
    }

    #[test]
    fn phases_have_one_name_each() {
        for (name, phase) in PHASES {
            assert_eq!(phase_name(phase), name);
        }
    }
}
