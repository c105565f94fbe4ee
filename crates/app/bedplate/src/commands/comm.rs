//! `bedplate comm …`: what ranks did together.

mod flight;

use bedplate_diag::Page;
use bedplate_terminal::{CliError, Console};

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  bedplate comm flight /tmp/flight
  bedplate comm flight /tmp/flight --json

Ranks write their flight records into the folder BEDPLATE_FLIGHT. See docs/comm.md.")]
pub(crate) enum Arguments {
    /// Compare the flight records of all ranks: which rank has not entered which collective
    Flight(flight::Arguments),
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    match arguments {
        Arguments::Flight(arguments) => flight::run(arguments, console),
    }
}

pub(crate) const PAGES: &[&Page] = flight::PAGES;
