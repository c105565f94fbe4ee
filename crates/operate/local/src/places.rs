//! Where this user keeps the state of clusters.

use std::env;
use std::path::PathBuf;

use bedplate_drivers::StateDirectory;

/// The state directory: as given, or where the user's programs keep their state.
pub fn state_directory(given: Option<PathBuf>) -> StateDirectory {
    let given = given.filter(|path| !path.as_os_str().is_empty());
    StateDirectory(given.unwrap_or_else(|| {
        let above = variable("XDG_STATE_HOME").map(PathBuf::from);
        above.unwrap_or_else(|| home().join(".local/state")).join("bedplate")
    }))
}

pub fn home() -> PathBuf {
    PathBuf::from(variable("HOME").unwrap_or_else(|| "/tmp".into()))
}

/// A variable of the environment; an empty one counts as absent.
pub fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
