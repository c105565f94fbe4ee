//! Looking at jobs: lists, one job, why it waits, where its ranks are.

use bedplate_control::record::JobState;
use bedplate_control::{JobFilter, JobView, NodeView};
use bedplate_diag::Reason;
use bedplate_gangs::{JobId, NodeHolder, NodeTally, Remedy, Time, WaitExplanation};
use bedplate_job::Job;
use bedplate_report::Expectation;
use bedplate_topology::NodeId;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::answer::{self, Answer};
use super::call::ApiCall;
use super::dispatch::App;
use super::error::ApiError;
use super::history::{self, Known, ended_view};
use super::query::malformed;
use crate::ranks;
use crate::work_queue::on_behalf_of;

const LONGEST_PAGE: usize = 1_000;
const USUAL_PAGE: usize = 100;
/// Jobs of a list that are looked at between others' requests, and how many such looks cost as much as a change.
const LOOKED_AT: usize = 1_024;
const LOOKS_PER_JOB: usize = 16;

/// `GET /v1/jobs`
pub(crate) async fn list(call: ApiCall) -> Result<Answer, ApiError> {
    let query = &call.query;
    let limit = query.value::<usize>("limit")?.unwrap_or(USUAL_PAGE).clamp(1, LONGEST_PAGE);
    let filter = JobFilter {
        user: query.text("user").map(str::to_owned),
        account: query.text("account").map(str::to_owned),
        name: query.text("name").map(str::to_owned),
        states: states(query.text("state"))?,
        after: query.value("after")?,
        limit: Some(limit),
    };
    let with_ended = query.flag("ended")?;
    let mut jobs = if with_ended { with_history(&call, filter).await? } else { live(&call, filter).await? };
    for job in jobs.iter_mut().filter(|job| !job.life.state.is_final()) {
        job.problem = call.app.diagnosing.in_short(job.id);
    }
    let next = if jobs.len() == limit { jobs.last().map(|job| job.id) } else { None };
    Ok(answer::ok(&json!({ "jobs": jobs, "next": next })))
}

fn states(text: Option<&str>) -> Result<Vec<JobState>, ApiError> {
    let Some(text) = text else {
        return Ok(Vec::new());
    };
    let state = |name: &str| {
        let known = JobState::ALL.map(|(known, _)| known);
        JobState::named(name).ok_or_else(|| malformed(format!("`state` may be {}", known.join(", "))))
    };
    text.split(',').map(state).collect()
}

/// A slice of the list at a time, until the page is full: a filter may admit few of very many.
async fn live(call: &ApiCall, mut filter: JobFilter) -> Result<Vec<JobView>, ApiError> {
    let limit = filter.limit.unwrap_or(USUAL_PAGE);
    let mut jobs = Vec::new();
    loop {
        let wanted = JobFilter { limit: Some(limit - jobs.len()), ..filter.clone() };
        let page = call.app.control.ask(move |control, _| control.page(&wanted, LOOKED_AT)).await?;
        jobs.extend(page.jobs);
        match page.goes_on_after {
            Some(after) if jobs.len() < limit => filter.after = Some(after),
            _ => return Ok(jobs),
        }
        call.pay(LOOKED_AT / LOOKS_PER_JOB).await;
    }
}

/// From the journal, the newest first; what lives is shown as it is now.
async fn with_history(call: &ApiCall, filter: JobFilter) -> Result<Vec<JobView>, ApiError> {
    let wanted = bedplate_journal::JobFilter {
        states: filter.states,
        user: filter.user,
        account: filter.account,
        name: filter.name,
        before: filter.after.map(JobId),
        limit: filter.limit.unwrap_or(USUAL_PAGE) as u32,
        ..bedplate_journal::JobFilter::default()
    };
    let settings = call.app.options.settings.clone();
    let asked = call.app.readers.ask(move |reader| {
        let rows = reader.jobs(&wanted)?;
        Ok(rows.into_iter().map(|row| ended_view(row, &settings)).collect::<Vec<JobView>>())
    });
    let mut views = asked.await?;
    let live: Vec<u64> =
        views.iter().filter(|view| !view.life.state.is_final()).map(|view| view.id).collect();
    let mut now = call
        .app
        .control
        .ask(move |control, _| {
            live.into_iter().filter_map(|id| control.job(JobId(id))).collect::<Vec<JobView>>()
        })
        .await?
        .into_iter()
        .peekable();
    for view in &mut views {
        if let Some(current) = now.next_if(|current| current.id == view.id) {
            *view = current;
        }
    }
    Ok(views)
}

/// `GET /v1/jobs/{label}`
pub(crate) async fn show(call: ApiCall) -> Result<Answer, ApiError> {
    let jobs = history::find_jobs(&call.app, &call.parameters[0]).await?;
    let Known { id, view, text } = history::known(&call.app, jobs[0]).await?;
    let (runs, notes) = history::past(&call.app, id).await?;
    let may_see = call.identity().owns(&view.user);
    let live_steps = call.app.control.ask(move |control, _| control.steps(id).cloned()).await?;
    let steps = live_steps.or_else(|| runs.iter().rev().find_map(|run| run.steps.as_deref().cloned()));
    let submitted = Job::from_toml(&text, "journal").ok().and_then(|job| job.expected);
    let expected = Expectation::of(submitted.as_ref(), steps.as_ref());
    let mut shown = json!(view);
    if let Some(problem) = call.app.diagnosing.in_short(id.0) {
        shown["problem"] = json!(problem);
    }
    shown["predicted"] = json!(expected.as_ref().and_then(|expected| expected.breakdown));
    shown["expected"] = json!(expected);
    shown["steps"] = json!(steps);
    shown["runs"] = json!(runs.iter().map(history::run_json).collect::<Vec<Value>>());
    shown["diagnosis"] = json!(call.app.diagnosing.of(id.0));
    shown["notes"] = notes;
    if may_see {
        shown["text"] = json!(text);
    }
    if jobs.len() > 1 {
        shown["tasks"] = json!(tasks(&call.app, id).await?);
    }
    Ok(answer::ok(&shown))
}

/// The tasks of an array from the journal, their states brought up to date where they live.
async fn tasks(app: &App, array: JobId) -> Result<Vec<Value>, ApiError> {
    const MOST_TASKS: usize = 1_000;
    let tasks = app.readers.ask(move |reader| reader.tasks(array, MOST_TASKS)).await?;
    let states = move |control: &bedplate_control::Control, _| {
        let task = |(index, id, state): (u32, JobId, JobState)| {
            let state = control.job_state(id).or(control.ended(id)).unwrap_or(state);
            json!({ "id": id.0, "label": format!("{}_{index}", array.0), "state": state })
        };
        tasks.into_iter().map(task).collect()
    };
    Ok(app.control.ask(states).await?)
}

/// `GET /v1/jobs/{label}/explain`
pub(crate) async fn explain(call: ApiCall) -> Result<Answer, ApiError> {
    let jobs = history::find_jobs(&call.app, &call.parameters[0]).await?;
    let (control, user, runtime) =
        (call.app.control.clone(), call.identity().user.clone(), Handle::current());
    // What is searched is a copy of the plan, so it is made when there is a turn for it.
    let search = move || -> Result<Option<Value>, ApiError> {
        let asked = control.ask(move |control, now| {
            let waits = |id: &JobId| control.job_state(*id) == Some(JobState::Waiting);
            Some((control.question(jobs.into_iter().find(waits)?)?, now))
        });
        let Some((question, now)) = runtime.block_on(on_behalf_of(&user, asked))? else { return Ok(None) };
        let explanation = question.answer(now);
        let mut json = explanation_json(&explanation, now);
        if let Some(tally) = explanation.nodes {
            let out: Vec<NodeId> = tally.out_of_service.iter().take(MOST_NAMED).copied().collect();
            let names = control.ask(move |control, now| {
                out.into_iter()
                    .map(|node| out_of_service(&control.node_view(node, now)))
                    .collect::<Vec<Value>>()
            });
            json["nodes"] = tally_json(&tally, runtime.block_on(on_behalf_of(&user, names))?);
        }
        Ok(Some(json))
    };
    let found = call.app.background.work(search).await.map_err(|_| ApiError::Panicked)??;
    Ok(answer::ok(&found.unwrap_or_else(|| json!({ "wait": null }))))
}

/// Nodes out of service and gangs on the others that an explanation names; all of them are counted.
const MOST_NAMED: usize = 8;

fn out_of_service(node: &NodeView) -> Value {
    json!({ "name": node.name, "state": node.state, "reason": node.reason })
}

fn tally_json(tally: &NodeTally, out: Vec<Value>) -> Value {
    let holder = |holder: &NodeHolder| json!({ "job": holder.job.0, "nodes": holder.nodes, "until_ms": holder.until.0 });
    json!({
        "all": tally.all,
        "left_out": tally.left_out,
        "left_out_by": tally.rules,
        "too_small": tally.too_small,
        "out_of_service": tally.out_of_service.len(),
        "out": out,
        "free": tally.free,
        "held": tally.held,
        "holders": tally.holders.iter().take(MOST_NAMED).map(holder).collect::<Vec<_>>(),
    })
}

fn explanation_json(explanation: &WaitExplanation, now: Time) -> Value {
    let mut priority = json!({ "total": explanation.priority.total() });
    for (name, points) in explanation.priority.terms() {
        priority[name.replace(' ', "_")] = json!(points);
    }
    json!({
        "wait": Reason::of(&explanation.wait),
        "priority": priority,
        "ahead": explanation.ahead,
        "expected_start_ms": explanation.expected_start.map(|time| time.0),
        "remedies": explanation.remedies.iter().map(|remedy| remedy_reason(remedy, now)).collect::<Vec<Reason>>(),
    })
}

/// The sentence of a remedy speaks of now, so it is made here and not where the remedy is.
fn remedy_reason(remedy: &Remedy, now: Time) -> Reason {
    let (change, start) = match remedy {
        Remedy::ShorterLimit { limit, start } => (format!("with a time limit of {limit}"), start),
        Remedy::FewerNodes { nodes: 1, start } => ("with one node".into(), start),
        Remedy::FewerNodes { nodes, start } => (format!("with {nodes} nodes"), start),
        Remedy::FurtherApart { level, start } => (format!("if its nodes need not share one {level}"), start),
        Remedy::NotExclusive { start } => ("if it need not have its nodes for itself".into(), start),
    };
    let text = match *start <= now {
        true => format!("{change} it would start now"),
        false => format!("{change} it would start in {}", start.since(now)),
    };
    Reason::with_text(remedy, text)
}

/// `GET /v1/jobs/{label}/ranks`
pub(crate) async fn rank_places(call: ApiCall) -> Result<Answer, ApiError> {
    let label = &call.parameters[0];
    let id = history::find_job(&call.app, label).await?;
    let known = history::known(&call.app, id).await?;
    if !call.identity().owns(&known.view.user) {
        return Err(ApiError::ForeignJob { label: label.clone(), owner: known.view.user });
    }
    let runs = call.app.readers.ask(move |reader| reader.runs(id)).await?;
    let job = Job::from_toml(&known.text, "journal")?;
    let mut places = runs.last().map_or(Vec::new(), |run| ranks::places(&job, run));
    let names: Vec<String> = places.iter().map(|place| place.node.clone()).collect();
    let addresses = call.app.control.ask(move |control, now| {
        let address = |name: String| Some((control.node_of(&name, now)?.address, name));
        let known = names.into_iter().filter_map(address).map(|(address, name)| (name, address));
        known.collect::<std::collections::BTreeMap<_, _>>()
    });
    let addresses = addresses.await?;
    for place in &mut places {
        place.address = addresses.get(&place.node).cloned().unwrap_or_default();
    }
    Ok(answer::ok(&places))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_the_nodes_is_told_in_numbers() {
        let holder = NodeHolder { job: JobId(7), nodes: 2, until: Time(9_000) };
        let tally = NodeTally { all: 4, held: 2, holders: vec![holder; 20], ..NodeTally::default() };
        let told = tally_json(&tally, Vec::new());
        assert_eq!(told["holders"].as_array().map(Vec::len), Some(MOST_NAMED));
        assert_eq!(told["holders"][0], json!({ "job": 7, "nodes": 2, "until_ms": 9_000 }));
        assert_eq!((&told["all"], &told["held"], &told["free"]), (&json!(4), &json!(2), &json!(0)));
    }
}
