//! `bedplate job …`: one job, or several, by their numbers.

mod attach;
mod explain;
mod logs;
mod orders;
mod render;
mod show;
mod steps;

use bedplate_terminal::{CliError, Console};

pub(crate) use attach::PAGES as ATTACH_PAGES;
pub(crate) use logs::PAGES as LOGS_PAGES;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate job show 12
  bedplate job logs 12 -f
  bedplate job explain 12
  bedplate job cancel 12 13 14_3
  bedplate job render --for slurm job.toml > job.sbatch")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// What it asked for, where it runs, what happened to it
    Show(show::Arguments),
    /// What its ranks write
    Logs(logs::Arguments),
    /// Why it waits, and what would make it start earlier
    Explain(explain::Arguments),
    /// End it
    Cancel(orders::Arguments),
    /// Keep it from starting
    Hold(orders::Arguments),
    /// Let a held one start
    Release(orders::Arguments),
    /// Stop it and let it wait again; it goes on from its newest checkpoint
    Requeue(orders::Arguments),
    /// Open a shell beside one of its ranks
    Attach(attach::Arguments),
    /// Write a job file as a batch script of Slurm or as manifests of Kubernetes
    Render(render::Arguments),
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    use bedplate_drivers::JobOrder;
    match &arguments.command {
        Command::Show(arguments) => show::run(arguments, console),
        Command::Logs(arguments) => logs::run(arguments, console),
        Command::Explain(arguments) => explain::run(arguments, console),
        Command::Cancel(arguments) => orders::run(arguments, JobOrder::Cancel, console),
        Command::Hold(arguments) => orders::run(arguments, JobOrder::Hold, console),
        Command::Release(arguments) => orders::run(arguments, JobOrder::Release, console),
        Command::Requeue(arguments) => orders::run(arguments, JobOrder::Requeue, console),
        Command::Attach(arguments) => attach::run(arguments, console),
        Command::Render(arguments) => render::run(arguments, console),
    }
}
