//! The ranks of a model that is cut over several: this process may be one of them, and may have to start the others.

use std::process::Command;

use bedplate_comm::{Rendezvous, World, WorldOptions};
use bedplate_launch::local::{OtherRanks, RanksError, start_others, variables, without_batch_script};
use bedplate_serve::WorkerGroup;
use bedplate_terminal::{CliError, ProgramError};

/// What this process is.
pub(super) enum Part {
    Alone,
    /// It answers, together with others that may be its own processes.
    First(Box<WorkerGroup>, OtherRanks),
    Other(Box<WorkerGroup>),
}

impl Part {
    /// One of the ranks that the environment names, or else the first of those that are started here.
    pub(super) fn of(ranks: u32) -> Result<Self, CliError> {
        if ranks == 1 {
            return Ok(Part::Alone);
        }
        let variables = without_batch_script(&variables());
        let options = WorldOptions::from_environment(&variables)?;
        let named = Rendezvous::from_environment(&variables)?;
        let (world, others) = match named.world {
            1 => start(ranks, &options)?,
            count if count == ranks => (World::join(&named, &options)?, OtherRanks::default()),
            count => {
                let message =
                    format!("--ranks {ranks}, but the environment says that there are {count} ranks");
                return Err(ProgramError::Usage { message }.into());
            }
        };
        let group = Box::new(WorkerGroup::new(world)?);
        Ok(if group.rank() == 0 { Part::First(group, others) } else { Part::Other(group) })
    }
}

/// Starts the other ranks, which get the same arguments, and meets them.
fn start(ranks: u32, options: &WorldOptions) -> Result<(World, OtherRanks), CliError> {
    let program = std::env::current_exe().map_err(|source| RanksError::Start { source })?;
    let (meeting, others) = start_others(ranks, || {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1));
        command
    })?;
    Ok((World::join(&meeting, options)?, others))
}
