//! `POST /v1/jobs`

use bedplate_control::Submission;
use hyper::StatusCode;
use serde_json::json;

use super::answer::{self, Answer};
use super::call::Call;
use super::error::ApiError;
use crate::intake::{self, JobFormat};
use crate::tokens::Role;

/// No key of a submission is longer.
const LONGEST_KEY: usize = 128;

/// Takes a job in. The answer comes once it is on disk.
pub(crate) async fn submit(mut call: Call) -> Result<Answer, ApiError> {
    let metrics = call.app.metrics.clone();
    let submitted = submit_body(&mut call).await;
    match &submitted {
        Ok(_) => metrics.submissions.add(1),
        Err(_) => metrics.submissions_refused.add(1),
    }
    submitted
}

async fn submit_body(call: &mut Call) -> Result<Answer, ApiError> {
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
    if raises && call.identity().role < Role::Operator {
        return Err(ApiError::RaisesPriority);
    }
    let submission = Submission { user: call.identity().user.clone(), job, key };
    let accepted = call.app.engine.change(move |control, now| control.submit(submission, now)).await??;
    Ok(answer::json(
        StatusCode::CREATED,
        &json!({
            "id": accepted.first.0,
            "label": accepted.first.0.to_string(),
            "count": accepted.count,
            "is_old": accepted.is_old,
            "remarks": remarks,
        }),
    ))
}

fn key(call: &Call) -> Result<Option<String>, ApiError> {
    let Some(value) = call.headers.get("idempotency-key") else {
        return Ok(None);
    };
    let key = value.to_str().ok().filter(|key| !key.is_empty() && key.len() <= LONGEST_KEY);
    let why = || format!("it has 1 to {LONGEST_KEY} visible characters");
    let malformed = || ApiError::Malformed { what: "the header Idempotency-Key", why: why() };
    key.map(|key| Some(key.to_owned())).ok_or_else(malformed)
}
