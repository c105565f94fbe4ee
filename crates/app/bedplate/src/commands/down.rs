//! `bedplate down`: ends a cluster of this machine, and makes sure that nothing of it is left.

use std::path::PathBuf;

use bedplate_drivers::{Driver, JobQuery, JobSummary, Local, StateDirectory};
use bedplate_local::{is_running, state_directory, take_down};
use bedplate_terminal::{CliError, Console};
use serde_json::json;

use crate::job_text::labels_of;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate down
  bedplate down --force

Running jobs are asked to end and get their grace. Waiting jobs stay in the journal:
the next `bedplate up` from the same state directory finds them.")]
pub(crate) struct Arguments {
    /// Kill everything at once, without grace
    #[arg(short, long)]
    force: bool,
    /// The state directory [default: ~/.local/state/bedplate]
    #[arg(long, visible_alias = "state", value_name = "DIR", env = "BEDPLATE_STATE", hide_env_values = true)]
    state_dir: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let state = state_directory(arguments.state_dir.clone());
    let unfinished = unfinished(&state);
    let ended = take_down(&state, arguments.force, &|remark| console.say(remark))?;
    if let Some(labels) = labels_of(&unfinished) {
        console.say(&format!(
            "the next `bedplate up` starts what had not ended: {labels}; `bedplate up --fresh` begins without it"
        ));
    }
    if console.is_json() { console.json(&json!({ "ended": ended })) } else { Ok(()) }
}

/// Jobs that wait or run now; none where the daemon does not answer.
fn unfinished(state: &StateDirectory) -> Vec<JobSummary> {
    let jobs = || {
        let is_up = is_running(state).ok()?;
        let driver = is_up.then(|| state.place().ok().map(Local::new)).flatten()?;
        driver.jobs(&JobQuery::default()).ok()
    };
    jobs().unwrap_or_default()
}
