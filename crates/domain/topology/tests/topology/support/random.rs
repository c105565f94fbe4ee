//! Random clusters as plain lists, and their text as `cluster.toml`.

use std::fmt::Write as _;

use bedplate_topology::{Cluster, Format, ImportOptions};
use proptest::prelude::*;

use super::read;

/// Scale-up domains within a node, by kind. The last kind has no GPUs.
pub(crate) const KINDS: [&[u32]; 5] = [&[8], &[4], &[2, 2, 1], &[1, 1], &[]];

#[derive(Debug, Clone)]
pub(crate) struct RandomCluster {
    /// Parents come before their children.
    pub(crate) parents: Vec<Option<usize>>,
    pub(crate) ratios: Vec<f64>,
    pub(crate) nodes: Vec<RandomNode>,
}

#[derive(Debug, Clone)]
pub(crate) struct RandomNode {
    pub(crate) kind: usize,
    pub(crate) switch: Option<usize>,
    pub(crate) domain: Option<usize>,
}

/// Which shapes to generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Anything `cluster.toml` can say.
    Any,
    /// What Slurm can say: nodes are attached to leaves only, and all nodes with GPUs to one.
    Slurm,
}

pub(crate) fn clusters(shape: Shape) -> impl Strategy<Value = RandomCluster> {
    let switches = prop::collection::vec((any::<prop::sample::Index>(), 0..4usize, 0..3usize), 0..9);
    let nodes = prop::collection::vec((0..KINDS.len(), any::<prop::sample::Index>(), 0..8usize), 1..24);
    (switches, nodes).prop_map(move |(switches, nodes)| {
        let mut cluster = RandomCluster { parents: Vec::new(), ratios: Vec::new(), nodes: Vec::new() };
        for (index, (parent, is_root, ratio)) in switches.into_iter().enumerate() {
            cluster.parents.push((index > 0 && is_root > 0).then(|| parent.index(index)));
            cluster.ratios.push([1.0, 1.5, 4.0][ratio]);
        }
        for (kind, switch, domain) in nodes {
            cluster.add_node(kind, switch, domain, shape);
        }
        cluster.without_empty_switches()
    })
}

impl RandomCluster {
    fn add_node(&mut self, kind: usize, switch: prop::sample::Index, domain: usize, shape: Shape) {
        let leaves: Vec<usize> = (0..self.parents.len())
            .filter(|switch| shape == Shape::Any || !self.parents.contains(&Some(*switch)))
            .collect();
        let spare = usize::from(shape == Shape::Any);
        let choice =
            if leaves.is_empty() { None } else { leaves.get(switch.index(leaves.len() + spare)).copied() };
        // Domains are below one switch, so their number says which.
        let domain = (shape == Shape::Any && domain < 2).then(|| choice.map_or(0, |s| s + 1) * 2 + domain);
        self.nodes.push(RandomNode { kind, switch: choice, domain });
    }

    fn without_empty_switches(mut self) -> Self {
        let mut is_used = vec![false; self.parents.len()];
        for node in &self.nodes {
            let mut above = node.switch;
            while let Some(switch) = above {
                is_used[switch] = true;
                above = self.parents[switch];
            }
        }
        let number = |old: usize| is_used[..old].iter().filter(|used| **used).count();
        for node in &mut self.nodes {
            node.switch = node.switch.map(number);
        }
        let kept = |index: &usize| is_used[*index];
        let parents =
            (0..self.parents.len()).filter(kept).map(|index| self.parents[index].map(number)).collect();
        self.ratios = (0..self.parents.len()).filter(kept).map(|index| self.ratios[index]).collect();
        self.parents = parents;
        self
    }

    pub(crate) fn node_name(&self, node: usize) -> String {
        format!("n{:02}", node + 1)
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::from("name = 'random'\n");
        for (kind, domains) in KINDS.iter().enumerate() {
            let gpus = if domains.is_empty() {
                String::new()
            } else {
                format!("accelerator = 'h100'\ndomains = {domains:?}\n")
            };
            let _ = write!(
                text,
                "[[kind]]\nname = 'k{kind}'\n{gpus}scale_up_bandwidth = '450 GB/s'\nscale_out_bandwidth = '{} GB/s'\nvcpus = {}\n",
                100 * (kind + 1),
                64 + kind
            );
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let _ = write!(text, "[[group]]\nkind = 'k{}'\nnodes = '{}'\n", node.kind, self.node_name(index));
        }
        for (switch, parent) in self.parents.iter().enumerate() {
            let _ =
                write!(text, "[[switch]]\nname = 's{switch}'\noversubscription = {}\n", self.ratios[switch]);
            if let Some(parent) = parent {
                let _ = writeln!(text, "parent = 's{parent}'");
            }
            let own = self.names_where(|node| node.switch == Some(switch));
            if !own.is_empty() {
                let _ = writeln!(text, "nodes = '{own}'");
            }
        }
        let mut domains: Vec<usize> = self.nodes.iter().filter_map(|node| node.domain).collect();
        domains.sort_unstable();
        domains.dedup();
        for domain in domains {
            let members = self.names_where(|node| node.domain == Some(domain));
            let _ = write!(text, "[[domain]]\nname = 'd{domain}'\nnodes = '{members}'\n");
        }
        text
    }

    fn names_where(&self, wanted: impl Fn(&RandomNode) -> bool) -> String {
        let names = self.nodes.iter().enumerate().filter(|(_, node)| wanted(node));
        names.map(|(index, _)| self.node_name(index)).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn cluster(&self) -> Cluster {
        let text = self.text();
        read(Format::Document, &[("random.toml", &text)], &ImportOptions::default()).unwrap()
    }
}
