//! Which cluster a command talks to: one at an address, or the one of a state directory on this machine.

use std::env;
use std::path::PathBuf;

use bedplate_drivers::{Local, Place, StateDirectory};

use crate::stop::Stop;

/// The options of every command that talks to a cluster.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Which cluster")]
pub(crate) struct Connection {
    /// Where the cluster is, with its token in BEDPLATE_TOKEN
    #[arg(long, value_name = "URL", env = "BEDPLATE_SERVER", hide_env_values = true)]
    server: Option<String>,

    /// State directory of a cluster on this machine [default: ~/.local/state/bedplate]
    #[arg(long, value_name = "DIR", env = "BEDPLATE_STATE", hide_env_values = true)]
    state_dir: Option<PathBuf>,
}

impl Connection {
    /// The cluster of a directory.
    pub(crate) fn of(directory: PathBuf) -> Self {
        Self { server: None, state_dir: Some(directory) }
    }

    /// A client; nothing has been asked yet.
    pub(crate) fn driver(&self) -> Result<Local, Stop> {
        let place = match self.server.as_deref().filter(|server| !server.is_empty()) {
            Some(server) => {
                Place::from_url(server, variable("BEDPLATE_TOKEN"), variable("BEDPLATE_FINGERPRINT"))?
            }
            None => self.state().place()?,
        };
        Ok(Local::new(place))
    }

    /// Whether the cluster is named by its address, so that its state directory may be elsewhere.
    pub(crate) fn is_by_address(&self) -> bool {
        self.server.as_ref().is_some_and(|server| !server.is_empty())
    }

    pub(crate) fn state(&self) -> StateDirectory {
        state_directory(self.state_dir.clone())
    }
}

/// The state directory: as given, or where the user's programs keep their state.
pub(crate) fn state_directory(given: Option<PathBuf>) -> StateDirectory {
    let home = || PathBuf::from(variable("HOME").unwrap_or_else(|| "/tmp".into()));
    let given = given.filter(|path| !path.as_os_str().is_empty());
    StateDirectory(given.unwrap_or_else(|| {
        let above = variable("XDG_STATE_HOME").map(PathBuf::from);
        above.unwrap_or_else(|| home().join(".local/state")).join("bedplate")
    }))
}

/// A variable of the environment; an empty one counts as absent.
pub(crate) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
