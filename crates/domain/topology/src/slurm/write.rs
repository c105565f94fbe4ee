//! Clusters as Slurm's files. They read back as the same cluster as far as Slurm can express it.

use std::fmt::Write as _;

use bedplate_units::Bytes;

use crate::{Cluster, Health, Node, NodeId, NodeKind, NodeRange, Switch, compress_hostlist};

/// `topology.conf` for `topology/tree`. A flat cluster becomes one switch, because Slurm requires a tree here.
pub(crate) fn tree_conf(cluster: &Cluster) -> String {
    let mut text =
        String::from("# Slurm topology.conf for TopologyPlugin=topology/tree, written by Bedplate\n");
    for switch in tree(cluster) {
        let below = switch.below.key();
        let _ = writeln!(text, "SwitchName={} {below}={}", switch.name, switch.below.list());
    }
    text
}

/// `topology.conf` for `topology/block`. Blocks are the scale-up domains over several nodes; in a cluster
/// without such domains they are the leaves, and in a flat one the whole.
pub(crate) fn block_conf(cluster: &Cluster) -> String {
    let mut text =
        String::from("# Slurm topology.conf for TopologyPlugin=topology/block, written by Bedplate\n");
    let blocks = blocks(cluster);
    for block in &blocks {
        let _ = writeln!(text, "BlockName={} Nodes={}", block.name, names(cluster, block.nodes));
    }
    let _ = writeln!(text, "BlockSizes={}", block_size(&blocks));
    text
}

/// `topology.yaml`: the tree where there is one, the blocks where there are scale-up domains over several
/// nodes, and `flat` where there is neither.
pub(crate) fn topology_yaml(cluster: &Cluster) -> String {
    let mut text = String::from("# Slurm topology.yaml, written by Bedplate\n---\n");
    let has_tree = cluster.switch_count() > 0;
    if has_tree {
        text.push_str("- topology: tree\n  cluster_default: true\n  tree:\n    switches:\n");
        for switch in tree(cluster) {
            let key = if matches!(switch.below, Below::Nodes(_)) { "nodes" } else { "children" };
            let (name, below) = (scalar(&switch.name), scalar(switch.below.list()));
            let _ = writeln!(text, "      - switch: {name}\n        {key}: {below}");
        }
    }
    if cluster.domains.names.len() > 0 {
        let blocks = blocks(cluster);
        let _ = writeln!(text, "- topology: block\n  cluster_default: {}\n  block:", !has_tree);
        let _ = writeln!(text, "    block_sizes:\n      - {}\n    blocks:", block_size(&blocks));
        for block in &blocks {
            let (name, nodes) = (scalar(block.name), scalar(&names(cluster, block.nodes)));
            let _ = writeln!(text, "      - block: {name}\n        nodes: {nodes}");
        }
    } else if !has_tree {
        text.push_str("- topology: flat\n  cluster_default: true\n  flat: true\n");
    }
    text
}

/// The `NodeName` lines of `slurm.conf`, one for each run of alike nodes. They need `GresTypes=gpu`.
pub(crate) fn node_lines(cluster: &Cluster) -> String {
    let mut text =
        String::from("# NodeName lines for slurm.conf, written by Bedplate; they need GresTypes=gpu\n");
    if cluster.kinds().iter().any(|kind| matches!(real_memory(kind), Some(RealMemory::OfNominal(_)))) {
        text.push_str(
            "# RealMemory is 95 % of the nominal memory where it is not known: Slurm drains nodes that report less\n",
        );
    }
    let mut start = 0;
    while start < cluster.node_count() {
        let first = NodeId(start);
        let is_alike = |node: &u32| alike(cluster, first, NodeId(*node));
        let end = start + (start..cluster.node_count()).take_while(is_alike).count() as u32;
        let nodes = names(cluster, NodeRange::new(start, end));
        let node = cluster.node(first);
        let _ = writeln!(text, "NodeName={nodes}{}{}", hardware(node), state(node.health(), node.reason()));
        start = end;
    }
    text
}

/// Whether two nodes get the same line.
fn alike(cluster: &Cluster, a: NodeId, b: NodeId) -> bool {
    let (a, b) = (cluster.node(a), cluster.node(b));
    let same_state = a.health() == b.health() && a.reason() == b.reason();
    std::ptr::eq(a.kind(), b.kind())
        && a.features() == b.features()
        && (same_state || state(a.health(), a.reason()) == state(b.health(), b.reason()))
}

fn hardware(node: Node<'_>) -> String {
    let kind = node.kind();
    let mut text = String::new();
    if let Some(vcpus) = kind.vcpus {
        let _ = write!(text, " CPUs={vcpus}");
    }
    if let Some(RealMemory::Stated(memory) | RealMemory::OfNominal(memory)) = real_memory(kind) {
        let _ = write!(text, " RealMemory={}", (memory.get() / 1_048_576.0).floor());
    }
    if let Some(accelerator) = &kind.accelerator {
        let _ = write!(text, " Gres=gpu:{accelerator}:{}", kind.accelerators);
    }
    let features: Vec<&str> = kind.instance.iter().chain(node.features()).map(String::as_str).collect();
    if !features.is_empty() {
        let _ = write!(text, " Feature={}", value(&features.join(",")));
    }
    text
}

/// What `RealMemory` is written from.
enum RealMemory {
    Stated(Bytes),
    /// A share of the nominal memory. The operating system never sees all of it, and Slurm drains a node that
    /// reports less than `RealMemory`.
    OfNominal(Bytes),
}

fn real_memory(kind: &NodeKind) -> Option<RealMemory> {
    match &kind.instance {
        Some(_) => kind
            .reported_memory
            .map(RealMemory::Stated)
            .or_else(|| Some(RealMemory::OfNominal(kind.memory? * 0.95))),
        None => kind.memory.map(RealMemory::Stated),
    }
}

/// A value of a line, in quotes where it has to be.
fn value(text: &str) -> String {
    let text = quotable(text);
    if text.contains(char::is_whitespace) { format!("\"{text}\"") } else { text }
}

/// Slurm's configuration knows fewer states: a degraded node stays in service, and one that is
/// draining or in maintenance is drained.
fn state(health: Health, reason: Option<&str>) -> String {
    let state = match health {
        Health::Healthy | Health::Degraded => "UNKNOWN",
        Health::Draining | Health::Drained | Health::Maintenance => "DRAIN",
        Health::Down => "DOWN",
    };
    match reason {
        Some(reason) if !reason.is_empty() => format!(" State={state} Reason=\"{}\"", quotable(reason)),
        _ => format!(" State={state}"),
    }
}

fn quotable(text: &str) -> String {
    let plain = |c: char| match c {
        '"' => '\'',
        '#' | '\\' => ' ',
        c if c.is_control() => ' ',
        c => c,
    };
    text.chars().map(plain).collect()
}

struct TreeSwitch {
    name: String,
    below: Below,
}

enum Below {
    Nodes(String),
    Switches(String),
}

impl Below {
    fn key(&self) -> &'static str {
        match self {
            Below::Nodes(_) => "Nodes",
            Below::Switches(_) => "Switches",
        }
    }

    fn list(&self) -> &str {
        match self {
            Below::Nodes(list) | Below::Switches(list) => list,
        }
    }
}

/// The tree as Slurm requires it: a switch has nodes or switches. One that has both gets a leaf for its nodes.
fn tree(cluster: &Cluster) -> Vec<TreeSwitch> {
    if cluster.switch_count() == 0 {
        let below = Below::Nodes(names(cluster, cluster.nodes()));
        return vec![TreeSwitch { name: "fabric".to_owned(), below }];
    }
    let children = children(cluster);
    let mut tree = Vec::with_capacity(children.len());
    for (switch, children) in cluster.switches().zip(&children) {
        let own = switch.own_nodes();
        let nodes = Below::Nodes(names(cluster, own));
        if children.is_empty() {
            tree.push(TreeSwitch { name: switch.name().to_owned(), below: nodes });
            continue;
        }
        let own_leaf = (!own.is_empty()).then(|| unused_name(cluster, &format!("{}-nodes", switch.name())));
        let below = own_leaf.as_deref().into_iter().chain(children.iter().map(|child| child.name()));
        let below = Below::Switches(compress_hostlist(below));
        tree.push(TreeSwitch { name: switch.name().to_owned(), below });
        tree.extend(own_leaf.map(|name| TreeSwitch { name, below: nodes }));
    }
    tree.extend(unplaced(cluster));
    tree
}

/// Slurm requires every node to be on a switch. Nodes with GPUs whose place is unknown get one of their own.
fn unplaced(cluster: &Cluster) -> Option<TreeSwitch> {
    let is_unplaced = |node: &NodeId| {
        let node = cluster.node(*node);
        node.switch().is_none() && !node.gpus().is_empty()
    };
    let nodes = compress_hostlist(
        cluster.nodes().into_iter().filter(is_unplaced).map(|node| cluster.node(node).name()),
    );
    (!nodes.is_empty())
        .then(|| TreeSwitch { name: unused_name(cluster, "unplaced"), below: Below::Nodes(nodes) })
}

fn children(cluster: &Cluster) -> Vec<Vec<Switch<'_>>> {
    let mut children = vec![Vec::new(); cluster.switch_count() as usize];
    for switch in cluster.switches() {
        if let Some(parent) = switch.parent() {
            children[parent.id().0 as usize].push(switch);
        }
    }
    children
}

fn unused_name(cluster: &Cluster, wanted: &str) -> String {
    let mut name = wanted.to_owned();
    while cluster.switches().any(|other| other.name() == name) {
        name.push('_');
    }
    name
}

struct Block<'a> {
    name: &'a str,
    nodes: NodeRange,
}

fn blocks(cluster: &Cluster) -> Vec<Block<'_>> {
    let domains = cluster.domains.names.len() as u32;
    if domains > 0 {
        let block =
            |domain| Block { name: cluster.domains.names.get(domain), nodes: cluster.domain_nodes(domain) };
        return (0..domains).map(block).collect();
    }
    if cluster.switch_count() == 0 {
        return vec![Block { name: "fabric", nodes: cluster.nodes() }];
    }
    let block = |switch: Switch<'_>| (switch.id(), switch.own_nodes());
    let leaves = cluster.switches().map(block).filter(|(_, nodes)| !nodes.is_empty());
    leaves.map(|(id, nodes)| Block { name: cluster.switch(id).name(), nodes }).collect()
}

/// Slurm plans with blocks of one size, and no block may be smaller.
fn block_size(blocks: &[Block<'_>]) -> u32 {
    blocks.iter().map(|block| block.nodes.len()).min().unwrap_or(1)
}

fn names(cluster: &Cluster, nodes: NodeRange) -> String {
    compress_hostlist(nodes.into_iter().map(|node| cluster.node(node).name()))
}

/// A plain YAML scalar where that is safe, else one in quotes. Names hold nothing that quotes must escape.
fn scalar(text: &str) -> String {
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic()) && !text.contains(':');
    let is_reserved = ["true", "false", "yes", "no", "on", "off", "null", "y", "n", "inf", "nan"]
        .iter()
        .any(|reserved| text.eq_ignore_ascii_case(reserved));
    if is_word && !is_reserved { text.to_owned() } else { format!("\"{text}\"") }
}
