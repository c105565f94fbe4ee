//! Waiting for the end of jobs, and showing what they write until then.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use bedplate_control::JobView;
use bedplate_control::record::JobState;
use bedplate_drivers::{Driver, DriverError, JobDetail, Local, LogQuery, Seen, Submitted, Watched};
use serde_json::json;

use crate::console::Console;
use crate::stop::Stop;

/// Between looks at a job whose log has ended, until its end is known.
const PAUSE: Duration = Duration::from_millis(50);

/// Returns when all jobs of a submission have ended; its error is their exit code.
pub(crate) fn wait_for(driver: &Local, submitted: &Submitted, console: &mut Console) -> Result<(), Stop> {
    let ids = submitted.id..submitted.id + u64::from(submitted.count);
    let mut ends = BTreeMap::new();
    for id in ids {
        let detail = wait_for_one(driver, &id.to_string())?;
        ends.insert(id, detail.view);
    }
    let ends: Vec<JobView> = ends.into_values().collect();
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
        Some(code) => Err(Stop::Job(code)),
    }
}

/// Shows what rank 0 writes until the job has ended; its error is the job's exit code.
pub(crate) fn follow(driver: &Local, submitted: &Submitted, console: &mut Console) -> Result<(), Stop> {
    let label = submitted.id.to_string();
    let mut offset = 0;
    let mut run = 0;
    loop {
        let detail = driver.job(&label)?;
        let life = &detail.view.life;
        if life.runs != run {
            // A later run has a log of its own.
            (run, offset) = (life.runs, 0);
            if run > 1 {
                console
                    .say(&format!("run {run} begins: {}", life.reason.as_deref().unwrap_or("it came back")));
            }
        }
        if run > 0 {
            let query =
                LogQuery { run: Some(run), offset, follow: !life.state.is_final(), ..LogQuery::default() };
            offset = copy_log(driver, &label, &query, console)?;
        }
        if life.state.is_final() {
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
fn copy_log(driver: &Local, label: &str, query: &LogQuery, console: &Console) -> Result<u64, Stop> {
    let copied = match console.is_json() {
        true => driver.logs(label, query, &mut io::stderr().lock()),
        false => driver.logs(label, query, &mut io::stdout().lock()),
    };
    match copied {
        Ok(offset) => Ok(offset),
        Err(DriverError::Refused { .. } | DriverError::Unreachable { .. }) => Ok(query.offset),
        Err(error) => Err(error.into()),
    }
}

fn wait_for_one(driver: &Local, label: &str) -> Result<JobDetail, Stop> {
    loop {
        let detail = driver.job(label)?;
        if detail.view.life.state.is_final() {
            return Ok(detail);
        }
        wait_for_change(driver, &detail)?;
    }
}

/// Returns when the job's state is another than it was, or may be.
fn wait_for_change(driver: &Local, detail: &JobDetail) -> Result<(), Stop> {
    let known = detail.view.life.state;
    let id = detail.view.id;
    let watched = Watched { job: Some(id.to_string()), node: None };
    let outcome = driver.watch(&watched, &mut |seen| {
        match seen {
            // What changed before the stream was open is seen by looking once more.
            Seen::Beat if state_now(driver, id) != Some(known) => ControlFlow::Break(()),
            Seen::Job { job, state, .. } if job == id && state != known => ControlFlow::Break(()),
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

fn state_now(driver: &Local, id: u64) -> Option<JobState> {
    driver.job(&id.to_string()).ok().map(|detail| detail.view.life.state)
}

/// How a job ended, as a sentence.
pub(crate) fn ending(job: &JobView) -> String {
    let life = &job.life;
    let mut text = format!("job {}: {}", job.label, life.state.name().replace('_', " "));
    if let Some(status) = life.exit_status.filter(|status| *status != 0) {
        text += &format!(" with exit code {status}");
    }
    if let Some(reason) = &life.reason {
        text += &format!(": {reason}");
    }
    text
}

/// The exit code that stands for a job's end: its own, and 1 where it has none.
fn exit_code(job: &JobView) -> u8 {
    match (job.life.state, job.life.exit_status) {
        (JobState::Succeeded, _) => 0,
        (_, Some(status)) if status != 0 => u8::try_from(status).unwrap_or(1),
        _ => 1,
    }
}
