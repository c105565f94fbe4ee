//! `bedplate cluster export CLUSTER --format F`

use bedplate_catalog::Catalog;
use bedplate_topology::{ExportFormat, export};
use serde_json::json;

use super::source::{Reading, load_all};
use crate::console::Console;
use crate::files;
use crate::stop::Stop;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate cluster export cluster.toml --as slurm-tree > topology.conf
  bedplate cluster export u-p6e-gb200x72:4 --as slurm-block
  bedplate cluster export cluster.toml --as slurm-yaml -o topology.yaml
  bedplate cluster export p5.48xlarge:64 --as slurm-nodes")]
pub(super) struct Arguments {
    /// INSTANCE:COUNT, or the files of one description
    #[arg(required = true, value_name = "CLUSTER")]
    cluster: Vec<String>,
    /// What to write: toml, slurm-tree, slurm-block, slurm-yaml or slurm-nodes
    #[arg(long = "as", value_name = "FORMAT", value_parser = format)]
    to: ExportFormat,
    #[command(flatten)]
    reading: Reading,
    /// Write here instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    out: Option<String>,
}

fn format(text: &str) -> Result<ExportFormat, String> {
    let names: Vec<&str> = ExportFormat::ALL.iter().map(|(name, _)| *name).collect();
    let found = ExportFormat::ALL.iter().find(|(name, _)| *name == text).map(|(_, format)| *format);
    found.ok_or_else(|| format!("choose one of {}", names.join(", ")))
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), Stop> {
    let cluster = load_all(&arguments.cluster, &arguments.reading, catalog)?;
    let text = export(&cluster, arguments.to);
    match &arguments.out {
        Some(path) => {
            files::write_text(path, &text)?;
            console.say(&format!(
                "wrote {path}: {} nodes, {} GPUs",
                cluster.node_count(),
                cluster.gpu_count()
            ));
            Ok(())
        }
        None if console.is_json() => console.json(&json!({ "format": arguments.to.name(), "text": text })),
        None => console.text(&text),
    }
}
