//! How a machine is divided among the nodes that stand on it.

use bedplate_topology::Cluster;
use serde_json::{Value, json};

use crate::machine::Machine;

/// What a node gets of the machine, and what it pretends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    pub node: String,
    /// Really.
    pub cores: Vec<u32>,
    pub memory_mib: u64,
    /// To the scheduler.
    pub vcpus: u32,
    pub pretended_mib: u64,
    pub gpus: u32,
}

/// Of the first `count` nodes: cores in contiguous parts, as even as they go; where there are more nodes than cores, several share one.
pub(crate) fn shares(cluster: &Cluster, count: u32, machine: Machine) -> Vec<Share> {
    let count = count.max(1);
    let cores_of = |at: u32| -> Vec<u32> {
        let (at, count, cores) = (u64::from(at), u64::from(count), u64::from(machine.cores.max(1)));
        let (first, end) = (at * cores / count, (at + 1) * cores / count);
        (first as u32..(end.max(first + 1)) as u32).collect()
    };
    let nodes = cluster.nodes().iter().enumerate().take(count as usize);
    nodes
        .map(|(at, id)| {
            let node = cluster.node(id);
            let kind = node.kind();
            Share {
                node: node.name().to_string(),
                cores: cores_of(at as u32),
                memory_mib: machine.memory_mib / u64::from(count),
                vcpus: kind.vcpus.unwrap_or(0),
                pretended_mib: kind.memory.map_or(0, |memory| (memory.get() / 1_048_576.0) as u64),
                gpus: kind.accelerators,
            }
        })
        .collect()
}

impl Share {
    pub(crate) fn json(&self) -> Value {
        json!({
            "node": self.node,
            "cores": self.cores,
            "memory_mib": self.memory_mib,
            "vcpus": self.vcpus,
            "pretended_mib": self.pretended_mib,
            "gpus": self.gpus,
        })
    }

    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let number = |key: &str| value[key].as_u64();
        let cores = value["cores"].as_array()?.iter().map(|core| Some(core.as_u64()? as u32));
        Some(Self {
            node: value["node"].as_str()?.to_owned(),
            cores: cores.collect::<Option<_>>()?,
            memory_mib: number("memory_mib")?,
            vcpus: number("vcpus")? as u32,
            pretended_mib: number("pretended_mib")?,
            gpus: number("gpus")? as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use bedplate_catalog::Catalog;

    use super::*;

    fn cores(nodes: u32, cores: u32) -> Vec<Vec<u32>> {
        let cluster = Cluster::from_spec(&format!("p5.48xlarge:{nodes}"), &Catalog::builtin()).unwrap();
        let machine = Machine { cores, memory_mib: 8192, gpus: 0 };
        shares(&cluster, nodes, machine).into_iter().map(|share| share.cores).collect()
    }

    #[test]
    fn cores_are_divided_evenly_and_shared_when_there_are_too_few() {
        assert_eq!(cores(1, 3), [vec![0, 1, 2]]);
        assert_eq!(cores(2, 5), [vec![0, 1], vec![2, 3, 4]]);
        assert_eq!(cores(4, 2), [vec![0], vec![0], vec![1], vec![1]]);
    }
}
