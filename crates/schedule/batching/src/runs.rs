//! Which nodes of a prefix tree have the blocks of a run of keys.
//!
//! A run is a path of the tree: one node, or several below each other where something branches off or ends between them. These are
//! kept in order, so that the node at any position is found by halves. A run is named by its origin alone, because only the keys
//! before it lead there. Keys that were not made of those before them could lead to a run from two places; the first one counts,
//! and nodes of the other are found by nobody.

use crate::index::RunIndex;
use crate::prefix::NodeId;

/// A node and the position at which it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunPart {
    pub(crate) start: u32,
    pub(crate) node: NodeId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Node(NodeId),
    /// Several nodes: the number of their path.
    Path(u32),
}

/// The nodes that have a run, from the root on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RunNodes<'a> {
    One(NodeId),
    Path(&'a [RunPart]),
}

impl RunNodes<'_> {
    /// The last one.
    pub(crate) fn tip(self) -> NodeId {
        match self {
            RunNodes::One(node) => node,
            RunNodes::Path(path) => path.last().map_or(NodeId::ROOT, |part| part.node),
        }
    }

    /// The last one that begins before a position; a single one is not asked where it begins.
    pub(crate) fn before(self, position: u32) -> Option<NodeId> {
        match self {
            RunNodes::One(node) => Some(node),
            RunNodes::Path(path) => {
                let at = path.partition_point(|part| part.start < position).checked_sub(1)?;
                Some(path[at].node)
            }
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Runs {
    places: RunIndex<Place>,
    /// The nodes of runs that have several, from the root on.
    paths: Vec<Vec<RunPart>>,
    vacant: Vec<u32>,
}

impl Runs {
    pub(crate) fn new() -> Self {
        Self { places: RunIndex::new(Place::Node(NodeId::NONE)), paths: Vec::new(), vacant: Vec::new() }
    }

    /// The nodes of a run.
    pub(crate) fn find(&self, origin: u64) -> Option<RunNodes<'_>> {
        Some(match self.places.get(origin)? {
            Place::Node(node) => RunNodes::One(node),
            Place::Path(path) => RunNodes::Path(&self.paths[path as usize]),
        })
    }

    /// Adds a new node that begins a run or continues it below `above`.
    pub(crate) fn add(&mut self, origin: u64, above: RunPart, part: RunPart) {
        match self.places.get(origin) {
            None => self.places.set(origin, Place::Node(part.node)),
            Some(Place::Node(only)) if only == above.node => self.begin_path(origin, &[above, part]),
            Some(Place::Node(_)) => {}
            Some(Place::Path(path)) => {
                let path = &mut self.paths[path as usize];
                if path.last() == Some(&above) {
                    path.push(part);
                }
            }
        }
    }

    /// Puts two nodes where one was: `upper` is new and has its beginning, `lower` the rest.
    pub(crate) fn cut(&mut self, origin: u64, upper: RunPart, lower: RunPart) {
        match self.places.get(origin) {
            Some(Place::Node(only)) if only == lower.node => self.begin_path(origin, &[upper, lower]),
            Some(Place::Path(path)) => {
                let path = &mut self.paths[path as usize];
                if let Some(at) = place(path, RunPart { start: upper.start, node: lower.node }) {
                    path[at] = upper;
                    path.insert(at + 1, lower);
                }
            }
            Some(Place::Node(_)) | None => {}
        }
    }

    /// Puts the lower of two nodes where both were; says whether they were there.
    pub(crate) fn join(&mut self, origin: u64, upper: RunPart, lower: RunPart) -> bool {
        let Some(Place::Path(number)) = self.places.get(origin) else { return false };
        let path = &mut self.paths[number as usize];
        let Some(at) = place(path, upper).filter(|at| path.get(at + 1) == Some(&lower)) else { return false };
        path[at].node = lower.node;
        path.remove(at + 1);
        self.end_short_path(origin, number);
        true
    }

    /// Removes the last node of a run, and returns the one that is the last then.
    pub(crate) fn remove(&mut self, origin: u64, part: RunPart) -> Option<NodeId> {
        match self.places.get(origin)? {
            Place::Node(only) => {
                if only == part.node {
                    self.places.remove(origin);
                }
                Some(only).filter(|only| *only != part.node)
            }
            Place::Path(number) => {
                let path = &mut self.paths[number as usize];
                path.pop_if(|last| *last == part);
                let tip = path.last().map(|last| last.node);
                self.end_short_path(origin, number);
                tip
            }
        }
    }

    fn begin_path(&mut self, origin: u64, parts: &[RunPart]) {
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.paths.push(Vec::new());
            self.paths.len() as u32 - 1
        });
        self.paths[number as usize].extend_from_slice(parts);
        self.places.set(origin, Place::Path(number));
    }

    fn end_short_path(&mut self, origin: u64, number: u32) {
        if let [only] = self.paths[number as usize][..] {
            self.places.set(origin, Place::Node(only.node));
            self.paths[number as usize].clear();
            self.vacant.push(number);
        }
    }
}

fn place(path: &[RunPart], part: RunPart) -> Option<usize> {
    let at = path.binary_search_by_key(&part.start, |part| part.start).ok()?;
    (path[at] == part).then_some(at)
}
