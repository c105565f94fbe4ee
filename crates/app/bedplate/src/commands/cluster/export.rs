//! `bedplate cluster export CLUSTER --as FORMAT`

use bedplate_catalog::Catalog;
use bedplate_terminal::{CliError, Console, choice};
use bedplate_topology::{ExportFormat, export};
use serde_json::json;

use crate::clusters::{Reading, load_all, write_cluster};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate cluster export cluster.toml --as slurm-tree > topology.conf
  bedplate cluster export u-p6e-gb200x72:4 --as slurm-block
  bedplate cluster export cluster.toml --as slurm-yaml -o topology.yaml
  bedplate cluster export p5.48xlarge:64 --as slurm-nodes")]
pub(crate) struct Arguments {
    /// INSTANCE:COUNT, or the files of one description
    #[arg(required = true, value_name = "CLUSTER")]
    cluster: Vec<String>,
    /// What to write
    #[arg(long = "as", value_name = "FORMAT", value_parser = choice(&ExportFormat::ALL))]
    to: ExportFormat,
    #[command(flatten)]
    reading: Reading,
    /// Write here instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    out: Option<String>,
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let cluster = load_all(&arguments.cluster, &arguments.reading, catalog)?;
    let text = export(&cluster, arguments.to);
    match &arguments.out {
        Some(path) => write_cluster(&cluster, &text, path, console),
        None if console.is_json() => console.json(&json!({ "format": arguments.to.name(), "text": text })),
        None => console.text(&text),
    }
}
