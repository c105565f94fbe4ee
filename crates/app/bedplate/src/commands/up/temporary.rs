//! A cluster that goes away with the process that started it, for demonstrations and measurements.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use bedplate_drivers::{Driver, Local, NodeId, StateDirectory};
use bedplate_terminal::{CliError, Console, Context};

use super::{Arguments, Shape, UpError, start_agent, start_daemon, wait_for_nodes};
use crate::commands::chaos::kill_daemon;
use crate::commands::down::take_down;
use crate::machine::{self, Machine};

/// A cluster with its state in a folder of its own below the system's temporary one.
pub(crate) struct TemporaryCluster {
    pub(crate) driver: Local,
    pub(crate) shape: Shape,
    state: StateDirectory,
    console: Console,
}

impl TemporaryCluster {
    /// Starts one of this shape and returns when all nodes have joined.
    pub(crate) fn start(
        arguments: &Arguments,
        context: &Context,
        console: &Console,
    ) -> Result<Self, CliError> {
        Self::start_with(arguments, context, console, |_| Ok(()))
    }

    /// The same, after something was put into its folder.
    pub(crate) fn start_with(
        arguments: &Arguments,
        context: &Context,
        console: &Console,
        prepare: impl FnOnce(&Path) -> Result<(), CliError>,
    ) -> Result<Self, CliError> {
        let state = StateDirectory(new_folder());
        let shape = Shape::new(arguments, context, Machine::this())?;
        let prepared = shape.keep(&state).and_then(|()| prepare(state.path()));
        let outcome = prepared.and_then(|()| Self::bring_up(&state, shape, context, console));
        if outcome.is_err() {
            end(&state, console);
        }
        outcome
    }

    fn bring_up(
        state: &StateDirectory,
        shape: Shape,
        context: &Context,
        console: &Console,
    ) -> Result<Self, CliError> {
        let driver = start_daemon(state, &shape, context, console)?;
        let names: Vec<NodeId> = driver.nodes()?.into_iter().map(|node| node.name).collect();
        for name in &names {
            start_agent(state, &driver, &shape, name)?;
        }
        wait_for_nodes(state, &driver, &names, console)?;
        Ok(Self { driver, shape, state: state.clone(), console: console.clone() })
    }

    /// What the daemon holds in memory, in MiB.
    pub(crate) fn daemon_mib(&self) -> Option<f64> {
        machine::resident_mib(self.state.beacon().ok().flatten()?.pid)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.state.path()
    }

    /// Starts the agent of a node that was killed.
    pub(crate) fn start_node(&self, node: &NodeId) -> Result<(), CliError> {
        start_agent(&self.state, &self.driver, &self.shape, node)
    }

    /// Kills the daemon as by `kill -9` and starts it again; it may be at another address then.
    pub(crate) fn restart_daemon(&self, context: &Context, console: &Console) -> Result<Local, CliError> {
        kill_daemon(&self.state)?;
        start_daemon(&self.state, &self.shape, context, console)
    }

    /// Takes it down in good order; an error says what is left.
    pub(crate) fn stop(self) -> Result<(), CliError> {
        take_down(&self.state, false, &self.console)?;
        Ok(())
    }
}

impl Drop for TemporaryCluster {
    fn drop(&mut self) {
        end(&self.state, &self.console);
    }
}

/// Nothing is left, whatever happened before.
fn end(state: &StateDirectory, console: &Console) {
    if !crate::commands::down::processes(state.path()).is_empty() {
        let _ = take_down(state, true, console);
    }
    let _ = std::fs::remove_dir_all(state.path());
}

fn new_folder() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("bedplate-{}-{number}", std::process::id()))
}

/// A description of a cluster in a file that lasts as long as it is read.
pub(crate) fn with_description<T>(
    text: &str,
    read: impl FnOnce(&str) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let path = new_folder().with_extension("toml");
    std::fs::write(&path, text).map_err(|source| UpError::State { path: path.clone(), source })?;
    let outcome = read(&path.display().to_string());
    let _ = std::fs::remove_file(&path);
    outcome
}
