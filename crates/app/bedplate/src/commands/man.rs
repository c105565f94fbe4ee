//! `bedplate man [--out DIR]`

use bedplate_terminal::{CliError, Console, files};
use clap::CommandFactory;
use clap_mangen::Man;
use serde_json::json;

use crate::cli::Cli;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate man | man -l -
  bedplate man --out ~/.local/share/man/man1")]
pub(crate) struct Arguments {
    /// Write one page per command into this folder, which must exist
    #[arg(long, value_name = "DIR")]
    out: Option<String>,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let Some(folder) = &arguments.out else {
        let page = page(&command, "bedplate");
        return if console.is_json() { console.json(&json!({ "page": page })) } else { console.text(&page) };
    };
    let written = write_pages(&command, "bedplate", folder)?;
    console.say(&format!("wrote {written} pages to {folder}"));
    if console.is_json() { console.json(&json!({ "pages": written })) } else { Ok(()) }
}

/// The page of a command and of everything below it.
fn write_pages(command: &clap::Command, name: &str, folder: &str) -> Result<usize, CliError> {
    files::write_text(&format!("{folder}/{name}.1"), &page(command, name))?;
    let mut written = 1;
    for below in command.get_subcommands() {
        written += write_pages(below, &format!("{name}-{}", below.get_name()), folder)?;
    }
    Ok(written)
}

fn page(command: &clap::Command, name: &str) -> String {
    let mut roff = Vec::new();
    let page = Man::new(command.clone()).title(name);
    page.render(&mut roff).expect("writing to memory does not fail");
    String::from_utf8_lossy(&roff).into_owned()
}
