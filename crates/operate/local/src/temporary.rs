//! A cluster that goes away with the process that started it, for demonstrations and measurements.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use bedplate_catalog::Catalog;
use bedplate_drivers::{Driver, Local, NodeId, StateDirectory};

use crate::down::processes;
use crate::machine::{self, Machine};
use crate::{Launcher, LocalError, Shape, Wanted, kill_daemon, take_down};

/// A cluster with its state in a folder of its own below the system's temporary one.
pub struct TemporaryCluster {
    pub driver: Local,
    pub shape: Shape,
    state: StateDirectory,
    launcher: Launcher,
}

impl TemporaryCluster {
    /// Starts one of this shape and returns when all nodes have joined.
    pub fn start(wanted: &Wanted, catalog: &Catalog, launcher: Launcher) -> Result<Self, LocalError> {
        Self::start_with(wanted, catalog, launcher, |_| Ok(()))
    }

    /// The same, after something was put into its folder.
    pub fn start_with<E: From<LocalError>>(
        wanted: &Wanted,
        catalog: &Catalog,
        launcher: Launcher,
        prepare: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<Self, E> {
        let state = StateDirectory(new_folder());
        let shape = Shape::new(wanted, catalog, Machine::this())?;
        let bring_up = || {
            shape.keep(&state)?;
            prepare(state.path())?;
            Ok(Self::nodes_of(&state, &shape, &launcher)?)
        };
        let outcome = bring_up();
        match outcome {
            Ok(driver) => Ok(Self { driver, shape, state, launcher }),
            Err(error) => {
                end(&state, &launcher);
                Err(error)
            }
        }
    }

    fn nodes_of(state: &StateDirectory, shape: &Shape, launcher: &Launcher) -> Result<Local, LocalError> {
        let driver = launcher.start_daemon(state, shape)?;
        let names: Vec<NodeId> = driver.nodes()?.into_iter().map(|node| node.name).collect();
        for name in &names {
            launcher.start_agent(state, &driver, shape, name)?;
        }
        launcher.wait_for_nodes(state, &driver, &names)?;
        Ok(driver)
    }

    /// What the daemon holds in memory, in MiB.
    pub fn daemon_mib(&self) -> Option<f64> {
        machine::resident_mib(self.state.beacon().ok().flatten()?.pid)
    }

    pub fn folder(&self) -> &Path {
        self.state.path()
    }

    /// Starts the agent of a node that was killed.
    pub fn start_node(&self, node: &NodeId) -> Result<(), LocalError> {
        self.launcher.start_agent(&self.state, &self.driver, &self.shape, node)
    }

    /// Kills the daemon as by `kill -9` and starts it again; it may be at another address then.
    pub fn restart_daemon(&self) -> Result<Local, LocalError> {
        kill_daemon(&self.state)?;
        self.launcher.start_daemon(&self.state, &self.shape)
    }

    /// Takes it down in good order; an error says what is left.
    pub fn stop(self) -> Result<(), LocalError> {
        take_down(&self.state, false, &*self.launcher.say)?;
        Ok(())
    }
}

impl Drop for TemporaryCluster {
    fn drop(&mut self) {
        end(&self.state, &self.launcher);
    }
}

/// Nothing is left, whatever happened before.
fn end(state: &StateDirectory, launcher: &Launcher) {
    if !processes(state.path()).is_empty() {
        let _ = take_down(state, true, &*launcher.say);
    }
    let _ = std::fs::remove_dir_all(state.path());
}

fn new_folder() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("bedplate-{}-{number}", std::process::id()))
}
