//! What the tests of this crate share: the samples, and a cluster as text.

pub(crate) mod random;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

use bedplate_catalog::Catalog;
use bedplate_diag::{Source, render_text};
use bedplate_topology::{
    Cluster, Format, Health, ImportOptions, Level, NodeRange, TopologyError, compress_hostlist, import,
};

pub(crate) static CATALOG: LazyLock<Catalog> = LazyLock::new(Catalog::builtin);

pub(crate) const TOPOLOGY_CONF: &str = include_str!("../samples/topology.conf");
pub(crate) const SLURM_CONF: &str = include_str!("../samples/slurm.conf");
pub(crate) const BLOCK_CONF: &str = include_str!("../samples/block.conf");
pub(crate) const BLOCK_SLURM_CONF: &str = include_str!("../samples/block-slurm.conf");
pub(crate) const TOPOLOGY_YAML: &str = include_str!("../samples/topology.yaml");
/// The example of Slurm's manual page: three topologies, the tree over a part of the nodes only.
pub(crate) const TOPOLOGY_DOCUMENTED: &str = include_str!("../samples/topology-documented.yaml");
pub(crate) const CLUSTER_TOML: &str = include_str!("../samples/cluster.toml");
pub(crate) const EC2: &str = include_str!("../samples/ec2.json");
pub(crate) const NODES_JSON: &str = include_str!("../samples/nodes.json");
pub(crate) const NODES_YAML: &str = include_str!("../samples/nodes.yaml");
pub(crate) const NVIDIA_SMI: &str = include_str!("../samples/nvidia-smi.txt");
/// As a machine with one H200 printed it.
pub(crate) const NVIDIA_SMI_H200: &str = include_str!("../samples/nvidia-smi-h200.txt");
pub(crate) const NVIDIA_SMI_PAIRS: &str = include_str!("../samples/nvidia-smi-pairs.txt");

/// Texts by file name.
pub(crate) type Files<'a> = &'a [(&'a str, &'a str)];

pub(crate) fn read(
    format: Format,
    files: Files<'_>,
    options: &ImportOptions,
) -> Result<Cluster, TopologyError> {
    let sources: Vec<Source<'_>> = files.iter().map(|(name, text)| Source::new(name, text)).collect();
    import(format, &sources, options, &CATALOG)
}

pub(crate) fn outcome(format: Format, files: Files<'_>, options: &ImportOptions) -> String {
    match read(format, files, options) {
        Ok(cluster) => describe(&cluster),
        Err(error) => render_text(&error),
    }
}

/// Everything a cluster holds, in few words.
pub(crate) fn describe(cluster: &Cluster) -> String {
    let names = |nodes: NodeRange| compress_hostlist(nodes.into_iter().map(|node| cluster.node(node).name()));
    let mut text =
        format!("{}: {} nodes, {} GPUs\n", cluster.name(), cluster.node_count(), cluster.gpu_count());
    for (index, kind) in cluster.kinds().iter().enumerate() {
        let of_kind = cluster
            .nodes()
            .into_iter()
            .filter(|node| std::ptr::eq(cluster.node(*node).kind(), &cluster.kinds()[index]));
        let nodes = compress_hostlist(of_kind.map(|node| cluster.node(node).name()));
        let _ = write!(text, "kind {} {:?}", kind.name, kind.domain_sizes);
        let _ = write!(text, " {}", kind.accelerator.as_deref().unwrap_or("-"));
        for (title, figure) in [
            ("up", kind.scale_up_bandwidth.map(|b| b.to_string())),
            ("out", kind.scale_out_bandwidth.map(|b| b.to_string())),
            ("cards", kind.network_cards.map(|c| c.to_string())),
            ("vcpus", kind.vcpus.map(|c| c.to_string())),
            ("memory", kind.memory.map(|m| m.to_string())),
            ("reported", kind.reported_memory.map(|m| m.to_string())),
            ("part of", kind.ultraserver.clone()),
        ] {
            if let Some(figure) = figure {
                let _ = write!(text, ", {title} {figure}");
            }
        }
        let _ = writeln!(text, ": {nodes}");
    }
    for switch in cluster.switches() {
        let depth = std::iter::successors(switch.parent(), |above| above.parent()).count();
        let own = names(switch.own_nodes());
        let ratio = switch.oversubscription();
        let ratio = if ratio == 1.0 { String::new() } else { format!(" {ratio}:1") };
        let _ = writeln!(text, "{}{} {}{ratio}: {own}", "  ".repeat(depth), switch.level(), switch.name());
    }
    let loose = cluster.nodes().into_iter().filter(|node| cluster.node(*node).switch().is_none());
    let loose = compress_hostlist(loose.map(|node| cluster.node(node).name()));
    if !loose.is_empty() {
        let _ = writeln!(text, "no switch: {loose}");
    }
    for set in cluster.sets(Level::Domain).filter(|set| set.nodes.len() > 1) {
        let first = cluster.node(set.nodes.first().unwrap());
        let _ = writeln!(text, "domain {}: {}", first.domain_name().unwrap(), names(set.nodes));
    }
    let mut features: BTreeMap<&[String], Vec<&str>> = BTreeMap::new();
    for node in cluster.nodes() {
        let node = cluster.node(node);
        features.entry(node.features()).or_default().push(node.name());
    }
    for (features, nodes) in features.into_iter().filter(|(features, _)| !features.is_empty()) {
        let _ = writeln!(text, "features {}: {}", features.join(","), compress_hostlist(nodes));
    }
    for node in cluster.nodes() {
        let node = cluster.node(node);
        if node.health() != Health::Healthy {
            let _ = writeln!(text, "{} {} {:?}", node.health(), node.name(), node.reason().unwrap_or(""));
        }
    }
    for gpu in cluster.failed_gpus() {
        let node = cluster.node(cluster.node_of(*gpu));
        let _ = writeln!(text, "failed {} GPU {}", node.name(), cluster.local_index(*gpu));
    }
    for storage in cluster.storage() {
        let _ = writeln!(text, "storage {} {}", storage.class, storage.capacity);
    }
    text
}
