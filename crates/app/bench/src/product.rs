//! The product that is measured: the program `bedplate` beside this one.

use std::path::PathBuf;
use std::sync::Arc;

use bedplate_local::Launcher;
use bedplate_terminal::{CliError, Console, Context, ProgramError, find_companion};

/// Where it is.
pub(crate) fn program() -> Result<PathBuf, ProgramError> {
    find_companion("bedplate")
}

/// Starts clusters of it.
pub(crate) fn launcher(context: &Context, console: &Console) -> Result<Launcher, CliError> {
    let console = console.clone();
    let say = Arc::new(move |remark: &str| console.say(remark));
    Ok(Launcher::new(program()?, context.overlays.clone(), say))
}
