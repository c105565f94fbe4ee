//! `bedplate cluster check FILE…`

use bedplate_catalog::Catalog;
use bedplate_terminal::{CliError, Console};
use bedplate_topology::{Cluster, Health};
use serde_json::json;

use crate::clusters::{Reading, load_all};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate cluster check cluster.toml
  bedplate cluster check topology.conf slurm.conf")]
pub(crate) struct Arguments {
    /// INSTANCE:COUNT, or the files of one description
    #[arg(required = true, value_name = "CLUSTER")]
    cluster: Vec<String>,
    #[command(flatten)]
    reading: Reading,
}

/// A valid description may still lack what planning needs; each remark names something missing.
pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let cluster = load_all(&arguments.cluster, &arguments.reading, catalog)?;
    let remarks = remarks(&cluster);
    let (nodes, gpus) = (cluster.node_count(), cluster.gpu_count());
    if console.is_json() {
        return console.json(&json!({ "is_valid": true, "nodes": nodes, "gpus": gpus, "remarks": remarks }));
    }
    console.line(&format!("valid: {nodes} nodes, {gpus} GPUs, {} switches", cluster.switch_count()))?;
    for remark in remarks {
        console.line(&format!("  note: {remark}"))?;
    }
    Ok(())
}

fn remarks(cluster: &Cluster) -> Vec<String> {
    let mut remarks = Vec::new();
    for kind in cluster.kinds() {
        let name = &kind.name;
        if kind.accelerators > 0 && kind.scale_out_bandwidth.is_none() {
            remarks.push(format!("the network bandwidth of {name} is unknown; name its --instance"));
        }
        if kind.accelerators > 1 && kind.scale_up_bandwidth.is_none() {
            remarks.push(format!("no scale-up fabric is known for {name}"));
        }
    }
    if cluster.switch_count() == 0 && cluster.node_count() > 1 {
        remarks.push("no switches are given, so the network counts as flat and non-blocking".into());
    }
    for (name, health) in Health::ALL.iter().filter(|(_, health)| !health.takes_work()) {
        let nodes = cluster.nodes().into_iter().filter(|node| cluster.health(*node) == *health).count();
        if nodes > 0 {
            remarks.push(format!("{nodes} nodes are {name}"));
        }
    }
    remarks
}
