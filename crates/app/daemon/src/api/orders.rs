//! What people want done with jobs: cancel, hold, release, requeue.

use bedplate_control::{ClientOrder, Control, JobName, OrderRefusal};
use bedplate_gangs::JobId;
use serde_json::json;

use super::answer::{self, Answer};
use super::call::ApiCall;
use super::dispatch::App;
use super::error::ApiError;
use super::history;
use super::submit::have_arrived;
use crate::control_thread::SLICE;
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

/// Gives the order to every job that the label means, a slice at a time. It is refused only when all of them refuse.
async fn order(call: ApiCall, order: fn(JobId) -> ClientOrder) -> Result<Answer, ApiError> {
    let label = &call.parameters[0];
    let (name, asks) = (label.clone(), call.identity().clone());
    call.pay(1).await;
    if let Some(JobName { id, .. }) = JobName::read(label)
        && call.app.control.ask(move |control, _| control.is_arriving(id)).await?
    {
        have_arrived(&call.app, vec![id]).await?;
    }
    let begin = move |control: &mut Control, now| {
        let mut jobs = find_own(control, &name, &asks)?;
        let rest = jobs.split_off(jobs.len().min(SLICE));
        let answers = control.order_all(jobs.iter().copied().map(order), &asks.user, now);
        Ok::<_, ApiError>((jobs.into_iter().zip(answers).collect::<Vec<_>>(), rest))
    };
    let (mut answers, rest) = call.app.control.change(begin).await??;
    for slice in rest.chunks(SLICE) {
        call.pay(slice.len()).await;
        let (jobs, by) = (slice.to_vec(), call.identity().user.clone());
        let give = move |control: &mut Control, now| control.order_all(jobs.into_iter().map(order), &by, now);
        answers.extend(slice.iter().copied().zip(call.app.control.change(give).await?));
    }
    let done: Vec<u64> = answers.iter().filter(|(_, answer)| answer.is_ok()).map(|(job, _)| job.0).collect();
    match answers.into_iter().find_map(|(_, answer)| answer.err()) {
        _ if !done.is_empty() => Ok(answer::ok(&json!({ "jobs": done }))),
        Some(refusal) if !matches!(refusal, OrderRefusal::NoSuchJob { .. }) => Err(refusal.into()),
        _ => Err(not_live(&call.app, label).await?),
    }
}

/// The jobs that a label means, where who asks may give them orders. All tasks of an array have one owner.
fn find_own(control: &Control, label: &str, asks: &Identity) -> Result<Vec<JobId>, ApiError> {
    let jobs = control.find_jobs(label);
    match jobs.iter().find_map(|job| control.owner(*job)) {
        Some(owner) if !asks.owns(owner) => {
            Err(ApiError::ForeignJob { label: label.to_owned(), owner: owner.to_owned() })
        }
        _ => Ok(jobs),
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
