//! `bedplate replay …`: simulation in virtual time.

mod comparison;
mod gantt;
mod jobs;
mod jobs_page;
mod load;
pub(crate) mod requests;

use bedplate_terminal::{CliError, Console, Context};

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  bedplate replay jobs trace.jsonl --cluster cluster.toml
  bedplate replay jobs --generate llm --jobs 5000 --cluster p5.48xlarge:64 --report replay.html
  bedplate replay requests trace.csv --replicas 4 --step-time step=8ms,token=25us,context=20ns
  bedplate replay requests --generate users=128 --replicas 2 --step-time step=8ms,token=25us,context=20ns")]
pub(crate) enum Arguments {
    /// A trace of jobs, or a generated load, under several policies side by side
    Jobs(Box<jobs::Arguments>),
    /// Requests over serving replicas: latencies, throughput, goodput, dollars
    Requests(Box<requests::Arguments>),
}

pub(crate) fn run(arguments: Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let catalog = context.load_catalog()?;
    match arguments {
        Arguments::Jobs(arguments) => jobs::run(&arguments, &catalog, console),
        Arguments::Requests(arguments) => requests::run(&arguments, &catalog, console),
    }
}

pub(crate) const PAGES: &[&bedplate_diag::Page] = &[&requests::IMPOSSIBLE_SETTINGS];
