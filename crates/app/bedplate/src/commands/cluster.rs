//! `bedplate cluster …`: a concrete cluster and its topology.

mod check;
mod export;
mod import;
mod meet;
mod show;

use bedplate_diag::Page;
use bedplate_terminal::{CliError, Console, Context};

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  bedplate cluster show p5.48xlarge:64
  bedplate cluster import topology.conf slurm.conf -o cluster.toml
  kubectl get nodes -o json | bedplate cluster import -
  bedplate cluster export cluster.toml --as slurm-tree
  bedplate cluster meet cluster.toml n01 n05
  bedplate cluster check cluster.toml
  bedplate cluster show context:site

A cluster is INSTANCE:COUNT (several joined by `+`), context:NAME for a running
Slurm, or a file: cluster.toml, Slurm's topology.conf or topology.yaml with
slurm.conf, EC2 DescribeInstanceTopology JSON, a Kubernetes node list, or the
output of `nvidia-smi topo -m`. See docs/cluster.md.")]
pub(crate) enum Arguments {
    /// Nodes, levels and bandwidths of a cluster
    Show(show::Arguments),
    /// Read a foreign description and write cluster.toml
    Import(import::Arguments),
    /// Write a cluster as Slurm files or cluster.toml
    Export(export::Arguments),
    /// Where nodes meet, and the bandwidth between them
    Meet(meet::Arguments),
    /// Validate a description and summarise it
    Check(check::Arguments),
}

pub(crate) fn run(arguments: Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let catalog = context.load_catalog()?;
    match arguments {
        Arguments::Show(arguments) => show::run(&arguments, &catalog, console),
        Arguments::Import(arguments) => import::run(&arguments, &catalog, console),
        Arguments::Export(arguments) => export::run(&arguments, &catalog, console),
        Arguments::Meet(arguments) => meet::run(&arguments, &catalog, console),
        Arguments::Check(arguments) => check::run(&arguments, &catalog, console),
    }
}

pub(crate) const PAGES: &[&Page] = &[&meet::UNKNOWN_NODE];
