//! The `bedplate-bench` program: how fast the product is, next to named peers. `bedplate bench NAME` finds it.

mod abuse;
mod alert;
mod checkpoint;
mod cli;
mod comm;
mod cpu_clock;
mod deploy;
mod diagnose;
mod engine;
mod heal;
mod host_file;
mod kernels;
mod machine;
mod observe;
mod peer;
mod product;
mod schedule;
mod search;
mod serve;
mod submit;
mod survival;
mod training;

use std::process::ExitCode;

use bedplate_terminal::{CliError, Console, catching_bugs, report};
use clap::Parser;

use crate::cli::Cli;

fn main() -> ExitCode {
    // Checked before parsing, so that an invalid command line is reported as JSON too.
    let wants_json = std::env::args_os().any(|argument| argument == "--json");
    let mut console = Console::for_process(wants_json);
    let outcome = match Cli::try_parse() {
        Ok(cli) => catching_bugs(|| run(cli, &mut console)),
        Err(error) => Err(CliError::from_clap(error)),
    };
    report(outcome, &console)
}

fn run(cli: Cli, console: &mut Console) -> Result<(), CliError> {
    let context = cli.global.start()?;
    cli::run(cli.command, &context, console)
}
