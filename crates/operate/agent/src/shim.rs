//! The program under other names: `srun` and `scontrol`, as scripts written for Slurm call them inside jobs.

mod addresses;
mod scontrol;
mod srun;
mod srun_options;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

/// What `argv[0]` asks for, if it is not this program's own name: the exit code of what was done then.
pub fn dispatch(arguments: &[OsString]) -> Option<u8> {
    let (program, rest) = arguments.split_first()?;
    let name = Path::new(program).file_name()?.to_str()?;
    let run = match name {
        "srun" => srun::run,
        "scontrol" => scontrol::run,
        _ => return None,
    };
    let words: Vec<String> = rest.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    Some(match run(&words) {
        Ok(code) => code,
        Err(complaint) => {
            let _ = writeln!(io::stderr(), "{name}: error: {complaint}");
            1
        }
    })
}
