//! `bedplate completions SHELL`

use bedplate_terminal::{CliError, Console};
use clap::CommandFactory;
use clap_complete::Shell;
use serde_json::json;

use crate::cli::Cli;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate completions bash > ~/.local/share/bash-completion/completions/bedplate
  bedplate completions zsh > ~/.zfunc/_bedplate
  bedplate completions fish > ~/.config/fish/completions/bedplate.fish")]
pub(crate) struct Arguments {
    /// The shell to complete for
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "bedplate", &mut script);
    let script = String::from_utf8_lossy(&script);
    if console.is_json() {
        return console.json(&json!({ "shell": arguments.shell.to_string(), "script": script }));
    }
    console.text(&script)
}
