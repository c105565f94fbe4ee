//! `bedplate replay …`: what-if in virtual time.

pub(crate) mod requests;

use crate::console::Console;
use crate::context::Context;
use crate::stop::Stop;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate replay requests trace.csv --replicas 4 --step-time step=8ms,token=25us,context=20ns
  bedplate replay requests --generate users=128 --replicas 2 --step-time step=8ms,token=25us,context=20ns")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Requests over serving replicas: latencies, throughput, goodput, dollars
    Requests(Box<requests::Arguments>),
}

pub(crate) fn run(arguments: Arguments, context: &Context, console: &mut Console) -> Result<(), Stop> {
    match arguments.command {
        Command::Requests(arguments) => requests::run(&arguments, &context.load_catalog()?, console),
    }
}

pub(crate) const PAGES: &[&bedplate_diag::Page] =
    &[&requests::IMPOSSIBLE_SETTINGS, &requests::modelled::REFUSED_REPLICA];
