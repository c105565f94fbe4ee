//! `bedplate catalog …`: what hardware exists.

mod accelerators;
mod check;
mod compare;
mod fabrics;
mod figures;
mod instances;
mod json;
mod overview;
mod show;
mod sources;
mod storage;

use bedplate_diag::Page;
use bedplate_terminal::{CliError, Console, Context};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate catalog instances --memory '>=141GB' --fabric efa
  bedplate catalog compare p5.48xlarge p6-b200.48xlarge
  bedplate catalog show h200            every figure with its source
  bedplate catalog accelerators --json
  bedplate --catalog own.toml catalog show rack-node

Your own GPUs, nodes and prices go into an overlay file; see docs/catalog.md.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// GPUs and other chips: peaks, memory, links
    Accelerators(accelerators::Arguments),
    /// Machine types, filtered by what a run needs
    Instances(instances::Arguments),
    /// Machines sold as one scale-up domain of several instances
    Ultraservers,
    /// What joins accelerators, machines and hosts
    Fabrics(fabrics::Arguments),
    /// Where data and checkpoints live
    Storage(storage::Arguments),
    /// Two or more entries of one kind side by side
    Compare(compare::Arguments),
    /// Everything about one entry, with the source of each figure
    Show(show::Arguments),
    /// The documents behind the figures
    Sources,
    /// Validate overlay files and say what they change
    Check(check::Arguments),
}

pub(crate) fn run(arguments: Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let catalog = context.load_catalog()?;
    match arguments.command {
        None => overview::run(&catalog, console),
        Some(Command::Accelerators(arguments)) => accelerators::run(&arguments, &catalog, console),
        Some(Command::Instances(arguments)) => instances::run(arguments, &catalog, console),
        Some(Command::Ultraservers) => instances::run_ultraservers(&catalog, console),
        Some(Command::Fabrics(arguments)) => fabrics::run(&arguments, &catalog, console),
        Some(Command::Storage(arguments)) => storage::run(&arguments, &catalog, console),
        Some(Command::Compare(arguments)) => compare::run(&arguments, &catalog, console),
        Some(Command::Show(arguments)) => show::run(&arguments, &catalog, console),
        Some(Command::Sources) => sources::run(&catalog, console),
        Some(Command::Check(arguments)) => check::run(&arguments, context, console),
    }
}

/// The text of a value that may be unknown; unknown prints as a dash.
fn known<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

pub(crate) const PAGES: &[&Page] = &[&compare::DIFFERENT_KINDS];
