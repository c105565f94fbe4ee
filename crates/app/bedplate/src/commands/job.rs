//! `bedplate job …`: one job, or several, by their numbers.

mod attach;
mod explain;
mod logs;
mod orders;
mod render;
mod show;
mod steps;

use bedplate_drivers::JobId;
use bedplate_terminal::{CliError, Console};

use crate::connection::Connection;

pub(crate) use attach::PAGES as ATTACH_PAGES;
pub(crate) use logs::PAGES as LOGS_PAGES;

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  bedplate job show 12
  bedplate job logs 12 -f
  bedplate job explain 12
  bedplate job cancel 12 13 14_3
  bedplate job render --for slurm job.toml > job.sbatch")]
pub(crate) enum Arguments {
    /// What it asked for, where it runs, what happened to it
    Show(show::Arguments),
    /// What its ranks write
    Logs(logs::Arguments),
    /// Why it waits, and what would make it start earlier
    Explain(Jobs),
    /// End it
    Cancel(Jobs),
    /// Keep it from starting
    Hold(Jobs),
    /// Let a held one start
    Release(Jobs),
    /// Stop it and let it wait again; it goes on from its newest checkpoint
    Requeue(Jobs),
    /// Open a shell beside one of its ranks
    Attach(attach::Arguments),
    /// Write a job file as a batch script of Slurm or as manifests of Kubernetes
    Render(render::Arguments),
}

/// Jobs that get an answer or an order.
#[derive(clap::Args)]
pub(crate) struct Jobs {
    /// Numbers of jobs; `12_3` is a member of an array
    #[arg(required = true, value_name = "JOB")]
    jobs: Vec<JobId>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    use bedplate_drivers::JobOrder;
    match arguments {
        Arguments::Show(arguments) => show::run(arguments, console),
        Arguments::Logs(arguments) => logs::run(arguments, console),
        Arguments::Explain(arguments) => explain::run(arguments, console),
        Arguments::Cancel(arguments) => orders::run(arguments, JobOrder::Cancel, console),
        Arguments::Hold(arguments) => orders::run(arguments, JobOrder::Hold, console),
        Arguments::Release(arguments) => orders::run(arguments, JobOrder::Release, console),
        Arguments::Requeue(arguments) => orders::run(arguments, JobOrder::Requeue, console),
        Arguments::Attach(arguments) => attach::run(arguments, console),
        Arguments::Render(arguments) => render::run(arguments, console),
    }
}
