//! From what Slurm's files say to a cluster.

use std::collections::{HashMap, HashSet};

use bedplate_catalog::Catalog;
use bedplate_diag::{Place, Source, nearest};
use bedplate_units::Bytes;

use super::nodes::{DownLine, Fields, Gpus, NodeLine, Nodes, hostlist};
use crate::draft::{Culprit, Draft, DraftSwitch, MAX_NODES, check_limit, shown};
use crate::kind::{accelerator_is_multi_node, find_accelerator, instance_is_multi_node};
use crate::{Blocks, Cluster, ImportOptions, NodeKind, TopologyError};

/// Everything that the files say, in their order.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) name: Option<String>,
    pub(super) nodes: Nodes,
    pub(super) switches: Vec<Switch>,
    pub(super) blocks: Vec<Block>,
}

/// A line of one of the sources, counted from 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub(super) file: usize,
    pub(super) line: usize,
}

#[derive(Debug)]
pub(super) struct Switch {
    pub(super) name: String,
    pub(super) nodes: Option<String>,
    pub(super) children: Option<String>,
    pub(super) at: At,
}

#[derive(Debug)]
pub(super) struct Block {
    pub(super) name: String,
    pub(super) nodes: String,
    pub(super) at: At,
}

pub(super) fn cluster(
    found: Found,
    sources: &[Source<'_>],
    options: &ImportOptions,
    catalog: &Catalog,
) -> Result<Cluster, TopologyError> {
    let mut assembly = Assembly::new(sources, options, catalog);
    assembly.draft.name = options.name.clone().or(found.name.clone()).unwrap_or_else(|| "slurm".to_owned());
    if found.nodes.is_empty() {
        assembly.add_nodes_of_topology(&found)?;
    }
    for line in &found.nodes.lines {
        assembly.add_node_line(line)?;
    }
    for line in &found.nodes.down {
        assembly.add_down_line(line)?;
    }
    assembly.add_switches(&found.switches)?;
    assembly.add_blocks(&found.blocks)?;
    assembly.finish(!found.switches.is_empty())
}

struct Assembly<'a> {
    sources: &'a [Source<'a>],
    options: &'a ImportOptions,
    catalog: &'a Catalog,
    draft: Draft,
    /// Where the nodes and switches of the draft stand.
    node_at: Vec<At>,
    switch_at: Vec<At>,
    nodes: HashMap<String, u32>,
    switches: HashMap<String, u32>,
    domains: HashSet<String>,
    kinds: HashMap<KindKey, u16>,
    /// Position of the next node below its switch.
    next_order: u32,
}

/// What decides a node's kind.
#[derive(Debug, PartialEq, Eq, Hash)]
struct KindKey {
    gpus: Option<Gpus>,
    vcpus: Option<u32>,
    memory_mib: Option<u64>,
    features: Vec<String>,
}

impl<'a> Assembly<'a> {
    fn new(sources: &'a [Source<'a>], options: &'a ImportOptions, catalog: &'a Catalog) -> Self {
        Self {
            sources,
            options,
            catalog,
            draft: Draft::default(),
            node_at: Vec::new(),
            switch_at: Vec::new(),
            nodes: HashMap::new(),
            switches: HashMap::new(),
            domains: HashSet::new(),
            kinds: HashMap::new(),
            next_order: 0,
        }
    }

    fn place(&self, at: At) -> Place {
        self.sources[at.file].line(at.line)
    }

    fn source(&self, at: At) -> Source<'a> {
        self.sources[at.file]
    }

    /// Adds a node that must be new.
    fn add_node(&mut self, name: &str, kind: u16, at: At) -> Result<u32, TopologyError> {
        let index = self.draft.nodes.len() as u32;
        check_limit("nodes", u64::from(index) + 1, MAX_NODES, || self.place(at))?;
        if self.nodes.insert(name.to_owned(), index).is_some() {
            return Err(TopologyError::Duplicate { what: "node", name: shown(name), place: self.place(at) });
        }
        self.draft.add_node(name, kind);
        self.node_at.push(at);
        Ok(index)
    }

    fn add_node_line(&mut self, line: &NodeLine) -> Result<(), TopologyError> {
        let names = hostlist(&line.names, self.source(line.at), line.at)?;
        let kind = self.kind_of(line)?;
        names.visit(|name| {
            let index = self.add_node(name, kind, line.at)?;
            let node = &mut self.draft.nodes[index as usize];
            node.health = line.fields.health;
            node.reason.clone_from(&line.fields.reason);
            Ok(())
        })
    }

    fn add_down_line(&mut self, line: &DownLine) -> Result<(), TopologyError> {
        let names = hostlist(&line.names, self.source(line.at), line.at)?;
        names.visit(|name| {
            let index = self.node_index(name, line.at)?;
            let node = &mut self.draft.nodes[index as usize];
            node.health = line.health;
            node.reason.clone_from(&line.reason);
            Ok(())
        })
    }

    /// Without `slurm.conf` the nodes are those that switches and blocks name.
    fn add_nodes_of_topology(&mut self, found: &Found) -> Result<(), TopologyError> {
        let of_switches =
            found.switches.iter().filter_map(|switch| Some((switch.nodes.as_deref()?, switch.at)));
        let of_blocks = found.blocks.iter().map(|block| (block.nodes.as_str(), block.at));
        for (names, at) in of_switches.chain(of_blocks) {
            let list = hostlist(names, self.source(at), at)?;
            list.visit(|name| {
                if self.nodes.contains_key(name) {
                    return Ok(());
                }
                let kind = self.kind_without_description(name, at)?;
                self.add_node(name, kind, at).map(drop)
            })?;
        }
        Ok(())
    }

    fn kind_without_description(&mut self, node: &str, at: At) -> Result<u16, TopologyError> {
        let key = KindKey { gpus: None, vcpus: None, memory_mib: None, features: Vec::new() };
        if let Some(kind) = self.kinds.get(&key) {
            return Ok(*kind);
        }
        let Some(instance) = &self.options.instance else {
            let remedy = "give slurm.conf as a further input, or name the instance with `--instance`";
            return Err(TopologyError::MissingGpuType { node: shown(node), remedy, place: self.place(at) });
        };
        let kind = self.instance_kind(instance, at)?;
        Ok(self.remember(key, kind))
    }

    fn kind_of(&mut self, line: &NodeLine) -> Result<u16, TopologyError> {
        let fields = &line.fields;
        let key = KindKey {
            gpus: fields.gpus.clone(),
            vcpus: fields.vcpus(),
            memory_mib: fields.memory_mib,
            features: fields.features.clone(),
        };
        if let Some(kind) = self.kinds.get(&key) {
            return Ok(*kind);
        }
        let kind = self.describe(line)?;
        Ok(self.remember(key, kind))
    }

    fn remember(&mut self, key: KindKey, kind: NodeKind) -> u16 {
        let number = self.draft.kinds.intern(kind);
        self.kinds.insert(key, number);
        number
    }

    /// What a node is: by option, by feature, by GRES type.
    fn describe(&self, line: &NodeLine) -> Result<NodeKind, TopologyError> {
        let fields = &line.fields;
        let by_option = self.options.instance.as_deref().filter(|_| fields.gpus.is_some());
        let by_feature =
            || fields.features.iter().map(String::as_str).find(|name| self.catalog.instance(name).is_ok());
        if let Some(instance) = by_option.or_else(by_feature) {
            let kind = self.instance_kind(instance, line.at)?;
            self.check_gpu_count(&kind, line)?;
            return Ok(kind);
        }
        let kind = match &fields.gpus {
            Some(gpus) => self.accelerator_kind(gpus, line)?,
            None => NodeKind::bare("cpu"),
        };
        Ok(with_host(kind, fields))
    }

    fn instance_kind(&self, name: &str, at: At) -> Result<NodeKind, TopologyError> {
        match self.catalog.instance(name) {
            Ok(instance) => Ok(NodeKind::from_instance(instance, self.catalog)),
            Err(source) => Err(TopologyError::UnknownHardware { source, place: self.place(at) }),
        }
    }

    fn check_gpu_count(&self, kind: &NodeKind, line: &NodeLine) -> Result<(), TopologyError> {
        match &line.fields.gpus {
            Some(gpus) if gpus.count != kind.accelerators => Err(TopologyError::GpuCount {
                node: shown(&line.names),
                instance: kind.name.clone(),
                found: gpus.count,
                expected: kind.accelerators,
                place: self.place(line.at),
            }),
            _ => Ok(()),
        }
    }

    fn accelerator_kind(&self, gpus: &Gpus, line: &NodeLine) -> Result<NodeKind, TopologyError> {
        let Some(name) = gpus.kind.as_ref().or(self.options.accelerator.as_ref()) else {
            return Err(TopologyError::MissingGpuType {
                node: shown(&line.names),
                remedy: "write the type, as in `Gres=gpu:h100:8`, or name it with `--accelerator`",
                place: self.place(line.at),
            });
        };
        let accelerator = find_accelerator(name, self.catalog)
            .map_err(|source| TopologyError::UnknownHardware { source, place: self.place(line.at) })?;
        check_limit("GPUs in one node", gpus.count.into(), crate::draft::MAX_GPUS_PER_NODE, || {
            self.place(line.at)
        })?;
        Ok(NodeKind::from_accelerator(accelerator, gpus.count, self.catalog))
    }

    fn add_switches(&mut self, switches: &[Switch]) -> Result<(), TopologyError> {
        for switch in switches {
            self.add_switch(&switch.name, switch.at)?;
        }
        for (index, switch) in switches.iter().enumerate() {
            if let Some(nodes) = &switch.nodes {
                self.hang_nodes(nodes, index as u32, switch.at)?;
            }
            if let Some(children) = &switch.children {
                self.hang_switches(children, index as u32, switch.at)?;
            }
        }
        Ok(())
    }

    fn add_switch(&mut self, name: &str, at: At) -> Result<u32, TopologyError> {
        let index = self.draft.switches.len() as u32;
        if self.switches.insert(name.to_owned(), index).is_some() {
            return Err(TopologyError::Duplicate {
                what: "switch",
                name: shown(name),
                place: self.place(at),
            });
        }
        self.draft.switches.push(DraftSwitch::new(name, index));
        self.switch_at.push(at);
        Ok(index)
    }

    fn hang_nodes(&mut self, names: &str, switch: u32, at: At) -> Result<(), TopologyError> {
        let list = hostlist(names, self.source(at), at)?;
        list.visit(|name| {
            let node = self.node_index(name, at)? as usize;
            if let Some(first) = self.draft.nodes[node].switch {
                return Err(self.two_parents("node", name, first, switch, at));
            }
            self.draft.nodes[node].switch = Some(switch);
            self.draft.nodes[node].order = self.next_order;
            self.next_order += 1;
            Ok(())
        })
    }

    fn hang_switches(&mut self, names: &str, parent: u32, at: At) -> Result<(), TopologyError> {
        let list = hostlist(names, self.source(at), at)?;
        let mut order = 0;
        list.visit(|name| {
            let Some(child) = self.switches.get(name).map(|child| *child as usize) else {
                let known = self.draft.switches.iter().map(|switch| switch.name.as_str());
                return Err(undefined("switch", name, known, self.place(at)));
            };
            if let Some(first) = self.draft.switches[child].parent {
                return Err(self.two_parents("switch", name, first, parent, at));
            }
            self.draft.switches[child].parent = Some(parent);
            self.draft.switches[child].order = order;
            order += 1;
            Ok(())
        })
    }

    fn two_parents(&self, what: &'static str, name: &str, first: u32, second: u32, at: At) -> TopologyError {
        let place = self.place(at);
        if first == second {
            return TopologyError::Duplicate { what, name: shown(name), place };
        }
        let switch = |index: u32| self.draft.switches[index as usize].name.clone();
        TopologyError::TwoParents {
            what,
            name: shown(name),
            first: switch(first),
            second: switch(second),
            place,
        }
    }

    fn add_blocks(&mut self, blocks: &[Block]) -> Result<(), TopologyError> {
        let has_tree = !self.draft.switches.is_empty();
        for block in blocks {
            let names = hostlist(&block.nodes, self.source(block.at), block.at)?;
            let mut nodes = Vec::with_capacity(names.count as usize);
            names.visit(|name| {
                nodes.push(self.node_index(name, block.at)?);
                Ok::<(), TopologyError>(())
            })?;
            if self.is_domain(&nodes) {
                self.add_domain(block, &nodes)?;
            } else if !has_tree {
                let switch = self.add_switch(&block.name, block.at)?;
                self.hang_nodes(&block.nodes, switch, block.at)?;
            }
        }
        Ok(())
    }

    fn is_domain(&self, nodes: &[u32]) -> bool {
        match self.options.blocks {
            Blocks::Domains => true,
            Blocks::Leaves => false,
            Blocks::Automatic => {
                // Nodes of a block are alike, so the first one with GPUs speaks for all.
                let kinds =
                    nodes.iter().map(|node| self.draft.kinds.get(self.draft.nodes[*node as usize].kind));
                let first = kinds.into_iter().find(|kind| kind.accelerators > 0);
                first.is_some_and(|kind| match (&kind.instance, &kind.accelerator) {
                    (Some(instance), _) => instance_is_multi_node(instance, self.catalog),
                    (None, Some(accelerator)) => accelerator_is_multi_node(accelerator, self.catalog),
                    (None, None) => false,
                })
            }
        }
    }

    fn add_domain(&mut self, block: &Block, nodes: &[u32]) -> Result<(), TopologyError> {
        if !self.domains.insert(block.name.clone()) {
            let (what, name) = ("block", shown(&block.name));
            return Err(TopologyError::Duplicate { what, name, place: self.place(block.at) });
        }
        let domain = self.draft.domains.len() as u32;
        self.draft.domains.push(block.name.clone());
        for node in nodes {
            let node = &mut self.draft.nodes[*node as usize];
            if let Some(first) = node.domain.replace(domain) {
                let (name, first) = (shown(&node.name), self.draft.domains[first as usize].clone());
                let (second, place) = (block.name.clone(), self.place(block.at));
                return Err(TopologyError::TwoParents { what: "node", name, first, second, place });
            }
        }
        Ok(())
    }

    fn node_index(&self, name: &str, at: At) -> Result<u32, TopologyError> {
        let known = || self.draft.nodes.iter().map(|node| node.name.as_str());
        self.nodes.get(name).copied().ok_or_else(|| undefined("node", name, known(), self.place(at)))
    }

    fn finish(self, has_tree: bool) -> Result<Cluster, TopologyError> {
        for (node, at) in self.draft.nodes.iter().zip(&self.node_at) {
            if has_tree && node.switch.is_none() && self.draft.kinds.get(node.kind).accelerators > 0 {
                return Err(TopologyError::WithoutSwitch { node: shown(&node.name), place: self.place(*at) });
            }
        }
        let whole = self.sources.first().map_or_else(|| Source::new("slurm", "").whole(), Source::whole);
        let (sources, node_at, switch_at) = (self.sources, self.node_at, self.switch_at);
        let place = |at: &At| sources[at.file].line(at.line);
        self.draft.build(&|culprit| match culprit {
            Culprit::Node(index) => place(&node_at[index]),
            Culprit::Switch(index) => place(&switch_at[index]),
            Culprit::Whole => whole.clone(),
        })
    }
}

fn with_host(kind: NodeKind, fields: &Fields) -> NodeKind {
    let memory = fields.memory_mib.map(|mebibytes| Bytes::new((mebibytes * 1_048_576) as f64));
    NodeKind { vcpus: fields.vcpus(), memory, ..kind }
}

fn undefined<'n>(
    what: &'static str,
    name: &str,
    known: impl Iterator<Item = &'n str>,
    place: Place,
) -> TopologyError {
    let near = nearest(name, known.take(10_000)).map(str::to_owned);
    TopologyError::Undefined { what, name: shown(name), near, place }
}
