//! A draft whose nodes, switches and domains are referred to by name, as people do in files.
//!
//! Every name is new when it is added and known when it is referred to, and nothing has two parents.
//! Formats that give each node whole, with its path through the network, need none of this: see `paths`.

use std::collections::{HashMap, HashSet};

use bedplate_diag::{Place, nearest};

use super::{ClusterDraft, DraftSwitch, MAX_NODES, check_limit, shown};
use crate::TopologyError;
use crate::hostlist::Hostlist;

/// The place of the current text; computed only when there is an error.
type At<'a> = &'a dyn Fn() -> Place;

#[derive(Debug, Default)]
pub(crate) struct NamedDraft {
    pub(crate) draft: ClusterDraft,
    nodes: HashMap<String, u32>,
    switches: HashMap<String, u32>,
    domains: HashSet<String>,
    /// Position of the next node below its switch.
    next_order: u32,
}

impl NamedDraft {
    pub(crate) fn add_node(&mut self, name: &str, kind: u16, place: At<'_>) -> Result<u32, TopologyError> {
        let index = self.draft.nodes.len();
        check_limit("nodes", index as u64 + 1, MAX_NODES, place)?;
        self.draft.add_node(name, kind);
        self.name_nodes_from(index, place)?;
        Ok(index as u32)
    }

    /// Takes in the names of nodes that were added to the draft itself, from index `first` on.
    pub(crate) fn name_nodes_from(&mut self, first: usize, place: At<'_>) -> Result<(), TopologyError> {
        for (index, node) in self.draft.nodes.iter().enumerate().skip(first) {
            if self.nodes.insert(node.name.clone(), index as u32).is_some() {
                return Err(duplicate("node", &node.name, place));
            }
        }
        Ok(())
    }

    /// Takes in the names of the domains that were added to the draft itself.
    pub(crate) fn name_domains(&mut self) {
        self.domains.extend(self.draft.domains.iter().cloned());
    }

    pub(crate) fn has_node(&self, name: &str) -> bool {
        self.nodes.contains_key(name)
    }

    pub(crate) fn find_node(&self, name: &str, place: At<'_>) -> Result<u32, TopologyError> {
        let known = || self.draft.nodes.iter().map(|node| node.name.as_str());
        self.nodes.get(name).copied().ok_or_else(|| undefined("node", name, known(), place))
    }

    pub(crate) fn find_nodes(&self, list: &Hostlist<'_>, place: At<'_>) -> Result<Vec<u32>, TopologyError> {
        let mut nodes = Vec::with_capacity(list.count as usize);
        list.visit(|name| {
            nodes.push(self.find_node(name, place)?);
            Ok::<(), TopologyError>(())
        })?;
        Ok(nodes)
    }

    pub(crate) fn add_switch(&mut self, name: &str, place: At<'_>) -> Result<u32, TopologyError> {
        let index = self.draft.switches.len() as u32;
        if self.switches.insert(name.to_owned(), index).is_some() {
            return Err(duplicate("switch", name, place));
        }
        self.draft.switches.push(DraftSwitch::new(name, index));
        Ok(index)
    }

    pub(crate) fn find_switch(&self, name: &str, place: At<'_>) -> Result<u32, TopologyError> {
        let known = || self.draft.switches.iter().map(|switch| switch.name.as_str());
        self.switches.get(name).copied().ok_or_else(|| undefined("switch", name, known(), place))
    }

    /// Attaches nodes to a switch, in the order of the list.
    pub(crate) fn hang_nodes(
        &mut self,
        list: &Hostlist<'_>,
        switch: u32,
        place: At<'_>,
    ) -> Result<(), TopologyError> {
        list.visit(|name| {
            let index = self.find_node(name, place)?;
            let node = &mut self.draft.nodes[index as usize];
            if let Some(first) = node.switch.replace(switch) {
                return Err(self.two_switches("node", name, [first, switch], place));
            }
            node.order = self.next_order;
            self.next_order += 1;
            Ok(())
        })
    }

    pub(crate) fn hang_switch(
        &mut self,
        child: u32,
        parent: u32,
        place: At<'_>,
    ) -> Result<(), TopologyError> {
        let switch = &mut self.draft.switches[child as usize];
        match switch.parent.replace(parent) {
            None => Ok(()),
            Some(first) => {
                let name = switch.name.clone();
                Err(self.two_switches("switch", &name, [first, parent], place))
            }
        }
    }

    fn two_switches(
        &self,
        what: &'static str,
        name: &str,
        switches: [u32; 2],
        place: At<'_>,
    ) -> TopologyError {
        let names = switches.map(|index| self.draft.switches[index as usize].name.as_str());
        two_parents(what, name, names, place)
    }

    /// Adds a scale-up domain; `what` is the format's word for it.
    pub(crate) fn add_domain(
        &mut self,
        what: &'static str,
        name: &str,
        place: At<'_>,
    ) -> Result<u32, TopologyError> {
        if !self.domains.insert(name.to_owned()) {
            return Err(duplicate(what, name, place));
        }
        let domain = self.draft.domains.len() as u32;
        self.draft.domains.push(name.to_owned());
        Ok(domain)
    }

    pub(crate) fn join_domain(
        &mut self,
        nodes: &[u32],
        domain: u32,
        place: At<'_>,
    ) -> Result<(), TopologyError> {
        for node in nodes {
            let node = &mut self.draft.nodes[*node as usize];
            if let Some(first) = node.domain.replace(domain) {
                let names = [first, domain].map(|index| self.draft.domains[index as usize].as_str());
                return Err(two_parents("node", &node.name, names, place));
            }
        }
        Ok(())
    }
}

fn duplicate(what: &'static str, name: &str, place: At<'_>) -> TopologyError {
    TopologyError::Duplicate { what, name: shown(name), place: place() }
}

fn two_parents(what: &'static str, name: &str, [first, second]: [&str; 2], place: At<'_>) -> TopologyError {
    if first == second {
        return duplicate(what, name, place);
    }
    let (first, second) = (first.to_owned(), second.to_owned());
    TopologyError::TwoParents { what, name: shown(name), first, second, place: place() }
}

/// The error for an unknown name. A known name that differs only in digits is not suggested: it is just another of many.
pub(crate) fn undefined<'n>(
    what: &'static str,
    name: &str,
    known: impl Iterator<Item = &'n str>,
    place: At<'_>,
) -> TopologyError {
    let without_digits = |name: &str| name.replace(|c: char| c.is_ascii_digit(), "");
    let wanted = without_digits(name);
    let candidates = known.take(10_000).filter(|known| without_digits(known) != wanted);
    let near = nearest(name, candidates).map(str::to_owned);
    TopologyError::Undefined { what, name: shown(name), near, place: place() }
}
