//! Where things of a node and of its runs lie in the state directory.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::{env, fs};

use bedplate_control::wire::{LogName, LogStream, RunId};
use bedplate_host::OwnFolder;

use crate::error::AgentError;
use crate::identity::JobUsers;

/// A socket's path may not be longer; the kernel's limit is 108 with the zero at its end.
const LONGEST_SOCKET: usize = 100;

/// The directories of one node.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    node: String,
    runs: PathBuf,
    /// In front of every rank's `PATH`.
    pub(crate) programs: PathBuf,
    pub(crate) socket: PathBuf,
    /// Is there when the control plane has let the node in since the agent started.
    pub(crate) joined: PathBuf,
    /// Says why the control plane does not let the node in, until it does.
    pub(crate) turned_away: PathBuf,
    /// Of directories.
    mode: u32,
}

impl Places {
    /// Makes what is missing.
    pub(crate) fn begin(
        state: &Path,
        node: &str,
        program: &Path,
        users: JobUsers,
    ) -> Result<Self, AgentError> {
        if !is_file_name(node) {
            return Err(AgentError::NodeName { name: node.to_owned() });
        }
        let failed = |source| AgentError::State { path: state.to_owned(), source };
        // Other users may pass through, to what belongs to them, and list nothing.
        let mode = if users == JobUsers::Own { 0o700 } else { 0o711 };
        make_directory(state, mode).map_err(failed)?;
        let state = fs::canonicalize(state).map_err(failed)?;
        let places = Self {
            node: node.to_owned(),
            runs: state.join("runs"),
            programs: state.join(format!("programs-{node}")),
            socket: socket_path(&state, node),
            joined: state.join(format!("joined-{node}")),
            turned_away: state.join(format!("turned-away-{node}")),
            mode,
        };
        places.say_neither();
        make_directory(&places.runs, mode).map_err(failed)?;
        places.link_programs(program).map_err(failed)?;
        Ok(places)
    }

    fn link_programs(&self, program: &Path) -> io::Result<()> {
        make_directory(&self.programs, self.mode)?;
        for name in ["srun", "scontrol", "bedplate"] {
            let link = self.programs.join(name);
            let _ = fs::remove_file(&link);
            symlink(program, link)?;
        }
        Ok(())
    }

    /// The directory of all runs, and the name that this node has in each.
    pub(crate) fn runs(&self) -> (PathBuf, String) {
        (self.runs.clone(), self.node.clone())
    }

    /// For who started the agent; without it the node works as well.
    pub(crate) fn say_joined(&self) {
        let _ = fs::remove_file(&self.turned_away);
        let _ = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.joined);
    }

    /// The same; what is there already is as good.
    pub(crate) fn say_turned_away(&self, why: &str) {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.turned_away);
        let _ = file.and_then(|mut file| file.write_all(why.as_bytes()));
    }

    pub(crate) fn say_neither(&self) {
        let _ = fs::remove_file(&self.joined);
        let _ = fs::remove_file(&self.turned_away);
    }

    /// The directory of a run on this node. Its path is made of numbers and the node's name alone.
    pub(crate) fn run(&self, run: RunId) -> PathBuf {
        self.runs.join(format!("{}.{}", run.job, run.number)).join(&self.node)
    }

    pub(crate) fn make_run(&self, run: RunId) -> io::Result<PathBuf> {
        let directory = self.run(run);
        directory.parent().map_or(Ok(()), |above| make_directory(above, self.mode))?;
        make_directory(&directory, 0o700)?;
        Ok(directory)
    }

    /// Where a rank's stream is captured when the job names no file.
    pub(crate) fn captured(&self, log: &LogName) -> PathBuf {
        let ending = match log.stream {
            LogStream::Stdout => "out",
            LogStream::Stderr => "err",
        };
        self.run(log.run).join(format!("rank-{}.{ending}", log.rank))
    }

    pub(crate) fn report(&self, run: RunId, rank: u32) -> PathBuf {
        self.run(run).join(format!("report-{rank}"))
    }

    /// Removes what only a living run needs. Logs stay, empty ones too: some file systems take long to make files where
    /// others were removed just before, which would be at every start of a short job.
    pub(crate) fn tidy(&self, run: RunId) {
        let Ok(folder) = OwnFolder::open(&self.run(run)) else { return };
        for name in folder.names().unwrap_or_default() {
            let text = name.to_string_lossy();
            if ["script", "report-", "step-", "probe"].iter().any(|kind| text.starts_with(kind)) {
                let _ = folder.remove(&name);
            }
        }
    }
}

/// Whatever the umask says.
fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn is_file_name(node: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !node.is_empty() && node.len() <= 128 && !node.starts_with('.') && node.chars().all(is_plain)
}

/// Beside the runs, or where temporary files are when that path is too long for a socket.
fn socket_path(state: &Path, node: &str) -> PathBuf {
    let beside = state.join(format!("agent-{node}.socket"));
    if beside.as_os_str().len() <= LONGEST_SOCKET {
        return beside;
    }
    let hash = beside.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    env::temp_dir().join(format!("bedplate-{hash:016x}.socket"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_names_cannot_leave_the_state_directory() {
        for (name, is_good) in [
            ("n1", true),
            ("rack-2.node_7", true),
            ("", false),
            ("..", false),
            ("a/b", false),
            ("a b", false),
        ] {
            assert_eq!(is_file_name(name), is_good, "{name}");
        }
    }

    #[test]
    fn a_socket_path_is_never_too_long() {
        let long = PathBuf::from("/x".repeat(200));
        assert!(socket_path(&long, "n1").as_os_str().len() < 108);
        assert_ne!(socket_path(&long, "n1"), socket_path(&long, "n2"));
        assert_eq!(socket_path(Path::new("/s"), "n1"), PathBuf::from("/s/agent-n1.socket"));
    }
}
