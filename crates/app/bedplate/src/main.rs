//! The `bedplate` program: reads the command line, runs one command, reports the result.
//!
//! Everything that decides lives in the crates below; here are only arguments, files, tables and exit
//! codes. `commands/` mirrors the command line: `catalog compare` is in `commands/catalog/compare.rs`.

mod cli;
mod clusters;
mod commands;
mod connection;
mod diagnosing;
mod health_rules;
mod job_file;
mod job_text;
mod launcher;
mod models;
mod pages;
mod replayed;
mod served;
mod serving;
mod site;
mod watching;

use std::process::ExitCode;

use bedplate_terminal::{CliError, Console, catching_bugs, report};
use clap::Parser;

use crate::cli::Cli;

fn main() -> ExitCode {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().collect();
    // Under another name, or as the fork server of a node's processes, it runs a different, smaller program.
    if let Some(code) = bedplate_agent::multicall::dispatch(&arguments) {
        return code;
    }
    // Checked before parsing, so that an invalid command line is reported as JSON too.
    let wants_json = arguments.iter().any(|argument| argument == "--json");
    let mut console = Console::for_process(wants_json);
    let outcome = match Cli::try_parse_from(arguments) {
        Ok(cli) => catching_bugs(|| run(cli, &mut console)),
        Err(error) => Err(CliError::from_clap(error)),
    };
    report(outcome, &console)
}

fn run(cli: Cli, console: &mut Console) -> Result<(), CliError> {
    let context = cli.global.start()?;
    commands::run(cli.command, &context, console)
}
