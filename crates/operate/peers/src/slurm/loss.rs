//! Losing a node: its daemon, the managers of its steps and all their processes.

use std::collections::BTreeSet;
use std::fs;

use super::Slurm;
use super::process::signal;

/// How a node is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeLoss {
    /// Everything on it dies at once.
    Killed,
    /// Everything on it stands still; connections stay open and nothing answers.
    Stopped,
}

impl Slurm {
    /// Loses a node. Nodes share this machine, so what runs for the node stands for it.
    pub fn lose_node(&self, node: &str, how: NodeLoss) {
        let name = if how == NodeLoss::Killed { "KILL" } else { "STOP" };
        signal(name, &self.processes_of_node(node));
    }

    /// Lets a node that was stopped go on, and starts the daemon of one that was killed.
    pub fn find_node_again(&self, node: &str, how: NodeLoss) -> Result<(), String> {
        match how {
            NodeLoss::Stopped => signal("CONT", &self.processes_of_node(node)),
            NodeLoss::Killed => {
                let _ = fs::remove_file(self.node_pid_path(node));
                self.start_node(node)?;
            }
        }
        self.ask("scontrol", &["update", &format!("nodename={node}"), "state=resume"]);
        Ok(())
    }

    fn processes_of_node(&self, node: &str) -> Vec<u32> {
        let daemon = fs::read_to_string(self.node_pid_path(node)).ok();
        let mut found: BTreeSet<u32> = daemon.and_then(|text| text.trim().parse().ok()).into_iter().collect();
        let marks = [
            format!("SLURMD_NODENAME={node}"),
            format!("SLURM_CONF={}", self.configuration_path().display()),
        ];
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            let has =
                |mark: &String| environment.split(|byte| *byte == 0).any(|pair| pair == mark.as_bytes());
            if marks.iter().all(has) {
                found.insert(pid);
                found.extend(manager_of(pid));
            }
        }
        found.into_iter().collect()
    }
}

/// The `slurmstepd` above a process.
fn manager_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let parent: u32 = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{parent}/comm")).ok()?;
    (name.trim() == "slurmstepd").then_some(parent)
}
