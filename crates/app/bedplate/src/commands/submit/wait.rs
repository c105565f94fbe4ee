//! Waiting for the end of jobs, and showing what they write until then.

use std::io;
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use bedplate_drivers::{
    Capability, ClusterEvent, Driver, DriverError, JobDetail, JobId, JobState, JobSummary, LogQuery,
    Submitted, Watched,
};
use bedplate_terminal::{CliError, Console};
use serde_json::json;

/// Between looks at a job whose log has ended, until its end is known.
const PAUSE: Duration = Duration::from_millis(50);
/// Between questions to a cluster that does not tell of changes by itself.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Returns when all jobs of a submission have ended; its error is their exit code.
pub(crate) fn wait_for(
    driver: &dyn Driver,
    submitted: &Submitted,
    console: &mut Console,
) -> Result<(), CliError> {
    let end = |id| Ok(wait_for_one(driver, id)?.summary);
    let ends: Vec<JobSummary> = submitted.jobs.iter().map(end).collect::<Result<_, CliError>>()?;
    if console.is_json() {
        match ends.as_slice() {
            [only] => console.json(&json!(only))?,
            all => console.json(&json!(all))?,
        }
    }
    for end in ends.iter().filter(|end| !console.is_json() && end.life.state != JobState::Succeeded) {
        console.say(&ending(end));
    }
    match ends.iter().map(exit_code).max() {
        None | Some(0) => Ok(()),
        Some(code) => Err(CliError::Job(code)),
    }
}

/// Shows what rank 0 writes until the job has ended; its error is the job's exit code.
pub(crate) fn follow(
    driver: &dyn Driver,
    submitted: &Submitted,
    console: &mut Console,
) -> Result<(), CliError> {
    let id = &submitted.id;
    let mut offset = 0;
    let mut run = 0;
    loop {
        let detail = driver.job(id)?;
        let job = &detail.summary;
        if job.life.runs != run {
            // A later run has a log of its own.
            (run, offset) = (job.life.runs, 0);
            if run > 1 {
                console.say(&format!(
                    "run {run} begins: {}",
                    job.life.reason.as_ref().map_or("it came back", |reason| &reason.text)
                ));
            }
        }
        if run > 0 {
            let query = LogQuery {
                run: Some(run),
                offset,
                follow: !job.life.state.is_final(),
                ..LogQuery::default()
            };
            offset = copy_log(driver, id, &query, console)?;
        }
        if job.life.state.is_final() {
            return wait_for(driver, submitted, console);
        }
        if run == 0 {
            wait_for_change(driver, &detail)?;
        } else {
            thread::sleep(PAUSE);
        }
    }
}

/// Copies what there is. A log that is not there yet has nothing.
fn copy_log(driver: &dyn Driver, id: &JobId, query: &LogQuery, console: &Console) -> Result<u64, CliError> {
    let copied = match console.is_json() {
        true => driver.logs(id, query, &mut io::stderr().lock()),
        false => driver.logs(id, query, &mut io::stdout().lock()),
    };
    match copied {
        Ok(offset) => Ok(offset),
        Err(DriverError::Refused { .. } | DriverError::Unreachable { .. }) => Ok(query.offset),
        Err(error) => Err(error.into()),
    }
}

fn wait_for_one(driver: &dyn Driver, id: &JobId) -> Result<JobDetail, CliError> {
    loop {
        let detail = driver.job(id)?;
        if detail.summary.life.state.is_final() {
            return Ok(detail);
        }
        wait_for_change(driver, &detail)?;
    }
}

/// Returns when the job's state is another than it was, or may be.
fn wait_for_change(driver: &dyn Driver, detail: &JobDetail) -> Result<(), CliError> {
    let known = detail.summary.life.state;
    let id = &detail.summary.id;
    if !driver.can(Capability::Watch) {
        thread::sleep(ASK_AGAIN);
        return Ok(());
    }
    let watched = Watched { job: Some(id.clone()), node: None };
    let outcome = driver.watch(&watched, &mut |seen| {
        match seen {
            // What changed before the stream was open is seen by looking once more.
            ClusterEvent::Beat if state_now(driver, id) != Some(known) => ControlFlow::Break(()),
            ClusterEvent::Job { job, state, .. } if job == *id && state != known => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    });
    match outcome {
        // The daemon may be starting again; asking for the job finds out.
        Err(DriverError::Unreachable { .. }) => thread::sleep(PAUSE),
        other => other?,
    }
    Ok(())
}

fn state_now(driver: &dyn Driver, id: &JobId) -> Option<JobState> {
    driver.job(id).ok().map(|detail| detail.summary.life.state)
}

/// How a job ended, as a sentence.
pub(crate) fn ending(job: &JobSummary) -> String {
    let mut text = format!("job {}: {}", job.label, job.life.state.name().replace('_', " "));
    if let Some(status) = job.life.exit_status.filter(|status| *status != 0) {
        text += &format!(" with exit code {status}");
    }
    if let Some(reason) = &job.life.reason {
        text += &format!(": {reason}");
    }
    text
}

/// The exit code that stands for a job's end: its own, and 1 where it has none.
fn exit_code(job: &JobSummary) -> u8 {
    match (job.life.state, job.life.exit_status) {
        (JobState::Succeeded, _) => 0,
        (_, Some(status)) if status != 0 => u8::try_from(status).unwrap_or(1),
        _ => 1,
    }
}
