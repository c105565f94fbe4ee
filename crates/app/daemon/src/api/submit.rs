//! `POST /v1/jobs`

use std::time::Duration;

use bedplate_control::{Accepted, Control, JobName, Past, Submission};
use bedplate_gangs::JobId;
use bedplate_job::{Array, Job};
use hyper::StatusCode;
use serde::Serialize;
use serde_json::json;

use super::answer::{self, Answer};
use super::call::ApiCall;
use super::dispatch::App;
use super::error::ApiError;
use super::history;
use crate::intake::{self, JobFormat};
use crate::tokens::AccessRole;

/// Job files up to this size are read where they arrive; larger ones elsewhere, so that nobody waits for them, and they cost their user …
const READ_AT_ONCE: usize = 16 << 10;
/// … as much as a job for each of so many bytes beyond.
const BYTES_PER_JOB: usize = 256;

/// No key of a submission is longer.
const LONGEST_KEY: usize = 128;

/// Takes a job in. The answer comes once it is on disk.
pub(crate) async fn submit(mut call: ApiCall) -> Result<Answer, ApiError> {
    let metrics = call.app.metrics.clone();
    let submitted = submit_body(&mut call).await;
    match &submitted {
        Ok(_) => metrics.submissions.add(1),
        Err(_) => metrics.submissions_refused.add(1),
    }
    submitted
}

async fn submit_body(call: &mut ApiCall) -> Result<Answer, ApiError> {
    let Some(format) = JobFormat::of(call.content_type()) else {
        let found: String = call.content_type().chars().take(80).collect();
        let allowed = "application/toml, application/json or text/x-shellscript";
        return Err(ApiError::WrongType { found, allowed });
    };
    let key = key(call)?;
    let body = call.take_body().await?;
    let most_tasks = call.app.options.limits.array_tasks;
    let read = if body.len() <= READ_AT_ONCE {
        intake::read(format, &body, most_tasks)
    } else {
        call.pay((body.len() - READ_AT_ONCE) / BYTES_PER_JOB).await;
        let read = call.app.background.work(move || intake::read(format, &body, most_tasks));
        read.await.map_err(|_| ApiError::Panicked)?
    };
    let intake::Read { job, remarks } = read?;
    let raises = job.policy.priority > 0 || job.policy.nice < 0;
    if raises && call.identity().role < AccessRole::Operator {
        return Err(ApiError::RaisesPriority);
    }
    let tasks = job.policy.array.as_ref().map_or(1, Array::count);
    let awaited = job.policy.dependencies.iter().map(|dependency| dependency.jobs.len()).sum::<usize>();
    call.pay(tasks as usize + awaited).await;
    let user = call.identity().user.clone();
    if let Some(key) = &key
        && let Some(accepted) = submitted_before(&call.app, &user, key).await?
    {
        return Ok(accepted_json(accepted, &remarks));
    }
    let awaited = job.policy.dependencies.iter().flat_map(|dependency| &dependency.jobs);
    let awaited: Vec<JobId> = awaited.filter_map(|name| Some(JobName::read(name)?.id)).collect();
    if !awaited.is_empty() {
        have_arrived(&call.app, awaited).await?;
        call.pay(count_awaited(&call.app, &job).await?).await;
    }
    let past = past_of(&call.app, &job).await?;
    let submission = Submission { user, job, key, past };
    let accepted = call.app.control.change(move |control, now| control.submit(submission, now)).await??;
    if accepted.count > 1 {
        have_arrived(&call.app, vec![accepted.first]).await?;
    }
    Ok(accepted_json(accepted, &remarks))
}

/// How many jobs those are that a job depends on: the name of an array stands for all of its tasks.
async fn count_awaited(app: &App, job: &Job) -> Result<usize, ApiError> {
    let names = job.policy.dependencies.iter().flat_map(|dependency| dependency.jobs.clone());
    let names: Vec<String> = names.collect();
    let count = move |control: &Control, _| names.iter().map(|name| control.find_jobs(name).len()).sum();
    Ok(app.control.ask(count).await?)
}

/// Returns once all tasks of large arrays are there, and on disk.
pub(crate) async fn have_arrived(app: &App, arrays: Vec<JobId>) -> Result<(), ApiError> {
    const LOOK_AGAIN: Duration = Duration::from_millis(10);
    loop {
        let arrays = arrays.clone();
        let is_any = move |control: &mut Control, _| arrays.iter().any(|array| control.is_arriving(*array));
        if !app.control.change(is_any).await? {
            return Ok(());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn accepted_json(accepted: Accepted, remarks: &[impl Serialize]) -> Answer {
    answer::json(
        StatusCode::CREATED,
        &json!({
            "id": accepted.first.0,
            "label": accepted.first.0.to_string(),
            "count": accepted.count,
            "is_old": accepted.is_old,
            "remarks": remarks,
        }),
    )
}

/// A job of this key in the history. One that is still in memory is found there when the job is submitted.
async fn submitted_before(app: &App, user: &str, key: &str) -> Result<Option<Accepted>, ApiError> {
    let key = Submission::recorded_key(user, key);
    if !app.keys.note(&key) {
        return Ok(None);
    }
    let found = app.readers.ask(move |reader| reader.job_of_key(&key)).await?;
    Ok(found.map(|(first, count)| Accepted { first, count, is_old: true }))
}

/// What the history says of the jobs that this one depends on.
async fn past_of(app: &App, job: &Job) -> Result<Past, ApiError> {
    let mut past = Past::new();
    for name in job.policy.dependencies.iter().flat_map(|dependency| &dependency.jobs) {
        let mut found = history::ended_jobs(app, name).await?;
        found.retain(|(_, state)| state.is_final());
        past.insert(name.clone(), found);
    }
    Ok(past)
}

fn key(call: &ApiCall) -> Result<Option<String>, ApiError> {
    let Some(value) = call.headers.get("idempotency-key") else {
        return Ok(None);
    };
    let key = value.to_str().ok().filter(|key| !key.is_empty() && key.len() <= LONGEST_KEY);
    let why = || format!("it has 1 to {LONGEST_KEY} visible characters");
    let malformed = || ApiError::Malformed { what: "the header Idempotency-Key", why: why() };
    key.map(|key| Some(key.to_owned())).ok_or_else(malformed)
}
