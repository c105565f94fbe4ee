//! The `bedplate` program: reads the command line, runs one command, reports the result.
//!
//! Everything that decides lives in the crates below; here are only arguments, files, tables and exit
//! codes. `commands/` mirrors the command line: `catalog compare` is in `commands/catalog/compare.rs`.

mod choice;
mod cli;
mod cli_error;
mod commands;
mod connection;
mod console;
mod context;
mod cpu_clock;
mod files;
mod host;
mod length;
mod machine;
mod meeting;
mod pages;
mod present;
mod report;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;
use crate::cli_error::CliError;
use crate::console::Console;
use crate::context::Context;

fn main() -> ExitCode {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().collect();
    // Under another name, or as the keeper of a node's processes, it runs a different, smaller program.
    if let Some(code) = bedplate_agent::shim::dispatch(&arguments) {
        return code;
    }
    // Checked before parsing, so that an invalid command line is reported as JSON too.
    let wants_json = arguments.iter().any(|argument| argument == "--json");
    let mut console = Console::for_process(wants_json);
    let outcome = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli_error::catching_bugs(|| run(cli, &mut console)),
        Err(error) => Err(CliError::from_clap(error)),
    };
    cli_error::report(outcome, &console)
}

fn run(cli: Cli, console: &mut Console) -> Result<(), CliError> {
    let context = Context { overlays: cli.catalog };
    commands::run(cli.command, &context, console)
}
