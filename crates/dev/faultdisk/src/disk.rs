//! The disk for tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::log::Log;
use crate::{Draw, layer};

/// Paths and contents.
pub type Files = BTreeMap<PathBuf, Vec<u8>>;

/// The fault that is switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Disk full: a write that extends a file is cut short, as by `write(2)`, and fails.
    Full,
    /// Writes fail.
    WriteError,
    /// Syncs fail, and what they should have synced may never reach the disk.
    SyncError,
}

/// A file layer under its own name, registered with SQLite until the process ends.
#[derive(Debug)]
pub struct Disk {
    name: String,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) log: Log,
    pub(crate) fault: Option<Fault>,
    /// Operations that succeed before the fault begins.
    pub(crate) grace: usize,
    pub(crate) refused: usize,
}

impl State {
    /// Whether this operation fails.
    pub(crate) fn fails(&mut self, by: impl Fn(Fault) -> bool) -> Option<Fault> {
        let fault = self.fault.filter(|fault| by(*fault))?;
        if self.grace > 0 {
            self.grace -= 1;
            return None;
        }
        self.refused += 1;
        Some(fault)
    }
}

impl Disk {
    /// `name` must be new in this process.
    pub fn register(name: &str) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        layer::register(name, state.clone());
        Self { name: name.to_owned(), state }
    }

    /// The name under which SQLite knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many writes, truncations, creations, deletions and syncs so far.
    pub fn position(&self) -> usize {
        self.state().log.position()
    }

    /// The folder was synced outside SQLite.
    pub fn folder_was_synced(&self) {
        self.state().log.sync_folder();
    }

    /// Switches a fault on, after `grace` more operations of the kind that still succeed.
    pub fn fail(&self, fault: Fault, grace: usize) {
        let mut state = self.state();
        (state.fault, state.grace) = (Some(fault), grace);
    }

    pub fn recover(&self) {
        self.state().fault = None;
    }

    /// How many operations were refused so far.
    pub fn refused(&self) -> usize {
        self.state().refused
    }

    /// What may be left after a power cut following the first `position` events.
    pub fn after_power_cut(&self, position: usize, draw: &mut Draw) -> Files {
        self.state().log.after_power_cut(position, draw)
    }

    /// Puts the files into another folder.
    pub fn put(files: &Files, to: &Path) -> std::io::Result<()> {
        for (path, content) in files {
            let name = path.file_name().expect("SQLite names its files by full paths");
            std::fs::write(to.join(name), content)?;
        }
        Ok(())
    }
}
