//! Another program of ours: in the folder of this one, or on the PATH, as cargo finds its subcommands.

use std::path::PathBuf;
use std::{env, io};

use crate::ProgramError;

/// Where the program of that name is.
pub fn find_companion(name: &'static str) -> Result<PathBuf, ProgramError> {
    let own = env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned()));
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = own.into_iter().chain(env::split_paths(&path)).map(|folder| folder.join(name));
    places.find(|place| place.is_file()).ok_or_else(|| ProgramError::Companion {
        name,
        source: io::Error::new(io::ErrorKind::NotFound, "it is neither beside this program nor on the PATH"),
    })
}
