//! Starts processes of a cluster as this program, and tells the user on the console.

use std::sync::Arc;

use bedplate_local::Launcher;
use bedplate_terminal::{CliError, Console, Context};

pub(crate) fn launcher(context: &Context, console: &Console) -> Result<Launcher, CliError> {
    let console = console.clone();
    let say = Arc::new(move |remark: &str| console.say(remark));
    Ok(Launcher::of_this_program(context.overlays.clone(), say)?)
}
