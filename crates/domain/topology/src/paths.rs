//! A tree of switches from the path of each node through it, as clouds report it.

use std::collections::HashMap;

use bedplate_diag::{Place, Source};

use crate::TopologyError;
use crate::draft::{ClusterDraft, DraftSwitch, shown};

/// The switches seen so far, by name.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    switches: HashMap<String, u32>,
}

impl Paths {
    /// The lowest switch of a path from the top down to a node; switches are added to the draft as they
    /// appear. None for an empty path: the node's place in the network is unknown.
    pub(crate) fn lowest<'p>(
        &mut self,
        draft: &mut ClusterDraft,
        path: impl IntoIterator<Item = &'p str>,
        place: &dyn Fn() -> Place,
    ) -> Result<Option<u32>, TopologyError> {
        let mut above = None;
        for name in path {
            if above.is_some_and(|above: u32| draft.switches[above as usize].name == name) {
                continue;
            }
            above = Some(match self.switches.get(name) {
                Some(known) => check_parent(draft, *known, above, place)?,
                None => self.add(draft, name, above),
            });
        }
        Ok(above)
    }

    fn add(&mut self, draft: &mut ClusterDraft, name: &str, parent: Option<u32>) -> u32 {
        let index = draft.switches.len() as u32;
        draft.switches.push(DraftSwitch { parent, ..DraftSwitch::new(name, index) });
        self.switches.insert(name.to_owned(), index);
        index
    }
}

fn check_parent(
    draft: &ClusterDraft,
    switch: u32,
    parent: Option<u32>,
    place: &dyn Fn() -> Place,
) -> Result<u32, TopologyError> {
    let known = &draft.switches[switch as usize];
    if known.parent == parent {
        return Ok(switch);
    }
    let name = |parent: Option<u32>| match parent {
        Some(parent) => shown(&draft.switches[parent as usize].name),
        None => "nothing".to_owned(),
    };
    let (first, second) = (name(known.parent), name(parent));
    Err(TopologyError::TwoParents { what: "switch", name: shown(&known.name), first, second, place: place() })
}

/// The domains seen so far, by name.
#[derive(Debug, Default)]
pub(crate) struct DomainNames {
    domains: HashMap<String, u32>,
}

impl DomainNames {
    pub(crate) fn number(&mut self, draft: &mut ClusterDraft, name: &str) -> u32 {
        if let Some(number) = self.domains.get(name) {
            return *number;
        }
        let number = draft.domains.len() as u32;
        draft.domains.push(name.to_owned());
        self.domains.insert(name.to_owned(), number);
        number
    }
}

/// The last place of a name, for formats whose parsers report no lines; searched only for errors.
/// Names in quotes are preferred: a short name may be part of other words.
pub(crate) fn place_of_name(source: Source<'_>, name: &str) -> Place {
    let quoted = || source.text.rfind(&format!("\"{name}\"")).map(|at| at + 1);
    match quoted().or_else(|| source.text.rfind(name)) {
        Some(offset) if !name.is_empty() => source.place(offset),
        _ => source.whole(),
    }
}
