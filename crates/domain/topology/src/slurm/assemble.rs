//! From what Slurm's files say to a cluster.

use std::collections::HashMap;

use bedplate_catalog::{Catalog, Instance};
use bedplate_diag::{Place, Source};

use super::nodes::{DownLine, Fields, Gpus, NodeLine, Nodes, hostlist};
use crate::draft::{Culprit, NamedDraft, check_limit, shown};
use crate::kind::{accelerator_is_multi_node, contradicts, find_accelerator, instance_is_multi_node};
use crate::{Blocks, Cluster, ImportOptions, NodeKind, TopologyError};

/// Everything that the files say, in their order.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) name: Option<String>,
    pub(super) nodes: Nodes,
    pub(super) switches: Vec<Switch>,
    pub(super) blocks: Vec<Block>,
    /// Whether the tree may leave nodes out, which then belong to other topologies of the same file.
    pub(super) tree_is_partial: bool,
}

/// A line of one of the sources, counted from 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub(super) file: usize,
    pub(super) line: usize,
}

impl At {
    fn place(self, sources: &[Source<'_>]) -> Place {
        sources[self.file].line(self.line)
    }
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
    assembly.named.draft.name =
        options.name.clone().or(found.name.clone()).unwrap_or_else(|| "slurm".to_owned());
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
    assembly.finish(!found.switches.is_empty() && !found.tree_is_partial)
}

struct Assembly<'a> {
    sources: &'a [Source<'a>],
    options: &'a ImportOptions,
    catalog: &'a Catalog,
    named: NamedDraft,
    /// The places of the draft's nodes and switches.
    node_at: Vec<At>,
    switch_at: Vec<At>,
    kinds: HashMap<KindKey, u16>,
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
            named: NamedDraft::default(),
            node_at: Vec::new(),
            switch_at: Vec::new(),
            kinds: HashMap::new(),
        }
    }

    fn place(&self, at: At) -> Place {
        at.place(self.sources)
    }

    fn source(&self, at: At) -> Source<'a> {
        self.sources[at.file]
    }

    /// Adds a node, which must be new.
    fn add_node(&mut self, name: &str, kind: u16, at: At) -> Result<u32, TopologyError> {
        let sources = self.sources;
        let index = self.named.add_node(name, kind, &|| at.place(sources))?;
        self.node_at.push(at);
        Ok(index)
    }

    fn add_node_line(&mut self, line: &NodeLine) -> Result<(), TopologyError> {
        let names = hostlist(&line.names, self.source(line.at), line.at)?;
        let kind = self.kind_of(line)?;
        let features = self.features(&line.fields, kind);
        names.visit(|name| {
            let index = self.add_node(name, kind, line.at)?;
            let node = &mut self.named.draft.nodes[index as usize];
            node.health = line.fields.health;
            node.reason.clone_from(&line.fields.reason);
            node.features = features;
            Ok(())
        })
    }

    /// The number of the line's set of features, without the name of the instance, which is the kind's.
    fn features(&mut self, fields: &Fields, kind: u16) -> u16 {
        let draft = &mut self.named.draft;
        let instance = draft.kinds.get(kind).instance.as_ref();
        let features = fields.features.iter().filter(|feature| Some(*feature) != instance).cloned();
        let features = features.collect();
        draft.features.intern(features)
    }

    fn add_down_line(&mut self, line: &DownLine) -> Result<(), TopologyError> {
        let names = hostlist(&line.names, self.source(line.at), line.at)?;
        names.visit(|name| {
            let index = self.named.find_node(name, &|| self.place(line.at))?;
            let node = &mut self.named.draft.nodes[index as usize];
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
                if self.named.has_node(name) {
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
        let number = self.named.draft.kinds.intern(kind);
        self.kinds.insert(key, number);
        number
    }

    /// What a node is: by option, by feature, by GRES type.
    fn describe(&self, line: &NodeLine) -> Result<NodeKind, TopologyError> {
        let fields = &line.fields;
        let by_option = self.options.instance.as_deref().filter(|_| fields.gpus.is_some());
        let by_feature = fields.features.iter().find_map(|name| self.catalog.instance(name).ok());
        if let Some(instance) = by_option.or(by_feature.map(|instance| instance.name.as_str())) {
            let kind = self.instance_kind(instance, line.at)?;
            self.check_instance(&kind, by_feature, line)?;
            return Ok(NodeKind { reported_memory: fields.memory(), ..kind });
        }
        let kind = match &fields.gpus {
            Some(gpus) => self.accelerator_kind(gpus, line)?,
            None => NodeKind::bare("cpu"),
        };
        Ok(NodeKind { vcpus: fields.vcpus(), memory: fields.memory(), ..kind })
    }

    fn instance_kind(&self, name: &str, at: At) -> Result<NodeKind, TopologyError> {
        match self.catalog.instance(name) {
            Ok(instance) => Ok(NodeKind::from_instance(instance, self.catalog)),
            Err(error) => Err(TopologyError::unknown_hardware(error, self.catalog, self.place(at))),
        }
    }

    /// Whether the line agrees with the stated instance of its nodes.
    fn check_instance(
        &self,
        kind: &NodeKind,
        by_feature: Option<&Instance>,
        line: &NodeLine,
    ) -> Result<(), TopologyError> {
        let (node, instance) = (shown(&line.names), kind.name.clone());
        if let Some(other) = by_feature.filter(|other| other.name != kind.name) {
            let (found, place) = (other.name.clone(), self.place(line.at));
            return Err(TopologyError::OtherInstance { node, found, instance, place });
        }
        let Some(gpus) = &line.fields.gpus else { return Ok(()) };
        let named = gpus.kind.as_ref().or(self.options.accelerator.as_ref());
        if let Some(found) = named.and_then(|named| contradicts(named, kind, self.catalog)) {
            let (expected, place) = (kind.accelerator.clone().unwrap_or_default(), self.place(line.at));
            return Err(TopologyError::OtherGpu { node, found, instance, expected, place });
        }
        if gpus.count != kind.accelerators {
            let (found, expected, place) = (gpus.count, kind.accelerators, self.place(line.at));
            return Err(TopologyError::GpuCount { node, instance, found, expected, place });
        }
        Ok(())
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
            .map_err(|error| TopologyError::unknown_hardware(error, self.catalog, self.place(line.at)))?;
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
        let sources = self.sources;
        self.switch_at.push(at);
        self.named.add_switch(name, &|| at.place(sources))
    }

    fn hang_nodes(&mut self, names: &str, switch: u32, at: At) -> Result<(), TopologyError> {
        let sources = self.sources;
        self.named.hang_nodes(&hostlist(names, sources[at.file], at)?, switch, &|| at.place(sources))
    }

    fn hang_switches(&mut self, names: &str, parent: u32, at: At) -> Result<(), TopologyError> {
        let sources = self.sources;
        let place = || at.place(sources);
        let mut order = 0;
        hostlist(names, sources[at.file], at)?.visit(|name| {
            let child = self.named.find_switch(name, &place)?;
            self.named.hang_switch(child, parent, &place)?;
            self.named.draft.switches[child as usize].order = order;
            order += 1;
            Ok(())
        })
    }

    fn add_blocks(&mut self, blocks: &[Block]) -> Result<(), TopologyError> {
        let sources = self.sources;
        let has_tree = !self.named.draft.switches.is_empty();
        for block in blocks {
            let place = || block.at.place(sources);
            let list = hostlist(&block.nodes, self.source(block.at), block.at)?;
            let nodes = self.named.find_nodes(&list, &place)?;
            if self.is_domain(&nodes) {
                let domain = self.named.add_domain("block", &block.name, &place)?;
                self.named.join_domain(&nodes, domain, &place)?;
            } else if !has_tree {
                let switch = self.add_switch(&block.name, block.at)?;
                self.named.hang_nodes(&list, switch, &place)?;
            }
        }
        Ok(())
    }

    fn is_domain(&self, nodes: &[u32]) -> bool {
        match self.options.blocks {
            Blocks::Domains => true,
            Blocks::Leaves => false,
            Blocks::Automatic => {
                // Nodes of a block are identical, so the first one with GPUs stands for all.
                let kinds = nodes
                    .iter()
                    .map(|node| self.named.draft.kinds.get(self.named.draft.nodes[*node as usize].kind));
                let first = kinds.into_iter().find(|kind| kind.accelerators > 0);
                first.is_some_and(|kind| match (&kind.instance, &kind.accelerator) {
                    (Some(instance), _) => instance_is_multi_node(instance, self.catalog),
                    (None, Some(accelerator)) => accelerator_is_multi_node(accelerator, self.catalog),
                    (None, None) => false,
                })
            }
        }
    }

    fn finish(self, all_hang_on_switches: bool) -> Result<Cluster, TopologyError> {
        for (node, at) in self.named.draft.nodes.iter().zip(&self.node_at) {
            if all_hang_on_switches
                && node.switch.is_none()
                && self.named.draft.kinds.get(node.kind).accelerators > 0
            {
                return Err(TopologyError::WithoutSwitch { node: shown(&node.name), place: self.place(*at) });
            }
        }
        let whole = self.sources.first().map_or_else(|| Source::new("slurm", "").whole(), Source::whole);
        let (sources, node_at, switch_at) = (self.sources, self.node_at, self.switch_at);
        let place = |at: &At| at.place(sources);
        self.named.draft.build(&|culprit| match culprit {
            Culprit::Node(index) => place(&node_at[index]),
            Culprit::Switch(index) => place(&switch_at[index]),
            Culprit::Whole => whole.clone(),
        })
    }
}
