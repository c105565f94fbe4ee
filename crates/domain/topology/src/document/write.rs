//! Writing `cluster.toml` so that reading it gives the same cluster.

use std::fmt::{Display, Write as _};
use std::str::FromStr;

use bedplate_document::quote;
use bedplate_units::{Bandwidth, Bytes};

use crate::{Cluster, NodeId, NodeKind, NodeRange, compress_hostlist};

pub(crate) fn write(cluster: &Cluster) -> String {
    let mut text = format!("name = {}\n", quote::toml(cluster.name()));
    for kind in cluster.kinds().iter().filter(|kind| kind.instance.is_none()) {
        write_kind(&mut text, kind);
    }
    for nodes in
        runs(cluster, |cluster, node| (cluster.nodes.kind[node.0 as usize], cluster.node(node).features()))
    {
        write_group(&mut text, cluster, nodes);
    }
    for switch in cluster.switches() {
        let _ = write!(text, "\n[[switch]]\nname = {}\n", quote::toml(switch.name()));
        if let Some(parent) = switch.parent() {
            let _ = writeln!(text, "parent = {}", quote::toml(parent.name()));
        }
        if !switch.own_nodes().is_empty() {
            let _ = writeln!(text, "nodes = {}", names(cluster, switch.own_nodes()));
        }
        if switch.oversubscription() != 1.0 {
            let _ = writeln!(text, "oversubscription = {}", switch.oversubscription() as f32);
        }
    }
    for domain in 0..cluster.domains.names.len() as u32 {
        let name = quote::toml(cluster.domains.names.get(domain));
        let nodes = names(cluster, cluster.domain_nodes(domain));
        let _ = write!(text, "\n[[domain]]\nname = {name}\nnodes = {nodes}\n");
    }
    for storage in cluster.storage() {
        let (class, capacity) =
            (quote::toml(&storage.class), exact(storage.capacity, storage.capacity.get(), "B"));
        let _ = write!(text, "\n[[storage]]\nclass = {class}\ncapacity = {capacity}\n");
    }
    for nodes in runs(cluster, |cluster, node| condition(cluster, node)) {
        write_health(&mut text, cluster, nodes);
    }
    text
}

/// Runs of nodes with the same key, in node order.
fn runs<'a, K: PartialEq>(
    cluster: &'a Cluster,
    key: impl Fn(&'a Cluster, NodeId) -> K + 'a,
) -> impl Iterator<Item = NodeRange> + 'a {
    let mut start = 0;
    std::iter::from_fn(move || {
        if start >= cluster.node_count() {
            return None;
        }
        let first = key(cluster, NodeId(start));
        let is_alike = |node: &u32| key(cluster, NodeId(*node)) == first;
        let end = start + (start..cluster.node_count()).take_while(is_alike).count() as u32;
        let run = NodeRange::new(start, end);
        start = end;
        Some(run)
    })
}

fn write_kind(text: &mut String, kind: &NodeKind) {
    let _ = write!(text, "\n[[kind]]\nname = {}\n", quote::toml(&kind.name));
    if let Some(accelerator) = &kind.accelerator {
        let _ =
            writeln!(text, "accelerator = {}\ndomains = {:?}", quote::toml(accelerator), kind.domain_sizes);
    }
    if let Some(bandwidth) = kind.scale_up_bandwidth {
        let _ = writeln!(text, "scale_up_bandwidth = {}", exact_bandwidth(bandwidth));
    }
    if let Some(fabric) = &kind.scale_out {
        let _ = writeln!(text, "scale_out = {}", quote::toml(fabric));
    }
    if let Some(bandwidth) = kind.scale_out_bandwidth {
        let _ = writeln!(text, "scale_out_bandwidth = {}", exact_bandwidth(bandwidth));
    }
    if let Some(cards) = kind.network_cards {
        let _ = writeln!(text, "network_cards = {cards}");
    }
    if let Some(vcpus) = kind.vcpus {
        let _ = writeln!(text, "vcpus = {vcpus}");
    }
    if let Some(memory) = kind.memory {
        let _ = writeln!(text, "memory = {}", exact_bytes(memory));
    }
    if let Some(disks) = &kind.local_storage {
        let (class, size) = (quote::toml(&disks.class), exact_bytes(disks.device_size));
        let devices = disks.devices;
        let _ = writeln!(
            text,
            "local_storage = {{ class = {class}, devices = {devices}, device_size = {size} }}"
        );
    }
}

fn write_group(text: &mut String, cluster: &Cluster, nodes: NodeRange) {
    let Some(first) = nodes.first().map(|node| cluster.node(node)) else { return };
    let kind = first.kind();
    let (key, name) = match &kind.instance {
        Some(instance) => ("instance", instance),
        None => ("kind", &kind.name),
    };
    let _ = write!(text, "\n[[group]]\n{key} = {}\n", quote::toml(name));
    if let Some(server) = &kind.ultraserver {
        let _ = writeln!(text, "part_of = {}", quote::toml(server));
    }
    let _ = write!(text, "count = {}\nnodes = {}\n", nodes.len(), names(cluster, nodes));
    if let Some(memory) = kind.reported_memory {
        let _ = writeln!(text, "reported_memory = {}", exact_bytes(memory));
    }
    if !first.features().is_empty() {
        let features: Vec<String> = first.features().iter().map(|feature| quote::toml(feature)).collect();
        let _ = writeln!(text, "features = [{}]", features.join(", "));
    }
}

/// What [[health]] says about a node: state, reason and failed GPUs by number within the node.
fn condition(cluster: &Cluster, node: NodeId) -> (crate::Health, Option<&str>, Vec<u32>) {
    let gpus = cluster.node(node).gpus();
    let from = cluster.failed.partition_point(|gpu| gpu.0 < gpus.start());
    let failed = cluster.failed[from..].iter().take_while(|gpu| gpus.contains(**gpu));
    (cluster.health(node), cluster.reason(node), failed.map(|gpu| gpu.0 - gpus.start()).collect())
}

fn write_health(text: &mut String, cluster: &Cluster, nodes: NodeRange) {
    let Some(first) = nodes.first() else { return };
    let (health, reason, failed) = condition(cluster, first);
    if health == crate::Health::Healthy && reason.is_none() && failed.is_empty() {
        return;
    }
    let _ = write!(text, "\n[[health]]\nnodes = {}\nstate = \"{health}\"\n", names(cluster, nodes));
    if let Some(reason) = reason {
        let _ = writeln!(text, "reason = {}", quote::toml(reason));
    }
    if !failed.is_empty() {
        let _ = writeln!(text, "failed_gpus = {failed:?}");
    }
}

fn names(cluster: &Cluster, nodes: NodeRange) -> String {
    quote::toml(&compress_hostlist(nodes.into_iter().map(|node| cluster.node(node).name())))
}

fn exact_bytes(bytes: Bytes) -> String {
    exact(bytes, bytes.get(), "B")
}

fn exact_bandwidth(bandwidth: Bandwidth) -> String {
    exact(bandwidth, bandwidth.get(), "B/s")
}

/// A quantity as people write it, decimal or binary, or with all digits in its base unit where that would lose some.
fn exact<Q: Display + FromStr + PartialEq>(quantity: Q, number: f64, unit: &str) -> String {
    let is_exact = |text: &String| text.parse::<Q>().is_ok_and(|same| same == quantity);
    let short = [quantity.to_string(), format!("{quantity:#}")].into_iter().find(is_exact);
    quote::toml(&short.unwrap_or_else(|| format!("{number} {unit}")))
}
