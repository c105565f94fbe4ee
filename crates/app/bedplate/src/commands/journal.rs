//! `bedplate journal check|repair|backup`: whether the journal is what was written, and copies of it.

use std::path::PathBuf;

use bedplate_journal::{JournalCheck, age_of, back_up, backups, check, repair};
use bedplate_local::state_directory;
use bedplate_terminal::present::moment;
use bedplate_terminal::{CliError, Console};
use serde_json::json;

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  bedplate journal check
  bedplate journal repair                 after `bedplate down`
  bedplate journal backup /mnt/elsewhere/cluster-1
  bedplate up --from /mnt/elsewhere/cluster-1

The daemon makes a back-up a day by itself, in `backups` of the state directory,
and keeps seven. They do not survive the machine: copy them elsewhere.")]
pub(crate) enum Arguments {
    /// Read all of it and say what is damaged or missing
    Check(State),
    /// Go on from what is left, or from the newest back-up, and say what is lost
    Repair(State),
    /// Copy it, with what the control plane needs to go on elsewhere, into a new folder
    Backup {
        /// The folder, which is made
        folder: PathBuf,
        #[command(flatten)]
        state: State,
    },
}

#[derive(clap::Args)]
pub(crate) struct State {
    /// Where the cluster keeps its journal [default: ~/.local/state/bedplate]
    #[arg(long, visible_alias = "state", value_name = "DIR", env = "BEDPLATE_STATE", hide_env_values = true)]
    state_dir: Option<PathBuf>,
}

impl State {
    fn folder(&self) -> PathBuf {
        state_directory(self.state_dir.clone()).path().to_owned()
    }

    fn journal(&self) -> PathBuf {
        self.folder().join("journal.sqlite")
    }
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    match arguments {
        Arguments::Check(state) => {
            let found = check(&state.journal())?;
            if console.is_json() {
                console.json(&json!(found))?;
            } else {
                report(&found, console)?;
            }
            let damage = found.damage.first().map(ToString::to_string);
            let path = state.journal();
            damage.map_or(Ok(()), |damage| Err(bedplate_journal::JournalError::Hurt { path, damage }.into()))
        }
        Arguments::Repair(state) => {
            let repaired = repair(&state.journal(), &backups(&state.folder()))?;
            if console.is_json() {
                return console.json(&json!(repaired));
            }
            report(&repaired.before, console)?;
            let Some(kept) = &repaired.kept else { return Ok(()) };
            console.line(&format!("it goes on from {}", repaired.from.display()))?;
            for (table, was, is) in &repaired.lost {
                console.line(&format!("lost of {table}: {} of {was}", was - is))?;
            }
            console.line(&format!("the hurt files are in {}", kept.display()))
        }
        Arguments::Backup { folder, state } => {
            let made = back_up(&state.folder(), folder)?;
            if console.is_json() {
                return console.json(&json!(made));
            }
            report(&made, console)
        }
    }
}

fn report(found: &JournalCheck, console: &mut Console) -> Result<(), CliError> {
    for damage in &found.damage {
        console.line(&damage.to_string())?;
    }
    for remark in &found.remarks {
        console.say(remark);
    }
    if found.is_whole() {
        let (at, age) = (moment(found.at_ms), age_of(found));
        console.line(&format!(
            "whole: {} commits with {} records, the last at {at} UTC, {age:.1} s ago",
            found.commits, found.records
        ))?;
    }
    Ok(())
}
