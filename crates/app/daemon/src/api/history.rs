//! Jobs and runs as the journal has them.

use bedplate_control::record::{HeldShare, JobRow, JobState, RunPhase, RunRow};
use bedplate_control::{JobName, JobView};
use bedplate_gangs::{JobId, Settings, Span};
use bedplate_job::Job;
use bedplate_journal::NoteSubject;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{self, Answer};
use super::call::ApiCall;
use super::dispatch::App;
use super::error::ApiError;
use crate::retention::{self, PruneOutcome, Retention};

/// A job that is known, live or ended.
pub(crate) struct Known {
    pub(crate) id: JobId,
    pub(crate) view: JobView,
    pub(crate) text: String,
}

/// The jobs that a label means; at least one.
pub(crate) async fn find_jobs(app: &App, label: &str) -> Result<Vec<JobId>, ApiError> {
    let name = label.to_owned();
    let found = app.control.ask(move |control, _| control.find_jobs(&name)).await?;
    if !found.is_empty() {
        return Ok(found);
    }
    let ended = ended_jobs(app, label).await?;
    if ended.is_empty() {
        return Err(ApiError::no_such_job(label));
    }
    Ok(ended.into_iter().map(|(job, _)| job).collect())
}

/// The jobs that a label means, as the journal has them, with their states.
pub(crate) async fn ended_jobs(app: &App, label: &str) -> Result<Vec<(JobId, JobState)>, ApiError> {
    let Some(JobName { id, index }) = JobName::read(label) else {
        return Ok(Vec::new());
    };
    Ok(app.readers.ask(move |reader| reader.states(id, index)).await?)
}

/// The one job that a label means.
pub(crate) async fn find_job(app: &App, label: &str) -> Result<JobId, ApiError> {
    match find_jobs(app, label).await?[..] {
        [job] => Ok(job),
        [_, ..] => Err(ApiError::Malformed {
            what: "the label",
            why: format!("{label} is an array; name one of its tasks, as `{label}_0`"),
        }),
        [] => Err(ApiError::no_such_job(label)),
    }
}

/// A job with its text, from memory while it lives, from the journal when it has ended.
pub(crate) async fn known(app: &App, id: JobId) -> Result<Known, ApiError> {
    let live = app.control.ask(move |control, _| {
        let view = control.job(id)?;
        Some(Known { id, view, text: control.job_text(id)?.to_owned() })
    });
    if let Some(known) = live.await? {
        return Ok(known);
    }
    let row = app.readers.ask(move |reader| reader.job(id)).await?;
    let row = row.ok_or_else(|| ApiError::no_such_job(&id.0.to_string()))?;
    let text = row.text.to_string();
    Ok(Known { id, view: ended_view(row, &app.options.settings), text })
}

/// A job that has ended, as it was when it lived.
pub(crate) fn ended_view(row: JobRow, settings: &Settings) -> JobView {
    let job = Job::from_toml(&row.text, "journal").ok();
    let policy = job.as_ref().map(|job| &job.policy);
    let partition = policy.and_then(|policy| policy.partition.clone());
    let qos = policy.and_then(|policy| policy.qos.clone());
    JobView {
        id: row.id.0,
        label: match row.array {
            Some(place) => format!("{}_{}", place.array.0, place.index),
            None => row.id.0.to_string(),
        },
        name: row.name,
        user: row.user,
        account: row.account,
        partition: partition.unwrap_or_else(|| settings.partitions[0].name.clone()),
        qos: qos.unwrap_or_else(|| settings.qos[0].name.clone()),
        submitted_ms: row.submitted.0,
        life: row.life,
        nodes_asked: job.as_ref().map_or(0, |job| job.gang.nodes()),
        gpus_asked: job.as_ref().map_or(0, |job| job.gang.gpus()),
        nodes: Vec::new(),
        ends_ms: None,
        expected_start_ms: None,
        waits_because: None,
        pace: None,
        problem: None,
    }
}

/// All runs of a job and what was noted about it.
pub(crate) async fn past(app: &App, id: JobId) -> Result<(Vec<RunRow>, Value), ApiError> {
    const NOTES: u32 = 500;
    let asked =
        app.readers.ask(move |reader| Ok((reader.runs(id)?, reader.notes(NoteSubject::Job(id), NOTES)?)));
    let (runs, notes) = asked.await?;
    Ok((runs, json!(notes)))
}

pub(crate) fn run_json(run: &RunRow) -> Value {
    json!({
        "number": run.run.number,
        "phase": run.phase,
        "nodes": run.shares.iter().map(share_json).collect::<Vec<Value>>(),
        "gpus": run.gpus(),
        "started_ms": run.started.0,
        "running_ms": run.running.map(|time| time.0),
        "ends_ms": (run.phase != RunPhase::Ended).then_some(run.ends.0),
        "ended_ms": run.ended.map(|time| time.0),
        "reason": run.reason,
        "cpu_ms": run.cpu_ms,
        "energy_joules": run.energy_joules,
        "steps": run.steps,
    })
}

fn share_json(share: &HeldShare) -> Value {
    let devices: Vec<u32> = (0..64).filter(|device| share.devices >> device & 1 == 1).collect();
    json!({ "node": share.node, "role": share.role, "devices": devices })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Prune {
    /// Jobs that ended longer ago than this go.
    older_than_s: Option<u64>,
    /// Only so many of the newest stay.
    keep: Option<u64>,
    #[serde(default)]
    dry_run: bool,
}

/// `POST /v1/history/prune`
pub(crate) async fn prune(mut call: ApiCall) -> Result<Answer, ApiError> {
    let Prune { older_than_s, keep, dry_run } = call.take_json().await?;
    let retention = match (older_than_s, keep) {
        (None, None) => call.app.options.retention,
        (age, jobs) => Retention { age: age.map(|seconds| Span(seconds.saturating_mul(1000))), jobs },
    };
    let PruneOutcome { pruned, before } = retention::prune(&call.app, retention, dry_run).await?;
    Ok(answer::ok(&json!({
        "jobs": pruned.jobs,
        "runs": pruned.runs,
        "notes": pruned.notes,
        "before_ms": before.0,
        "dry_run": dry_run,
    })))
}
