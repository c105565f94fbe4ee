//! Python programs measured as peers on this machine, from an embedded script.

use std::process::Command;

use bedplate_diag::{Class, Diagnostic, Page};

#[derive(Debug, thiserror::Error)]
#[error("the peer could not be measured")]
pub(super) struct PeerFailed {
    #[source]
    why: PeerTrouble,
}

#[derive(Debug, thiserror::Error)]
enum PeerTrouble {
    #[error("{python} did not start: {error}")]
    NotStarted { python: String, error: std::io::Error },
    #[error("it printed no figures; its last line was: {0}")]
    NoFigures(String),
}

pub(super) static PEER_FAILED: Page = Page {
    code: "bench/peer-failed",
    class: Class::User,
    meaning: "The peer program did not run: it is missing, incomplete, or lacks a package.",
    remedy: "check --peer-path or --peer-python, and that this Python has the packages the peer needs (calculon: numpy, pandas, psutil; torch: torch)",
};

impl Diagnostic for PeerFailed {
    fn page(&self) -> &'static Page {
        &PEER_FAILED
    }
}

/// A script, its interpreter and its folder.
pub(super) struct Script<'a> {
    pub(super) python: &'a str,
    pub(super) text: &'a str,
    pub(super) arguments: Vec<String>,
    pub(super) directory: &'a str,
}

impl Script<'_> {
    /// The result of `read` on the lines that the script prints; `None` means that it failed.
    pub(super) fn run<T>(&self, read: impl FnOnce(&str) -> Option<T>) -> Result<T, PeerFailed> {
        let output = Command::new(self.python)
            .arg("-c")
            .arg(self.text)
            .args(&self.arguments)
            .current_dir(self.directory)
            .output()
            .map_err(|error| PeerFailed {
                why: PeerTrouble::NotStarted { python: self.python.to_owned(), error },
            })?;
        let text = String::from_utf8_lossy(&output.stdout);
        read(&text).ok_or_else(|| {
            let told = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
            PeerFailed { why: PeerTrouble::NoFigures(told.lines().last().unwrap_or("nothing").to_owned()) }
        })
    }
}
