//! `bedplate cluster import FILE…`

use bedplate_catalog::Catalog;
use bedplate_terminal::{CliError, Console};
use bedplate_topology::{ExportFormat, export};

use super::show::cluster_json;
use crate::clusters::{Reading, load_all, write_cluster};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate cluster import topology.conf slurm.conf -o cluster.toml
  aws ec2 describe-instance-topology | bedplate cluster import - --name prod
  kubectl get nodes -o json | bedplate cluster import -
  nvidia-smi topo -m | bedplate cluster import - --accelerator h100
  bedplate cluster import topology.conf --instance p5.48xlarge")]
pub(crate) struct Arguments {
    /// Files of one description; `-` reads standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    #[command(flatten)]
    reading: Reading,
    /// Write here instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    out: Option<String>,
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let cluster = load_all(&arguments.files, &arguments.reading, catalog)?;
    let text = export(&cluster, ExportFormat::Document);
    match &arguments.out {
        Some(path) => write_cluster(&cluster, &text, path, console)?,
        None if !console.is_json() => console.text(&text)?,
        None => {}
    }
    if console.is_json() {
        console.json(&cluster_json(&cluster, &cluster.summary()))?;
    }
    Ok(())
}
