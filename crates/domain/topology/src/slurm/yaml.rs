//! `topology.yaml` of Slurm 25.05 and later.

use std::collections::{BTreeSet, HashMap};

use bedplate_diag::Source;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::Spanned;

use super::assemble::{At, Block, Found, Switch};
use super::topology::check_switch;
use crate::{ImportOptions, TopologyError, expand_hostlist, yaml};

/// One topology of the file. Kinds that describe neither tree nor blocks are recognised and skipped.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Topology {
    topology: Spanned<String>,
    #[serde(default)]
    cluster_default: bool,
    tree: Option<Tree>,
    block: Option<Blocks>,
    #[serde(rename = "flat")]
    _flat: Option<IgnoredAny>,
    #[serde(rename = "ring")]
    _ring: Option<IgnoredAny>,
    #[serde(rename = "torus3d")]
    _torus: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tree {
    switches: Vec<TreeSwitch>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TreeSwitch {
    switch: Spanned<String>,
    nodes: Option<String>,
    children: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Blocks {
    #[serde(rename = "block_sizes")]
    _sizes: Option<Vec<u32>>,
    blocks: Vec<OneBlock>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OneBlock {
    block: Spanned<String>,
    nodes: Option<String>,
}

pub(super) fn read(
    source: Source<'_>,
    file: usize,
    options: &ImportOptions,
    found: &mut Found,
) -> Result<(), TopologyError> {
    let mut topologies: Vec<Topology> = yaml::parse(source, "Slurm's topology.yaml")?;
    found.tree_is_partial |= topologies.len() > 1;
    if let Some(wanted) = &options.topology {
        keep_only(&mut topologies, wanted, source)?;
    }
    // Stable: the first default comes first, else the first of all.
    topologies.sort_by_key(|topology| !topology.cluster_default);
    let mut topologies = topologies.into_iter();
    let Some(mut chosen) = topologies.next() else { return Ok(()) };
    chosen.complete(topologies);
    if let Some(tree) = chosen.tree {
        add_tree(tree, source, file, found)?;
    }
    if let Some(blocks) = chosen.block {
        add_blocks(blocks, file, found);
    }
    Ok(())
}

impl Topology {
    /// Adds blocks that divide the nodes of this tree further, or the tree above these blocks.
    /// Topologies of other nodes describe other parts of the cluster and are skipped.
    fn complete(&mut self, others: impl Iterator<Item = Topology>) {
        for other in others {
            match (&self.tree, &self.block) {
                (Some(tree), None) => self.block = other.block.filter(|blocks| tree.is_divided_by(blocks)),
                (None, Some(blocks)) => self.tree = other.tree.filter(|tree| tree.is_divided_by(blocks)),
                _ => return,
            }
        }
    }
}

impl Tree {
    /// Whether each of the blocks is below one leaf of this tree.
    fn is_divided_by(&self, blocks: &Blocks) -> bool {
        let mut leaf_of = HashMap::new();
        for (leaf, switch) in self.switches.iter().enumerate() {
            let names = switch.nodes.as_deref().map(expand_hostlist).transpose().unwrap_or_default();
            leaf_of.extend(names.into_iter().flatten().map(|name| (name, leaf)));
        }
        blocks.blocks.iter().all(|block| {
            let names = expand_hostlist(block.nodes.as_deref().unwrap_or_default()).unwrap_or_default();
            let leaves: BTreeSet<Option<&usize>> = names.iter().map(|name| leaf_of.get(name)).collect();
            leaves.len() == 1 && !leaves.contains(&None)
        })
    }
}

fn keep_only(topologies: &mut Vec<Topology>, wanted: &str, source: Source<'_>) -> Result<(), TopologyError> {
    let names = topologies.iter().map(|topology| topology.topology.value.as_str());
    let near = bedplate_diag::nearest(wanted, names).map(str::to_owned);
    topologies.retain(|topology| topology.topology.value == wanted);
    if topologies.is_empty() {
        let (what, name, place) = ("topology", wanted.to_owned(), source.whole());
        return Err(TopologyError::Undefined { what, name, near, place });
    }
    Ok(())
}

fn add_tree(tree: Tree, source: Source<'_>, file: usize, found: &mut Found) -> Result<(), TopologyError> {
    for switch in tree.switches {
        let at = at(&switch.switch, file);
        let switch = Switch { name: switch.switch.value, nodes: switch.nodes, children: switch.children, at };
        check_switch(&switch, &|| source.line(at.line))?;
        found.switches.push(switch);
    }
    Ok(())
}

fn add_blocks(blocks: Blocks, file: usize, found: &mut Found) {
    found.blocks.extend(blocks.blocks.into_iter().map(|block| Block {
        at: at(&block.block, file),
        name: block.block.value,
        nodes: block.nodes.unwrap_or_default(),
    }));
}

fn at(name: &Spanned<String>, file: usize) -> At {
    At { file, line: name.referenced.line() as usize }
}
