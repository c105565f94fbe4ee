//! The nodes and switches of a Slurm, and which nodes it could give to a job now.

use std::collections::BTreeSet;

use super::Slurm;
use super::job::node_names;
use super::node::{NodeRecord, pair};
use super::transport::Ability;
use crate::{DriverError, NodeId, NodeState};

/// A cluster as Slurm's own files describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmTopology {
    /// In Slurm's order.
    pub nodes: Vec<SlurmNode>,
    /// Nothing where Slurm knows of none, or no transport tells.
    pub switches: Vec<SlurmSwitch>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmNode {
    pub name: String,
    /// `NodeName=…` with its CPUs, memory, GPUs and features.
    pub line: String,
    /// It could start something now.
    pub is_free: bool,
    /// It will take work, now or later.
    pub is_usable: bool,
}

/// A switch, or a block of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmSwitch {
    /// `SwitchName` or `BlockName`.
    pub kind: &'static str,
    pub name: String,
    pub nodes: Vec<String>,
    /// Of switches above others, as a list: `leaf[1-2]`.
    pub below: Option<String>,
}

impl Slurm {
    /// The nodes as `slurm.conf` has them, and the switches where a transport tells of them.
    pub fn topology(&self) -> Result<SlurmTopology, DriverError> {
        let nodes = self.ask(|transport| transport.nodes())?;
        let text = match self.able(Ability::Topology) {
            Some(transport) => transport.topology()?,
            None => {
                self.remark("slurmrestd tells nothing of switches, and Slurm's commands do not work here; all nodes count as equally close".to_owned());
                None
            }
        };
        let switches = text.unwrap_or_default().lines().filter_map(switch).collect();
        Ok(SlurmTopology { nodes: nodes.iter().map(node).collect(), switches })
    }
}

impl SlurmTopology {
    /// The text of a `slurm.conf` for these nodes; for all when none are named.
    pub fn slurm_conf(&self, only: &BTreeSet<String>) -> String {
        let lines = self.nodes.iter().filter(|node| only.is_empty() || only.contains(&node.name));
        lines.map(|node| format!("{}\n", node.line)).collect()
    }

    /// The text of a `topology.conf` for the same; nothing without switches.
    pub fn topology_conf(&self, only: &BTreeSet<String>) -> Option<String> {
        let known: BTreeSet<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
        let is_in = |name: &str| known.contains(name) && (only.is_empty() || only.contains(name));
        let mut text = String::new();
        let mut kept: BTreeSet<&str> = BTreeSet::new();
        for switch in &self.switches {
            let SlurmSwitch { kind, name, nodes, below } = switch;
            let members: Vec<&str> = nodes.iter().map(String::as_str).filter(|node| is_in(node)).collect();
            if members.is_empty() {
                continue;
            }
            kept.insert(name);
            text += &match below {
                None => format!("{kind}={name} Nodes={}\n", members.join(",")),
                Some(below) => {
                    let below: Vec<String> =
                        node_names(below).into_iter().filter(|name| kept.contains(name.as_str())).collect();
                    format!("{kind}={name} Switches={}\n", below.join(","))
                }
            };
        }
        (!text.is_empty()).then_some(text)
    }

    /// The nodes that Slurm would most likely give to a job of so many: free ones under as few leaves as possible. Where
    /// not enough are free, any that take work. Nothing where there are not so many.
    pub fn offer(&self, count: usize) -> Option<Vec<NodeId>> {
        let free = |name: &str| self.nodes.iter().any(|node| node.name == name && node.is_free);
        let usable = |name: &str| self.nodes.iter().any(|node| node.name == name && node.is_usable);
        self.gather(count, &free).or_else(|| self.gather(count, &usable))
    }

    fn gather(&self, count: usize, is_open: &dyn Fn(&str) -> bool) -> Option<Vec<NodeId>> {
        let mut leaves: Vec<Vec<&str>> = self
            .switches
            .iter()
            .filter(|switch| switch.below.is_none())
            .map(|switch| switch.nodes.iter().map(String::as_str).filter(|node| is_open(node)).collect())
            .collect();
        let placed: BTreeSet<&str> = leaves.iter().flatten().copied().collect();
        // Nodes under no switch are as far from each other as any.
        let loose = self
            .nodes
            .iter()
            .map(|node| node.name.as_str())
            .filter(|name| !placed.contains(name) && is_open(name));
        let loose: Vec<&str> = loose.collect();
        // The smallest leaf that has room for all, else the largest first.
        leaves.sort_by_key(|leaf| {
            (leaf.len() < count, if leaf.len() < count { usize::MAX - leaf.len() } else { leaf.len() })
        });
        let all: Vec<NodeId> =
            leaves.into_iter().flatten().chain(loose).take(count).map(NodeId::from).collect();
        (all.len() == count).then_some(all)
    }
}

fn node(record: &NodeRecord) -> SlurmNode {
    let gres = record.gres.split('(').next().unwrap_or_default();
    let gres = if gres.is_empty() { String::new() } else { format!(" Gres={gres}") };
    let features = match record.features.is_empty() {
        true => String::new(),
        false => format!(" Feature={}", record.features.join(",")),
    };
    let state = match record.state() {
        NodeState::Down => " State=DOWN",
        NodeState::Drained | NodeState::Draining => " State=DRAIN",
        _ => "",
    };
    let NodeRecord { name, cpus, memory_mib, .. } = record;
    SlurmNode {
        name: name.clone(),
        line: format!("NodeName={name} CPUs={cpus} RealMemory={memory_mib}{gres}{features}{state}"),
        is_free: record.is_free(),
        is_usable: state.is_empty(),
    }
}

/// From a line of `scontrol show topology`; switches above others list the nodes of those too.
fn switch(line: &str) -> Option<SlurmSwitch> {
    let kind = if line.contains("BlockName=") { "BlockName" } else { "SwitchName" };
    Some(SlurmSwitch {
        kind,
        name: pair(line, kind)?,
        nodes: node_names(&pair(line, "Nodes").unwrap_or_default()),
        below: pair(line, "Switches").filter(|list| !list.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two leaves of four; `busy` ones are taken, `out` ones drained.
    fn topology(busy: &[&str], out: &[&str]) -> SlurmTopology {
        let record = |name: String| {
            let state = if out.contains(&&*name) {
                "DRAIN"
            } else if busy.contains(&&*name) {
                "ALLOCATED"
            } else {
                "IDLE"
            };
            let gres = "gpu:h100:8(S:0-1)".to_owned();
            node(&NodeRecord {
                name,
                states: vec![state.into()],
                gres,
                cpus: 16,
                memory_mib: 4000,
                ..NodeRecord::default()
            })
        };
        let text = "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-4]\nSwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[5-8]\nSwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=leaf[1-2]";
        SlurmTopology {
            nodes: (1..=8).map(|number| record(format!("n{number}"))).collect(),
            switches: text.lines().filter_map(switch).collect(),
        }
    }

    fn offered(topology: &SlurmTopology, count: usize) -> String {
        let names = topology.offer(count).unwrap_or_default();
        names.iter().map(NodeId::as_str).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn free_nodes_under_one_leaf_come_first() {
        assert_eq!(offered(&topology(&["n1"], &[]), 4), "n5 n6 n7 n8");
        assert_eq!(offered(&topology(&["n5", "n6"], &[]), 2), "n7 n8", "the smallest leaf that has room");
        assert_eq!(offered(&topology(&["n1"], &[]), 5), "n5 n6 n7 n8 n2");
        assert_eq!(
            offered(&topology(&["n1", "n2"], &["n3"]), 7),
            "n5 n6 n7 n8 n1 n2 n4",
            "not enough are free"
        );
        assert_eq!(offered(&topology(&[], &["n3"]), 8), "");
    }

    #[test]
    fn files_are_written_for_the_chosen_nodes_alone() {
        let topology = topology(&[], &[]);
        let only = ["n3", "n4"].map(str::to_owned).into();
        assert_eq!(topology.slurm_conf(&only).lines().count(), 2);
        assert_eq!(
            topology.topology_conf(&only).unwrap(),
            "SwitchName=leaf1 Nodes=n3,n4\nSwitchName=spine Switches=leaf1\n"
        );
        let all = topology.topology_conf(&BTreeSet::new()).unwrap();
        assert!(all.ends_with("SwitchName=spine Switches=leaf1,leaf2\n"), "{all}");
    }
}
