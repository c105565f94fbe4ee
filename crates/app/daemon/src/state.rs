//! The state directory: what a daemon finds when it starts, and what it leaves for those who look for it.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use bedplate_host::replace_private_file;
use serde::{Deserialize, Serialize};

use crate::error::DaemonError;

/// `daemon.json`: how a running daemon is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whereabouts {
    pub address: String,
    pub port: u16,
    pub pid: u32,
    /// SHA-256 of its certificate in hexadecimal, where it encrypts.
    pub fingerprint: Option<String>,
    pub version: String,
}

impl Whereabouts {
    /// Of the daemon with this state directory; nothing when none runs that ended well or none ever ran.
    pub fn read(state_directory: &Path) -> io::Result<Option<Self>> {
        match fs::read(state_directory.join("daemon.json")) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Left by a daemon that ended because it was told to: nothing is to start it again.
const CONCLUDED: &str = "concluded";

#[derive(Debug, Clone)]
pub(crate) struct StateDirectory {
    path: PathBuf,
}

impl StateDirectory {
    /// Only the daemon's user may look into it.
    pub(crate) fn open(path: &Path) -> Result<Self, DaemonError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|source| DaemonError::State { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned() })
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.file("journal.sqlite")
    }

    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, DaemonError> {
        match fs::read(self.file(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(DaemonError::State { path: self.file(name), source }),
        }
    }

    /// Writes a file as a whole or not at all, readable by its owner only.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), DaemonError> {
        let path = self.file(name);
        replace_private_file(&path, bytes).map_err(|source| DaemonError::State { path, source })
    }

    pub(crate) fn announce(
        &self,
        address: SocketAddr,
        fingerprint: Option<String>,
    ) -> Result<(), DaemonError> {
        let whereabouts = Whereabouts {
            address: address.ip().to_string(),
            port: address.port(),
            pid: std::process::id(),
            fingerprint,
            version: env!("CARGO_PKG_VERSION").into(),
        };
        let text = serde_json::to_vec_pretty(&whereabouts).expect("it is plain data");
        match fs::remove_file(self.file(CONCLUDED)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(DaemonError::State { path: self.file(CONCLUDED), source });
            }
            _ => {}
        }
        self.write("daemon.json", &text)
    }

    /// Whether those who look for the daemon find it here.
    pub(crate) fn is_announced(&self) -> bool {
        self.file("daemon.json").exists()
    }

    /// Where it cannot be said, the daemon is started again, which is the lesser harm.
    pub(crate) fn conclude(&self) {
        let _ = self.write(CONCLUDED, b"");
    }

    pub(crate) fn withdraw(&self) {
        // It may be gone with its directory.
        let _ = fs::remove_file(self.file("daemon.json"));
    }
}
