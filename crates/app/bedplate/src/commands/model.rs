//! `bedplate model …`: parameters, FLOPs and bytes.

mod list;
mod show;

use std::path::Path;

use bedplate_diag::Source;
use bedplate_transformer::{Configuration, Remark, Transformer, builtin};

use crate::console::Console;
use crate::files;
use crate::stop::Stop;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate model list
  bedplate model show llama-3.1-70b --seq 8192
  bedplate model show path/to/config.json --json")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// The models the program knows by name
    List(list::Arguments),
    /// One model: by name, or by its Hugging Face config.json
    Show(show::Arguments),
}

pub(crate) fn run(arguments: Arguments, console: &mut Console) -> Result<(), Stop> {
    match arguments.command {
        Command::List(arguments) => list::run(&arguments, console),
        Command::Show(arguments) => show::run(&arguments, console),
    }
}

/// A built-in name, or the path of a config.json or of the folder that holds one; `-` is standard input.
///
/// Hugging Face names such as `Qwen/Qwen2.5-7B` look like paths: if such a path exists, it wins.
/// A bare word is a built-in name first.
pub(crate) fn load(name_or_path: &str) -> Result<Transformer, Stop> {
    Ok(load_with_remarks(name_or_path)?.0)
}

/// The model, and what its configuration asks for that nothing here honours.
fn load_with_remarks(name_or_path: &str) -> Result<(Transformer, Vec<Remark>), Stop> {
    let path = Path::new(name_or_path);
    let is_path = name_or_path == "-"
        || name_or_path.ends_with(".json")
        || (path.exists() && (name_or_path.contains('/') || builtin(name_or_path).is_err()));
    if !is_path {
        return Ok((builtin(name_or_path)?, Vec::new()));
    }
    let file = match path.is_dir() {
        true => format!("{}/config.json", name_or_path.trim_end_matches('/')),
        false => name_or_path.to_owned(),
    };
    let text = files::read_text(&file)?;
    let configuration = Configuration::parse(Source::new(&file, &text))?;
    Ok((configuration.transformer()?, configuration.remarks()?))
}
