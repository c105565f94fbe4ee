//! `bedplate supervise`: the process of a cluster that starts daemon and agents again when they die or stand still.

use std::path::PathBuf;
use std::time::Duration;

use bedplate_local::{Supervision, state_directory};
use bedplate_terminal::{CliError, Console, Context};

use crate::launcher::launcher;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The state directory of the cluster
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// What has said nothing for this many seconds is replaced
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    silence: u64,
    /// The longest wait before something that died again is started again
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    longest_delay: u64,
}

pub(crate) fn run(arguments: &Arguments, context: &Context, console: &Console) -> Result<(), CliError> {
    // It outlives the command that started it; failing means that it leads a session already.
    let _ = nix::unistd::setsid();
    bedplate_supervise::take_precedence();
    let patience = Supervision {
        silence: Duration::from_secs(arguments.silence),
        longest_delay: Duration::from_secs(arguments.longest_delay),
    };
    launcher(context, console)?.supervise(state_directory(arguments.state_dir.clone()), patience);
    Ok(())
}
