//! `bedplate job show JOB…`

use std::collections::BTreeMap;

use bedplate_drivers::{JobDetail, JobId, JobState, Note, RunView};
use bedplate_terminal::present::{Facts, clock, moment, now_ms, printable_line};
use bedplate_terminal::{CliError, Console};
use serde_json::json;

use super::steps;
use crate::connection::Connection;
use crate::job_text::{state_text, where_or_why};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Numbers of jobs; `12_3` is a member of an array
    #[arg(required = true, value_name = "JOB")]
    jobs: Vec<JobId>,
    /// The job file too
    #[arg(long)]
    text: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let driver = arguments.connection.driver()?;
    let details = arguments.jobs.iter().map(|label| driver.job(label)).collect::<Result<Vec<_>, _>>()?;
    console.say_notes(driver.remarks());
    if console.is_json() {
        return match details.as_slice() {
            [only] => console.json(&json!(only)),
            all => console.json(&json!(all)),
        };
    }
    for (index, detail) in details.iter().enumerate() {
        if index > 0 {
            console.line("")?;
        }
        let page = if detail.tasks.is_empty() { page } else { array_page };
        console.text(&page(detail, console.width(), now_ms()))?;
        if let Some(text) = detail.text.as_ref().filter(|_| arguments.text) {
            console.text(&format!("\n{text}"))?;
        }
    }
    Ok(())
}

fn page(detail: &JobDetail, width: Option<usize>, now_ms: u64) -> String {
    let job = &detail.summary;
    let mut facts = Facts::default();
    facts
        .add("state", state_text(job))
        .add_known("why", job.life.reason.as_ref())
        .add("user", format!("{}, account {}", job.user, job.account))
        .add("queue", format!("partition {}, QOS {}", job.partition, job.qos))
        .add("asked for", format!("{} nodes, {} GPUs", job.nodes_asked, job.gpus_asked));
    match job.nodes.is_empty() {
        false => facts.add("runs on", where_or_why(job, now_ms)),
        true => facts
            .add_known("should start", job.expected_start_ms.map(|start| format!("{} UTC", moment(start)))),
    };
    facts.add("submitted", format!("{} UTC", moment(job.submitted_ms)));
    if let Some(started) = job.life.started_ms {
        let ran = clock(job.life.ended_ms.unwrap_or(now_ms).saturating_sub(started));
        facts.add("started", format!("{} UTC; has run {ran}", moment(started)));
    }
    if let Some(ended) = job.life.ended_ms {
        facts.add("ended", format!("{} UTC", moment(ended)));
    }
    facts.add_known("exit code", job.life.exit_status);
    if job.life.runs > 1 || job.life.restarts > 0 {
        let retries = if job.life.restarts > 0 {
            format!(", {} after failures", job.life.restarts)
        } else {
            String::new()
        };
        facts.add("runs", format!("{}{retries}", job.life.runs));
    }
    if let Some(checkpoint) = &job.life.checkpoint {
        let path = checkpoint.path.as_ref().map(|path| format!(" in {path}")).unwrap_or_default();
        facts.add("checkpoint", format!("step {}{path}", checkpoint.step));
    }
    if !job.life.state.is_final() {
        facts.add_known(
            "phase",
            detail.steps.as_ref().and_then(|steps| steps.phase).map(|phase| phase.name()),
        );
    }
    let mut text = format!("job {} ({})\n{}", job.label, printable_line(&job.name), facts.render(width));
    if !detail.diagnosis.is_empty() {
        text += "\nwhat is wrong\n";
        for verdict in &detail.diagnosis {
            text += &format!("  {}\n", printable_line(&verdict.to_string()));
            text += &verdict
                .next
                .first()
                .map(|next| format!("    {}\n", printable_line(next)))
                .unwrap_or_default();
        }
    }
    if !detail.notes.is_empty() {
        text += "\nwhat happened\n";
        for note in without_repetition(&detail.notes) {
            let place = note.node.as_ref().map(|node| format!("{node}: ")).unwrap_or_default();
            text += &format!("  {}  {place}{}\n", moment(note.at_ms), printable_line(&note.text));
        }
    }
    text + &steps::text(detail, width) + &runs_text(&detail.runs)
}

/// An array: what its tasks have in common, and how they stand.
fn array_page(detail: &JobDetail, width: Option<usize>, _now_ms: u64) -> String {
    let job = &detail.summary;
    let array = job.label.split_once('_').map_or(&*job.label, |(array, _)| array);
    let mut facts = Facts::default();
    facts
        .add("tasks", detail.tasks.len().to_string())
        .add("user", format!("{}, account {}", job.user, job.account))
        .add("queue", format!("partition {}, QOS {}", job.partition, job.qos))
        .add("each asks for", format!("{} nodes, {} GPUs", job.nodes_asked, job.gpus_asked))
        .add("submitted", format!("{} UTC", moment(job.submitted_ms)));
    let text = format!("array {array} ({})\n{}\n", printable_line(&job.name), facts.render(width));
    let mut by_state: BTreeMap<JobState, Vec<&str>> = BTreeMap::new();
    for task in &detail.tasks {
        by_state.entry(task.state).or_default().push(task.label.as_str());
    }
    let mut states = Facts::default();
    for (state, labels) in by_state {
        states.add(state.name(), format!("{}: {}", labels.len(), some_of(&labels)));
    }
    text + &states.render(width) + &format!("\none of them: bedplate job show {}\n", job.label)
}

/// The first few, and how many more.
fn some_of(labels: &[&str]) -> String {
    const SHOWN: usize = 8;
    let shown = labels[..labels.len().min(SHOWN)].join(", ");
    match labels.len().checked_sub(SHOWN) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

/// Of checkpoints that follow each other only the newest is news.
fn without_repetition(notes: &[Note]) -> Vec<&Note> {
    let is_checkpoint = |note: &Note| note.text.starts_with("checkpoint ");
    let is_followed = |at: usize| notes.get(at + 1).is_some_and(is_checkpoint);
    let kept = notes.iter().enumerate().filter(|(at, note)| !(is_checkpoint(note) && is_followed(*at)));
    kept.map(|(_, note)| note).collect()
}

/// One line for each run, where there were several.
fn runs_text(runs: &[RunView]) -> String {
    if runs.len() < 2 {
        return String::new();
    }
    let mut text = "\nruns\n".to_owned();
    for run in runs {
        let started = run.started_ms.map(moment).unwrap_or_default();
        let reason = run.reason.as_ref().map_or("", |reason| &reason.text);
        text += format!("  {}  {started}  {reason}", run.number).trim_end();
        text += "\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_checkpoints_the_newest_is_told() {
        let texts =
            ["starts", "checkpoint at step 1", "checkpoint at step 2", "lost n1", "checkpoint at step 3"];
        let note = |text: &str| Note { at_ms: 0, job: None, node: None, text: text.to_owned() };
        let notes = texts.map(note);
        let told: Vec<&str> = without_repetition(&notes).into_iter().map(|note| note.text.as_str()).collect();
        assert_eq!(told, ["starts", "checkpoint at step 2", "lost n1", "checkpoint at step 3"]);
    }
}
