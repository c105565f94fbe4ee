//! `bedplate node …`: the nodes of a cluster.

mod list;
mod orders;
mod show;
mod start;

use bedplate_terminal::{CliError, Console, Context};

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  bedplate node list
  bedplate node drain n3 --reason 'ECC errors'
  bedplate node resume n3
  bedplate node start n3        its agent again, after it died")]
pub(crate) enum Arguments {
    /// All nodes: state, devices, jobs
    List(list::Arguments),
    /// One node and what happened to it
    Show(show::Arguments),
    /// Give it no new work; what runs there ends by itself
    Drain(orders::DrainArguments),
    /// Let it work again
    Resume(orders::ResumeArguments),
    /// Start the agent of a node on this machine again
    Start(start::Arguments),
}

pub(crate) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    match arguments {
        Arguments::List(arguments) => list::run(arguments, console),
        Arguments::Show(arguments) => show::run(arguments, console),
        Arguments::Drain(arguments) => orders::drain(arguments, console),
        Arguments::Resume(arguments) => orders::resume(arguments, console),
        Arguments::Start(arguments) => start::run(arguments, context, console),
    }
}
