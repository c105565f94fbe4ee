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
pub(crate) struct Part {
    pub(crate) start: u32,
    pub(crate) node: NodeId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Node(NodeId),
    /// Several nodes: the number of their path.
    Path(u32),
}

#[derive(Debug, Clone)]
pub(crate) struct Runs {
    places: RunIndex<Place>,
    /// The nodes of runs that have several, from the root on.
    paths: Vec<Vec<Part>>,
    vacant: Vec<u32>,
}

impl Runs {
    pub(crate) fn new() -> Self {
        Self { places: RunIndex::new(Place::Node(NodeId::NONE)), paths: Vec::new(), vacant: Vec::new() }
    }

    /// The last node of a run.
    pub(crate) fn tip(&self, origin: u64) -> Option<NodeId> {
        match self.places.get(origin)? {
            Place::Node(node) => Some(node),
            Place::Path(path) => self.paths[path as usize].last().map(|part| part.node),
        }
    }

    /// The last node of a run that begins before a position; a run of one node is not asked where it begins.
    pub(crate) fn node_before(&self, origin: u64, position: u32) -> Option<NodeId> {
        match self.places.get(origin)? {
            Place::Node(node) => Some(node),
            Place::Path(path) => {
                let path = &self.paths[path as usize];
                let at = path.partition_point(|part| part.start < position).checked_sub(1)?;
                Some(path[at].node)
            }
        }
    }

    /// Adds a new node that begins a run or continues it below `above`.
    pub(crate) fn add(&mut self, origin: u64, above: Part, part: Part) {
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
    pub(crate) fn cut(&mut self, origin: u64, upper: Part, lower: Part) {
        match self.places.get(origin) {
            Some(Place::Node(only)) if only == lower.node => self.begin_path(origin, &[upper, lower]),
            Some(Place::Path(path)) => {
                let path = &mut self.paths[path as usize];
                if let Some(at) = place(path, Part { start: upper.start, node: lower.node }) {
                    path[at] = upper;
                    path.insert(at + 1, lower);
                }
            }
            Some(Place::Node(_)) | None => {}
        }
    }

    /// Puts the lower of two nodes where both were; says whether they were there.
    pub(crate) fn join(&mut self, origin: u64, upper: Part, lower: Part) -> bool {
        let Some(Place::Path(number)) = self.places.get(origin) else { return false };
        let path = &mut self.paths[number as usize];
        let Some(at) = place(path, upper).filter(|at| path.get(at + 1) == Some(&lower)) else { return false };
        path[at].node = lower.node;
        path.remove(at + 1);
        self.end_short_path(origin, number);
        true
    }

    /// Removes the last node of a run.
    pub(crate) fn remove(&mut self, origin: u64, part: Part) {
        match self.places.get(origin) {
            Some(Place::Node(only)) if only == part.node => self.places.remove(origin),
            Some(Place::Path(number)) => {
                let path = &mut self.paths[number as usize];
                if path.last() == Some(&part) {
                    path.pop();
                    self.end_short_path(origin, number);
                }
            }
            Some(Place::Node(_)) | None => {}
        }
    }

    fn begin_path(&mut self, origin: u64, parts: &[Part]) {
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

fn place(path: &[Part], part: Part) -> Option<usize> {
    let at = path.binary_search_by_key(&part.start, |part| part.start).ok()?;
    (path[at] == part).then_some(at)
}
