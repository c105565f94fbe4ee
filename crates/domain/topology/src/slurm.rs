//! Slurm's files: `slurm.conf`, `topology.conf` (tree and block) and `topology.yaml`.
//!
//! **Nodes** come from the `NodeName` lines of `slurm.conf`: names in Slurm's list notation, `Gres=gpu:…`,
//! `CPUs` or `Sockets` × `CoresPerSocket` × `ThreadsPerCore`, `RealMemory`, `Feature`, `State` and `Reason`;
//! `NodeName=DEFAULT` lines, `DownNodes` lines, `\` at the end of a line and comments work as in Slurm. Other
//! lines are skipped. What a node is follows from the first of these that applies: the `instance` option;
//! a feature that is the name of a catalog instance; the GRES type, found among the catalog's accelerators.
//! Whatever contradicts the instance is refused: a different count or type of GPUs, a different instance as a feature.
//! A node without `gpu` GRES is a machine without accelerators. Without any `NodeName` line, the nodes are
//! those of the topology, all of the `instance` given.
//!
//! **The tree** comes from `SwitchName` lines with `Nodes` or `Switches`; `LinkSpeed` is ignored. The
//! output of `scontrol show topology` reads the same. With a tree, every node with GPUs must be attached to a switch.
//!
//! **Blocks** (`BlockName` lines) are scale-up domains where their nodes are of a kind that has domains over
//! several nodes: an instance that UltraServers are made of, or an accelerator of such instances (GB200,
//! GB300). Otherwise they are leaves; next to a tree such blocks add nothing and are skipped. The `blocks`
//! option overrules this. `BlockSizes` is checked for form and not kept.
//!
//! **`topology.yaml`** (Slurm 25.05 and later) may hold several topologies, even of different nodes. The one
//! to use is named by the `topology` option; else it is the first with `cluster_default: true`, else the
//! first. Without the option, a tree takes the blocks of the first other topology that divides it
//! further, each block below one of its leaves, and blocks the tree above them. Nodes that the topology
//! leaves out belong to others of the file and are attached to no switch.
//!
//! `Include` lines are refused: give the included file as a further input.

mod assemble;
mod line;
mod nodes;
mod topology;
mod write;
mod yaml;

use bedplate_catalog::Catalog;
use bedplate_diag::Source;

use crate::{Cluster, ImportOptions, TopologyError};

pub(crate) use write::{block_conf, node_lines, topology_yaml, tree_conf};

/// Reads any of Slurm's files, in any order, as one cluster.
pub(crate) fn read(
    sources: &[Source<'_>],
    options: &ImportOptions,
    catalog: &Catalog,
) -> Result<Cluster, TopologyError> {
    if options.topology.is_some() && !sources.iter().any(|source| is_yaml(source.text)) {
        let place = sources.first().map_or_else(|| Source::new("slurm", "").whole(), Source::whole);
        let format = "Slurm's files without topology.yaml";
        return Err(TopologyError::UnusedOption { option: "topology", format, place });
    }
    let mut found = assemble::Found::default();
    for (file, source) in sources.iter().enumerate() {
        if is_yaml(source.text) {
            yaml::read(*source, file, options, &mut found)?;
        } else {
            read_conf(*source, file, &mut found)?;
        }
    }
    assemble::cluster(found, sources, options, catalog)
}

/// Whether a text is `topology.yaml`: its first meaningful line opens a list or a document.
pub(crate) fn is_yaml(text: &str) -> bool {
    let says_something = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let first = text.lines().map(str::trim).find(says_something);
    first.is_some_and(|line| line.starts_with("- ") || line == "-" || line.starts_with("---"))
}

fn read_conf(source: Source<'_>, file: usize, found: &mut assemble::Found) -> Result<(), TopologyError> {
    let is_topology_file = topology::looks_like(source);
    for line in line::Lines::new(source.text) {
        let at = assemble::At { file, line: line.number };
        if let Some(included) = line.included() {
            return Err(TopologyError::Include {
                file: included.to_owned(),
                place: source.line(line.number),
            });
        }
        let Some(first) = line.first_key() else { continue };
        match first.to_ascii_lowercase().as_str() {
            "nodename" => found.nodes.add_line(&line, source, at)?,
            "downnodes" => found.nodes.add_down_line(&line, source, at)?,
            "switchname" | "blockname" | "blocksizes" => topology::read_line(&line, source, at, found)?,
            "clustername" => found.name = line.pairs(source)?.first().map(|pair| pair.value.to_string()),
            _ if is_topology_file => {
                return Err(topology::unknown_first_key(first, source.line(line.number)));
            }
            _ => {}
        }
    }
    topology::check_some_line_is_known(source)
}
