//! `POST /v1/jobs`

use bedplate_control::{Accepted, Past, Submission};
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
    let intake::Read { job, remarks } = intake::read(format, &body, call.app.options.limits.array_tasks)?;
    drop(body);
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
    let past = past_of(&call.app, &job).await?;
    let submission = Submission { user, job, key, past };
    let accepted = call.app.control.change(move |control, now| control.submit(submission, now)).await??;
    Ok(accepted_json(accepted, &remarks))
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
