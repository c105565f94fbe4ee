//! `topology.yaml` of Slurm 25.05 and later.

use bedplate_diag::Source;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::Spanned;

use super::assemble::{At, Block, Found, Switch};
use super::topology::check_switch;
use crate::{ImportOptions, TopologyError, yaml};

/// One topology of the file. Kinds that describe neither tree nor blocks are known and passed over.
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
    if let Some(wanted) = &options.topology {
        keep_only(&mut topologies, wanted, source)?;
    }
    topologies.sort_by_key(|topology| !topology.cluster_default);
    if let Some(tree) = topologies.iter_mut().find_map(|topology| topology.tree.take()) {
        add_tree(tree, source, file, found)?;
    }
    if let Some(blocks) = topologies.iter_mut().find_map(|topology| topology.block.take()) {
        add_blocks(blocks, file, found);
    }
    Ok(())
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
