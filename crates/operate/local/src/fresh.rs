//! A state directory that begins anew, with what it held set aside.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bedplate_drivers::StateDirectory;
use bedplate_host::clock::unix_time;

use crate::down::processes;
use crate::{LocalError, is_running};

/// What belongs to this machine and not to a cluster: measured rates, and the runs that they are checked by.
const KEPT: [&str; 3] = ["host.toml", "gpu.toml", "runs"];

/// Moves everything that a cluster left in the directory next to it; says where it is now. Nothing is done where nothing is.
pub fn set_aside(state: &StateDirectory) -> Result<Option<PathBuf>, LocalError> {
    if is_running(state)? || !processes(state.path()).is_empty() {
        return Err(LocalError::StillUp { state: state.path().to_owned() });
    }
    let failed = |path: &Path, source: io::Error| LocalError::State { path: path.to_owned(), source };
    let entries = match fs::read_dir(state.path()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries.map_err(|source| failed(state.path(), source))?,
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    let names: Vec<_> = names.filter(|name| !KEPT.iter().any(|kept| *kept == name)).collect();
    if names.is_empty() {
        return Ok(None);
    }
    let aside = neighbour(state.path());
    fs::create_dir(&aside).map_err(|source| failed(&aside, source))?;
    for name in names {
        let from = state.path().join(&name);
        fs::rename(&from, aside.join(&name)).map_err(|source| failed(&from, source))?;
    }
    Ok(Some(aside))
}

/// A name that nothing has yet: `bedplate.before-1790000000`.
fn neighbour(state: &Path) -> PathBuf {
    let seconds = unix_time().as_secs();
    let named = |number: u64| {
        let mut name = state.as_os_str().to_owned();
        name.push(format!(".before-{number}"));
        PathBuf::from(name)
    };
    (seconds..).map(named).find(|path| !path.exists()).expect("numbers do not end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_set_aside_and_measurements_of_the_machine_stay() {
        let folder = std::env::temp_dir().join(format!("bedplate-fresh-{}", std::process::id()));
        let state = StateDirectory(folder.join("state"));
        assert_eq!(set_aside(&state).unwrap(), None, "there is nothing");
        fs::create_dir_all(state.path().join("agents")).unwrap();
        fs::write(state.path().join("host.toml"), "measured").unwrap();
        fs::write(state.path().join("journal.sqlite"), "jobs").unwrap();
        let aside = set_aside(&state).unwrap().expect("there was a cluster");
        assert_eq!(fs::read_to_string(aside.join("journal.sqlite")).unwrap(), "jobs");
        assert!(aside.join("agents").is_dir());
        let left: Vec<_> =
            fs::read_dir(state.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["host.toml"]);
        assert_eq!(set_aside(&state).unwrap(), None, "it is done once");
        fs::remove_dir_all(&folder).unwrap();
    }
}
