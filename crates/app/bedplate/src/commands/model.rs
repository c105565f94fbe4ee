//! `bedplate model …`: parameters, FLOPs and bytes.

mod list;
mod show;

use bedplate_terminal::{CliError, Console};

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  bedplate model list
  bedplate model show llama-3.1-70b --seq 8192
  bedplate model show path/to/config.json --json")]
pub(crate) enum Arguments {
    /// The models the program knows by name
    List(list::Arguments),
    /// One model: by name, or by its Hugging Face config.json
    Show(show::Arguments),
}

pub(crate) fn run(arguments: Arguments, console: &mut Console) -> Result<(), CliError> {
    match arguments {
        Arguments::List(arguments) => list::run(&arguments, console),
        Arguments::Show(arguments) => show::run(&arguments, console),
    }
}
