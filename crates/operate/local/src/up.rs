//! Bringing up a cluster: the one that is known, or the one that is wanted.

use std::path::Path;
use std::time::Instant;

use bedplate_catalog::Catalog;
use bedplate_drivers::{Driver, Local, NodeId, NodeSummary, StateDirectory};

use crate::{Launcher, LocalError, Machine, Shape, Wanted, find_agent, hold, is_running};

/// A cluster that stands.
pub struct Up {
    pub driver: Local,
    pub shape: Shape,
}

impl Launcher {
    /// Brings up the cluster of a back-up, whose machine is gone, on this one. It is the same control plane to agents and clients: it has the
    /// same certificate, and knows their tokens.
    pub fn bring_up_from(
        &self,
        backup: &Path,
        state: &StateDirectory,
        wanted: &Wanted,
        catalog: &Catalog,
    ) -> Result<Up, LocalError> {
        let found = bedplate_journal::restore_from(backup, state.path())?;
        (self.say)(&format!(
            "the back-up ends with commit {}, {:.1} s ago: what was decided since then is lost",
            found.commits,
            bedplate_journal::age_of(&found)
        ));
        self.bring_up(state, wanted, catalog)
    }

    /// Starts what is missing of the cluster of a directory and returns when all nodes of this machine have joined.
    pub fn bring_up(
        &self,
        state: &StateDirectory,
        wanted: &Wanted,
        catalog: &Catalog,
    ) -> Result<Up, LocalError> {
        let is_up = is_running(state)?;
        let shape = shape(state, wanted, is_up, catalog)?;
        if is_up {
            (self.say)("the cluster is up already");
            if wanted.site.is_some() || wanted.probe.is_some() || wanted.listen.is_some() {
                (self.say)(
                    "--site, --probe and --listen count when it starts: `bedplate down`, then this again",
                );
            }
            self.start_supervisor(state)?;
            return Ok(Up { driver: Local::new(state.place()?), shape });
        }
        let began = Instant::now();
        shape.keep(state)?;
        let held = hold(state)?;
        let driver = self.start_daemon(state, &shape)?;
        let is_missing = |node: &NodeSummary| !node.is_linked && shape.share(node.name.as_str()).is_some();
        let missing: Vec<NodeId> =
            driver.nodes()?.into_iter().filter(is_missing).map(|node| node.name).collect();
        for name in &missing {
            if find_agent(state, name).is_none() {
                self.start_agent(state, &driver, &shape, name)?;
            }
        }
        drop(held);
        self.start_supervisor(state)?;
        self.wait_for_nodes(state, &driver, &missing)?;
        (self.say)(&format!("up in {:.1} s", began.elapsed().as_secs_f64()));
        Ok(Up { driver, shape })
    }
}

/// The daemon knows jobs of the shape it has; another one is another cluster.
fn shape(
    state: &StateDirectory,
    wanted: &Wanted,
    is_up: bool,
    catalog: &Catalog,
) -> Result<Shape, LocalError> {
    let known = match Shape::find(state)? {
        Some(known) if !wanted.names_a_shape() => return known.with_rules(wanted),
        known => known,
    };
    let shape = Shape::new(wanted, catalog, Machine::this())?;
    match known {
        Some(known) if known.cluster != shape.cluster && is_up => {
            Err(LocalError::OtherShape { has: known.summary(), state: state.path().to_owned() })
        }
        _ => Ok(shape),
    }
}
