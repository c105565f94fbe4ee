//! The other ranks of a model that is served by several processes of this machine.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use bedplate_comm::{LocalRendezvous, Rendezvous};
use bedplate_supervise::{ChildProcess, end_all};

use super::{RanksError, cannot_start};

/// They end when the first one does.
const GRACE: Duration = Duration::from_secs(10);

/// Processes that are ranks. Those that have not ended by themselves a while after this is dropped are killed.
#[derive(Debug, Default)]
pub struct OtherRanks(Vec<ChildProcess>);

/// Starts all ranks but the first, each by `command`, and returns where the first one meets them.
pub fn start_others(
    ranks: u32,
    command: impl Fn() -> Command,
) -> Result<(Rendezvous, OtherRanks), RanksError> {
    let meeting = LocalRendezvous::here().map_err(cannot_start)?;
    let mut others = OtherRanks::default();
    for rank in 1..ranks {
        let mut command = command();
        // A Ctrl-C is for the first rank, which lets running requests finish.
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        meeting.tell(&mut command, rank, ranks);
        others.0.push(ChildProcess::start(&mut command).map_err(cannot_start)?);
    }
    Ok((meeting.rendezvous(0, ranks), others))
}

impl Drop for OtherRanks {
    fn drop(&mut self) {
        end_all(&mut self.0, GRACE);
    }
}
