//! `bedplate cluster meet CLUSTER NODE…`: where nodes meet, and the bandwidth between them.

use bedplate_catalog::Catalog;
use bedplate_diag::{Class, Diagnostic, Page, nearest, shown};
use bedplate_terminal::present::Facts;
use bedplate_terminal::{CliError, Console};
use bedplate_topology::{Cluster, GpuId, NodeId};
use serde_json::json;

use crate::clusters::{Reading, load_all};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate cluster meet cluster.toml n01 n05
  bedplate cluster meet u-p6e-gb200x72:2 n01 n18 n19")]
pub(crate) struct Arguments {
    /// INSTANCE:COUNT, or a cluster file
    cluster: String,
    /// Names of nodes
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    #[command(flatten)]
    reading: Reading,
}

#[derive(Debug, thiserror::Error)]
#[error("the cluster has no node called `{name}`")]
struct UnknownNode {
    name: String,
    near: Option<String>,
}

pub(super) static UNKNOWN_NODE: Page = Page {
    code: "cluster/unknown-node",
    class: Class::User,
    meaning: "The cluster has no node of that name.",
    remedy: "see the names with `bedplate cluster export CLUSTER --as slurm-nodes`",
};

impl Diagnostic for UnknownNode {
    fn page(&self) -> &'static Page {
        &UNKNOWN_NODE
    }

    fn help(&self) -> Option<String> {
        self.near.as_ref().map(|near| format!("did you mean `{near}`?"))
    }
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let cluster = load_all(std::slice::from_ref(&arguments.cluster), &arguments.reading, catalog)?;
    let nodes = arguments.nodes.iter().map(|name| find(name, &cluster)).collect::<Result<Vec<_>, _>>()?;
    let mut gpus: Vec<GpuId> = nodes.iter().flat_map(|node| cluster.node(*node).gpus()).collect();
    gpus.sort_unstable();
    gpus.dedup();
    let level = match gpus.is_empty() {
        true => cluster.level_of_nodes(nodes.iter().copied()),
        false => cluster.level_of(gpus.iter().copied()),
    };
    let hops = gpus.first().zip(gpus.last()).map(|(first, last)| cluster.hops(*first, *last));
    let scale_up = cluster.scale_up_bandwidth(gpus.iter().copied());
    let scale_out = cluster.scale_out_bandwidth(gpus.iter().copied()).map(|network| network.per_gpu);
    if console.is_json() {
        return console.json(&json!({
            "nodes": arguments.nodes,
            "gpus": gpus.len(),
            "level": level.map(|level| level.to_string()),
            "hops": hops,
            "scale_up_one_way_bytes_per_s_per_gpu": scale_up.map(|rate| rate.get()),
            "scale_out_one_way_bytes_per_s_per_gpu": scale_out.map(|rate| rate.get()),
        }));
    }
    let mut facts = Facts::default();
    facts
        .add_known("meet at", level)
        .add_known("hops", hops)
        .add(
            "scale-up",
            scale_up.map_or("none: they share no scale-up domain".into(), |rate| {
                format!("{rate} per GPU, one way")
            }),
        )
        .add(
            "scale-out",
            scale_out.map_or("unknown".into(), |rate| format!("{rate} per GPU, one way, when all send")),
        );
    console.text(&format!(
        "{} GPUs in {}\n{}",
        gpus.len(),
        arguments.nodes.join(", "),
        facts.render(console.width())
    ))
}

fn find(name: &str, cluster: &Cluster) -> Result<NodeId, UnknownNode> {
    cluster.find_node(name).ok_or_else(|| {
        let names = cluster.nodes().into_iter().map(|node| cluster.node(node).name());
        // Thousands of numbered names always include a close one, so suggestions only help in small clusters.
        let near = if cluster.node_count() <= 64 { nearest(name, names) } else { None };
        UnknownNode { name: shown(name), near: near.map(str::to_owned) }
    })
}
