//! One node of a real cluster: an XID in its kernel log, until the cluster shows it as drained.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_drivers::{Driver, Local, NodeId, NodeState};
use bedplate_local::{TemporaryCluster, Wanted, Watch};
use bedplate_terminal::{CliError, Console, Context, ProgramError};

use super::Figure;
use crate::product::launcher;

const NODES: u32 = 5;
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(2);

/// The trees that the nodes read, gone with this.
struct Trees(PathBuf);

impl Drop for Trees {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Trees {
    /// A host with one GPU and an empty kernel log for each node.
    fn plant(names: &[String]) -> io::Result<Self> {
        let trees = Self(std::env::temp_dir().join(format!("bedplate-trees-{}", std::process::id())));
        for name in names {
            let root = trees.0.join(name);
            let device = root.join("sys/bus/pci/devices/0000:10:00.0");
            fs::create_dir_all(&device)?;
            fs::create_dir_all(root.join("dev"))?;
            fs::write(device.join("vendor"), "0x10de\n")?;
            fs::write(device.join("class"), "0x030200\n")?;
            fs::write(root.join("dev/kmsg"), "")?;
        }
        Ok(trees)
    }
}

pub(super) fn measure(repeats: u32, context: &Context, console: &Console) -> Result<Vec<Figure>, CliError> {
    let names: Vec<String> = (1..=NODES).map(|number| format!("n{number}")).collect();
    let broken =
        |error: io::Error| ProgramError::Bug { what: format!("cannot make a tree of files: {error}") };
    let trees = Trees::plant(&names).map_err(broken)?;
    let wanted = Wanted {
        nodes: Some(NODES),
        like: Some("p5.48xlarge".into()),
        watch: Watch { root: Some(trees.0.display().to_string()), ..Watch::default() },
        ..Wanted::default()
    };
    let cluster = TemporaryCluster::start(&wanted, &context.load_catalog()?, launcher(context, console)?)?;
    let mut seconds = Vec::new();
    for round in 0..repeats {
        let name = &names[round as usize % names.len()];
        console.say(&format!("round {} of {repeats}: an XID on {name}", round + 1));
        seconds.push(drained_after(&cluster.driver, &trees.0.join(name), &NodeId::from(name.as_str()))?);
        cluster.driver.resume(&NodeId::from(name.as_str()))?;
    }
    cluster.stop()?;
    seconds.sort_by(f64::total_cmp);
    Ok(vec![
        Figure::new("xid_to_drained_median_s", seconds[seconds.len() / 2], "s", Some(2.0)),
        Figure::new("xid_to_drained_worst_s", seconds[seconds.len() - 1], "s", Some(2.0)),
    ])
}

fn drained_after(driver: &Local, root: &Path, node: &NodeId) -> Result<f64, CliError> {
    let broken = |error: io::Error| ProgramError::Bug { what: format!("cannot write a kernel log: {error}") };
    let line = "4,1,1,-;NVRM: Xid (PCI:0000:10:00): 79, pid=1, name=x, GPU has fallen off the bus.\n";
    let mut log = OpenOptions::new().append(true).open(root.join("dev/kmsg")).map_err(broken)?;
    let began = Instant::now();
    log.write_all(line.as_bytes()).map_err(broken)?;
    loop {
        let nodes = driver.nodes()?;
        let state = nodes.iter().find(|known| known.name == *node).map(|known| known.state);
        if matches!(state, Some(NodeState::Drained | NodeState::Draining)) {
            return Ok(began.elapsed().as_secs_f64());
        }
        if began.elapsed() > PATIENCE {
            return Err(ProgramError::Bug { what: format!("node {node} is not drained") }.into());
        }
        thread::sleep(PAUSE);
    }
}
