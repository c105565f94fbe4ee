//! The processes of a node without the rest of the program, for the tests and benches of this crate:
//! `bedplate-node keeper`, and `bedplate-node SERVER TOKEN NODE ADDRESS STATE [PROBE [EVERY_MS]]` for an agent.

use std::process::ExitCode;

use bedplate_agent::{AgentOptions, JobUsers, multicall};
use bedplate_control::wire::Probe;

fn main() -> ExitCode {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().collect();
    if let Some(code) = multicall::dispatch(&arguments) {
        return code;
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [server, token, node, address, state, probe @ ..] => {
            let mut options = AgentOptions::new(server, token, node, state.into());
            options.address = (*address).to_owned();
            let every_ms = probe.get(1).and_then(|every| every.parse().ok()).unwrap_or(1000);
            options.probe = probe.first().map(|command| Probe { command: (*command).to_owned(), every_ms });
            options.check = std::env::var("BEDPLATE_NODE_CHECK").ok();
            options.users = JobUsers::here(true);
            match bedplate_agent::run(options) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    remark(&error.to_string());
                    ExitCode::FAILURE
                }
            }
        }
        _ => ExitCode::from(2),
    }
}

#[expect(clippy::print_stderr, reason = "a program for tests says there what it does")]
fn remark(text: &str) {
    eprintln!("{text}");
}
