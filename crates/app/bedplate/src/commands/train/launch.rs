//! `--ranks`: this very command as ranks on this machine.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use bedplate_launch::local::{LocalEnd, LocalLaunch, RanksError, Variables};
use bedplate_layout::Layout;
use bedplate_terminal::{CliError, Console, ProgramError};

use super::Arguments;

/// Runs the ranks to their end, each with a layout that was chosen for all of them.
pub(super) fn run(
    arguments: &Arguments,
    ranks: u32,
    layout: Option<Layout>,
    output: &Path,
    stop: &AtomicBool,
    console: &Console,
) -> Result<(), CliError> {
    let program = std::env::current_exe().map_err(|source| RanksError::Start { source })?;
    let command = || {
        let mut command = Command::new(&program);
        command.args(own_arguments(layout));
        command
    };
    let launch = LocalLaunch {
        ranks,
        spares: arguments.spares,
        restarts: arguments.restarts,
        command: &command,
        output: output.to_owned(),
        stop,
        remark: &|remark| console.say(remark),
    };
    match launch.run()? {
        LocalEnd::Well => Ok(()),
        LocalEnd::Failed(code) => Err(CliError::Job(code)),
    }
}

/// The command line without what is the launcher's. A layout that was chosen replaces the wish to have one chosen, so that all
/// ranks have the same.
fn own_arguments(layout: Option<Layout>) -> Vec<String> {
    let mut left_out = vec!["--ranks", "--spares", "--restarts"];
    left_out.extend(layout.map(|_| "--layout"));
    let mut kept = Vec::new();
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let name = argument.split('=').next().unwrap_or_default();
        if left_out.contains(&name) {
            if !argument.contains('=') {
                given.next();
            }
        } else {
            kept.push(argument);
        }
    }
    kept.extend(layout.map(|layout| format!("--layout={layout}")));
    kept
}

/// Refuses what only a process that starts ranks can do.
pub(super) fn refuse_nested(ranks: u32, variables: &Variables) -> Result<(), CliError> {
    match variables.get("WORLD_SIZE").filter(|world| world.as_str() != "1") {
        Some(world) if ranks > 1 => {
            let message = format!(
                "--ranks starts ranks on this machine, but this process is one of {world} already (WORLD_SIZE); leave --ranks out"
            );
            Err(ProgramError::Usage { message }.into())
        }
        _ => Ok(()),
    }
}
