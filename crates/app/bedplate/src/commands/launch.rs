//! `bedplate launch`: a gang inside an allocation of Slurm, which heals without going back to the queue.

use std::path::PathBuf;
use std::time::Duration;

use bedplate_launch::{Allocation, HelperOptions, LaunchOptions};
use bedplate_terminal::CliError;
use bedplate_units::Seconds;

/// No wait on the command line is longer.
const LONGEST_SECONDS: f64 = 30.0 * 86_400.0;

#[derive(clap::Args)]
#[command(after_help = "\
Examples, in a batch script:
  bedplate launch -- python train.py
  bedplate launch --spares 1 --retries 3 --check 'nvidia-smi -L' -- python train.py
  bedplate launch --ranks-per-node 1 --spares 2 -- torchrun --nproc-per-node 8 train.py

On this machine, to try it:
  bedplate launch --here 3 --spares 1 --ranks-per-node 1 -- sh -c 'echo $RANK; sleep 5'

Ask Slurm for the spare nodes too, and for --no-kill, or it ends the job when a
node is lost: #SBATCH --nodes=5 --no-kill --requeue for a gang of 4 and a spare.
Ranks find RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, and after a
failure BEDPLATE_RESTARTS and the newest checkpoint that they announced. The exit
code is that of the rank that failed first.")]
pub(crate) struct Arguments {
    /// Nodes of the job that wait until another node is lost
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    spares: usize,
    /// Ranks on each node [default: one for each GPU]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks_per_node: Option<u32>,
    /// A shell command that fails on an unhealthy node; run before the start and after each failure
    #[arg(long, value_name = "COMMAND")]
    check: Option<String>,
    /// How long the check may take
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    check_timeout: Duration,
    /// How often the job starts again after a failure that is not a node's fault
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    retries: u32,
    /// A run that reports no further step for this long is stuck and starts again
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    stuck_after: Option<Duration>,
    /// A node that does not answer for this long is lost
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    silent_after: Duration,
    /// Time between the request to end and the kill
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    grace: Duration,
    /// End when too few nodes are left, and do not go back to the queue
    #[arg(long)]
    no_requeue: bool,
    /// Where the newest checkpoint is recorded for a job that goes back to the queue; shared by all nodes
    #[arg(long, value_name = "FOLDER", default_value = ".bedplate")]
    state: PathBuf,
    /// Where ranks write; a pattern such as logs/%j.%t.out
    #[arg(long, value_name = "PATTERN")]
    output: Option<String>,
    /// Where ranks write errors [default: with the output]
    #[arg(long, value_name = "PATTERN")]
    error: Option<String>,
    /// What ranks read
    #[arg(long, value_name = "PATTERN")]
    input: Option<String>,
    /// Launch on this machine, with processes in place of this many nodes
    #[arg(long, value_name = "NODES", value_parser = clap::value_parser!(u32).range(1..=256))]
    here: Option<u32>,
    /// The command, started once for each rank
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn duration(text: &str) -> Result<Duration, String> {
    let seconds: Seconds = text.parse().map_err(|error: bedplate_units::UnitError| error.to_string())?;
    match seconds.get() {
        seconds if (0.0..=LONGEST_SECONDS).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("it must be a time of at most 30 days".into()),
    }
}

pub(crate) fn run(arguments: Arguments) -> Result<(), CliError> {
    let allocation = match arguments.here {
        Some(nodes) => Allocation::here(nodes),
        None => Allocation::from_slurm(&std::env::vars().collect())?,
    };
    let program = std::env::current_exe().map_or("bedplate".into(), |path| path.display().to_string());
    let options = LaunchOptions {
        allocation,
        spares: arguments.spares,
        ranks_per_node: arguments.ranks_per_node,
        command: arguments.command,
        check: arguments.check,
        check_timeout: arguments.check_timeout,
        retries: arguments.retries,
        stuck_after: arguments.stuck_after,
        silent_after: arguments.silent_after.max(Duration::from_secs(1)),
        grace: arguments.grace,
        requeue: !arguments.no_requeue,
        state: arguments.state,
        output: arguments.output,
        error: arguments.error,
        input: arguments.input,
        helper: vec![program, "launch-helper".into()],
    };
    match bedplate_launch::launch(options)? {
        0 => Ok(()),
        code => Err(CliError::Job(code)),
    }
}

/// What the launcher starts on each node.
#[derive(clap::Args)]
pub(crate) struct HelperArguments {
    #[arg(long)]
    server: String,
    #[arg(long)]
    node: String,
    #[arg(long)]
    job: u64,
    #[arg(long)]
    check: Option<String>,
    #[arg(long)]
    check_timeout_ms: u64,
    #[arg(long)]
    grace_ms: u64,
    #[arg(long)]
    silent_after_ms: u64,
}

pub(crate) fn help(arguments: HelperArguments) -> Result<(), CliError> {
    let options = HelperOptions {
        server: arguments.server,
        node: arguments.node,
        job: arguments.job,
        check: arguments.check,
        check_timeout: Duration::from_millis(arguments.check_timeout_ms),
        grace: Duration::from_millis(arguments.grace_ms),
        silent_after: Duration::from_millis(arguments.silent_after_ms),
    };
    Ok(bedplate_launch::help(&options)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_and_an_end() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert!(duration("5").is_err() && duration("1000d").is_err() && duration("-1s").is_err());
    }
}
