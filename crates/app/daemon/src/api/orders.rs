//! What people want done with jobs: cancel, hold, release, requeue.

use bedplate_control::{ClientOrder, Control, OrderRefusal};
use bedplate_gangs::{JobId, Time};
use serde_json::json;

use super::answer::{self, Answer};
use super::call::ApiCall;
use super::dispatch::App;
use super::error::ApiError;
use super::history;
use crate::tokens::Identity;

/// `DELETE /v1/jobs/{label}`
pub(crate) async fn cancel(call: ApiCall) -> Result<Answer, ApiError> {
    order(call, ClientOrder::Cancel).await
}

pub(crate) async fn hold(call: ApiCall) -> Result<Answer, ApiError> {
    order(call, ClientOrder::Hold).await
}

pub(crate) async fn release(call: ApiCall) -> Result<Answer, ApiError> {
    order(call, ClientOrder::Release).await
}

pub(crate) async fn requeue(call: ApiCall) -> Result<Answer, ApiError> {
    order(call, ClientOrder::Requeue).await
}

async fn order(call: ApiCall, order: fn(JobId) -> ClientOrder) -> Result<Answer, ApiError> {
    let identity = call.identity().clone();
    let label = call.parameters[0].clone();
    let asked = label.clone();
    let done = call
        .app
        .control
        .change(move |control, now| carry_out(control, &label, order, &identity, now))
        .await?;
    match done {
        Ok(done) => Ok(answer::ok(&json!({ "jobs": done }))),
        Err(ApiError::NotThere { .. }) => Err(not_live(&call.app, &asked).await?),
        Err(error) => Err(error),
    }
}

/// Why there is nothing to order: the jobs ended a while ago, or never were.
async fn not_live(app: &App, label: &str) -> Result<ApiError, ApiError> {
    let ended = history::ended_jobs(app, label).await?;
    Ok(match ended.first() {
        Some((job, state)) => OrderRefusal::HasEnded { job: *job, state: *state }.into(),
        None => ApiError::no_such_job(label),
    })
}

/// Gives the order to every job that the label means. It is refused only when all of them refuse.
fn carry_out(
    control: &mut Control,
    label: &str,
    order: fn(JobId) -> ClientOrder,
    identity: &Identity,
    now: Time,
) -> Result<Vec<u64>, ApiError> {
    let jobs = control.find_jobs(label);
    for job in &jobs {
        if let Some(owner) = control.owner(*job)
            && !identity.owns(owner)
        {
            return Err(ApiError::ForeignJob { label: label.to_owned(), owner: owner.to_owned() });
        }
    }
    let mut done = Vec::new();
    let mut refusal = None;
    let answers = control.order_all(jobs.iter().map(|job| order(*job)), &identity.user, now);
    for (job, answer) in jobs.iter().zip(answers) {
        match answer {
            Ok(()) => done.push(job.0),
            Err(why) => refusal = refusal.or(Some(why)),
        }
    }
    match refusal {
        Some(refusal) if done.is_empty() => Err(refusal.into()),
        None if done.is_empty() => Err(ApiError::no_such_job(label)),
        _ => Ok(done),
    }
}
