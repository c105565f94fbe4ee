//! The ranks of a model that is cut over several: this process may be one of them, and may have to start the others.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bedplate_comm::{LocalRendezvous, Rendezvous, World, WorldOptions};
use bedplate_serve::WorkerGroup;
use bedplate_terminal::{CliError, ProgramError};

use crate::commands::train::launch::RanksError;
use crate::commands::train::ranks::{variables, without_batch_script};

/// What this process is.
pub(super) enum Part {
    Alone,
    /// It answers, together with others that may be its own processes.
    First(Box<WorkerGroup>, Others),
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
            count if count == ranks => (World::join(&named, &options)?, Others(Vec::new())),
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
fn start(ranks: u32, options: &WorldOptions) -> Result<(World, Others), CliError> {
    let failed = |source| RanksError::Start { source };
    let meeting = LocalRendezvous::here().map_err(failed)?;
    let program = std::env::current_exe().map_err(failed)?;
    let mut others = Others(Vec::new());
    for rank in 1..ranks {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).stdin(Stdio::null()).stdout(Stdio::null());
        // A Ctrl-C is for the first rank, which lets running requests finish.
        command.process_group(0);
        meeting.tell(&mut command, rank, ranks);
        others.0.push(command.spawn().map_err(failed)?);
    }
    Ok((World::join(&meeting.rendezvous(0, ranks), options)?, others))
}

/// Processes that are ranks. They end when the first one does, or are ended.
pub(super) struct Others(Vec<Child>);

impl Drop for Others {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(10);
        for other in &mut self.0 {
            while matches!(other.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = other.kill();
            let _ = other.wait();
        }
    }
}
