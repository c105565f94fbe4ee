//! The program under other names: `srun` and `scontrol`, as scripts written for Slurm call them inside jobs; and as
//! the fork server of a node, which must stay small and so begins before anything else is set up.

mod addresses;
mod scontrol;
mod srun;
mod srun_options;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use crate::fork_server;

/// Does what `argv[0]`, or the word `keeper` behind it, asks for. Nothing when this is the program itself.
pub fn dispatch(arguments: &[OsString]) -> Option<ExitCode> {
    let (program, rest) = arguments.split_first()?;
    let name = Path::new(program).file_name()?.to_str()?;
    let run = match name {
        "srun" => srun::run,
        "scontrol" => scontrol::run,
        _ if rest.len() == 1 && rest[0] == "keeper" => return Some(fork_server::main()),
        _ => return None,
    };
    let words: Vec<String> = rest.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    Some(match run(&words) {
        Ok(code) => ExitCode::from(code),
        Err(complaint) => {
            let _ = writeln!(io::stderr(), "{name}: error: {complaint}");
            ExitCode::FAILURE
        }
    })
}
