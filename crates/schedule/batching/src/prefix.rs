//! The radix tree of cached prefixes.
//!
//! A node holds a run of keys and their blocks. A sequence *holds* the node at which its shared
//! prefix ends, and with it every node above. Nodes that no sequence holds are *idle*: they stay for later
//! requests until their blocks are needed.
//!
//! Kept true: `holders` of a node counts the sequences that hold it or a node below it, so nothing below an
//! idle node is held. The idle list is ordered by when a node was last released, and when a path is released its
//! lower nodes are listed before its upper ones; so the oldest idle node never has children, and taking blocks
//! from its end is least-recently-used eviction of leaves without searching for one.
//!
//! Prompts that leave a common beginning at many places make long chains of short nodes. Some keys in these, the *landmarks*, lead
//! to their nodes, so that a walk along a prompt begins near its end and not at the root.

use crate::index::KeyIndex;
use crate::request::BlockKey;

/// One KV block of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// A block that the tree gave up, with the prefix that it was. Its numbers are there until the next step writes to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted {
    pub key: BlockKey,
    pub block: BlockId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeId(u32);

pub(crate) const ROOT: NodeId = NodeId(0);
/// No node: the ends of the idle list.
const NONE: NodeId = NodeId(u32::MAX);
/// The parent under which landmarks are kept: their keys alone say where they are.
const ANYWHERE: u32 = 0;

impl BlockKey {
    /// Whether it may lead to its node: one key in eight, in tests every other one.
    fn is_landmark(self) -> bool {
        self.0.is_multiple_of(if cfg!(test) { 2 } else { 8 })
    }

    /// Whether a census counts it: one key in 32, in tests every other one.
    pub(crate) fn is_milestone(self) -> bool {
        self.0.is_multiple_of(if cfg!(test) { 2 } else { 32 })
    }
}

#[derive(Debug, Clone)]
struct Node {
    parent: NodeId,
    /// Blocks from the root to its first.
    start: u32,
    holders: u32,
    /// Whether it has landmarks: it was cut off the upper part of another.
    is_marked: bool,
    /// How many nodes stand below it, and their numbers combined by exclusive or: of a single one, its number.
    children: u32,
    combined: u32,
    keys: Vec<BlockKey>,
    blocks: Vec<BlockId>,
    /// Neighbours in the idle list, meaningful while `holders` is 0.
    older: NodeId,
    newer: NodeId,
}

impl Node {
    const VACANT: Node = Node {
        parent: NONE,
        start: 0,
        holders: 0,
        is_marked: false,
        children: 0,
        combined: 0,
        keys: Vec::new(),
        blocks: Vec::new(),
        older: NONE,
        newer: NONE,
    };
}

/// How much of a prompt the tree has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cached {
    pub(crate) blocks: u32,
    /// How many of these are idle, so that holding them makes fewer evictable.
    pub(crate) idle: u32,
    position: Position,
}

/// A prefix that a sequence holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) node: NodeId,
    pub(crate) blocks: u32,
}

impl Held {
    pub(crate) const NOTHING: Held = Held { node: ROOT, blocks: 0 };
}

/// Where a walk along keys ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    node: NodeId,
    /// Keys of that node that agree.
    inside: usize,
    /// Blocks from the root to there.
    blocks: usize,
}

impl Position {
    const BEGINNING: Position = Position { node: ROOT, inside: 0, blocks: 0 };
}

#[derive(Debug, Clone)]
pub(crate) struct PrefixTree {
    nodes: Vec<Node>,
    vacant: Vec<NodeId>,
    /// Children by parent and first key.
    index: KeyIndex<u32>,
    landmarks: KeyIndex<u32>,
    /// Milestones that came since they were last asked for, where anybody asks.
    news: Option<Vec<BlockKey>>,
    oldest: NodeId,
    newest: NodeId,
    idle_blocks: u32,
    held_blocks: u32,
}

impl PrefixTree {
    pub(crate) fn new() -> Self {
        let root = Node { holders: 1, ..Node::VACANT };
        Self {
            nodes: vec![root],
            vacant: Vec::new(),
            index: KeyIndex::new(NONE.0),
            landmarks: KeyIndex::new(NONE.0),
            news: None,
            oldest: NONE,
            newest: NONE,
            idle_blocks: 0,
            held_blocks: 0,
        }
    }

    /// Blocks that no sequence holds and that may be evicted.
    pub(crate) fn idle_blocks(&self) -> u32 {
        self.idle_blocks
    }

    /// Blocks that some sequence holds.
    pub(crate) fn held_blocks(&self) -> u32 {
        self.held_blocks
    }

    /// The longest known prefix of `keys`, without touching anything.
    pub(crate) fn cached(&self, keys: &[BlockKey]) -> Cached {
        let position = self.locate(keys);
        let mut idle = 0;
        let (mut node, mut counted) = (position.node, position.inside);
        while self.node(node).holders == 0 {
            idle += counted;
            node = self.node(node).parent;
            counted = self.node(node).keys.len();
        }
        Cached { blocks: position.blocks as u32, idle: idle as u32, position }
    }

    /// Holds the longest known prefix of `keys`.
    pub(crate) fn hold(&mut self, keys: &[BlockKey]) -> Held {
        self.hold_position(self.locate(keys))
    }

    /// Holds what was found, in the tree as it was then.
    pub(crate) fn hold_cached(&mut self, cached: &Cached) -> Held {
        self.hold_position(cached.position)
    }

    fn hold_position(&mut self, position: Position) -> Held {
        let node = self.cut(position.node, position.inside);
        let mut at = node;
        while at != ROOT {
            self.hold_node(at);
            at = self.node(at).parent;
        }
        Held { node, blocks: position.blocks as u32 }
    }

    /// Holds an already held prefix once more.
    pub(crate) fn hold_again(&mut self, held: Held) {
        let mut at = held.node;
        while at != ROOT {
            self.node_mut(at).holders += 1;
            at = self.node(at).parent;
        }
    }

    /// Releases a hold; nodes without holders become idle.
    pub(crate) fn release(&mut self, held: Held) {
        let mut at = held.node;
        while at != ROOT {
            let node = self.node_mut(at);
            node.holders -= 1;
            let parent = node.parent;
            if node.holders == 0 {
                let blocks = node.blocks.len() as u32;
                self.idle_blocks += blocks;
                self.held_blocks -= blocks;
                self.append_idle(at);
            }
            at = parent;
        }
    }

    /// Inserts `blocks` with their `keys` below a prefix that the caller holds, and holds them too. Blocks that
    /// the tree already has are pushed on `spare`; the caller uses the tree's from now on.
    pub(crate) fn extend(
        &mut self,
        held: Held,
        keys: &[BlockKey],
        blocks: &[BlockId],
        spare: &mut Vec<BlockId>,
    ) -> Held {
        debug_assert_eq!(keys.len(), blocks.len());
        let (mut node, mut at) = (held.node, 0);
        while at < keys.len() {
            match self.index.get(node.0, keys[at]) {
                Some(child) => {
                    let common = common(&self.nodes[child as usize].keys, &keys[at..]);
                    node = self.cut(NodeId(child), common);
                    self.hold_node(node);
                    spare.extend_from_slice(&blocks[at..at + common]);
                    at += common;
                }
                None => {
                    node = self.add(node, &keys[at..], &blocks[at..]);
                    at = keys.len();
                }
            }
        }
        Held { node, blocks: held.blocks + keys.len() as u32 }
    }

    /// Takes up to `wanted` blocks from the nodes that have been idle longest, ends of prefixes first. `log` gets their keys too.
    pub(crate) fn evict(
        &mut self,
        wanted: u32,
        freed: &mut Vec<BlockId>,
        mut log: Option<&mut Vec<Evicted>>,
    ) {
        let mut missing = wanted.min(self.idle_blocks);
        self.idle_blocks -= missing;
        while missing > 0 {
            let id = self.oldest;
            let node = self.node_mut(id);
            let kept = node.blocks.len().saturating_sub(missing as usize);
            missing -= (node.blocks.len() - kept) as u32;
            if let Some(log) = &mut log {
                let entries = node.keys[kept..].iter().zip(&node.blocks[kept..]);
                log.extend(entries.map(|(key, block)| Evicted { key: *key, block: *block }));
            }
            freed.extend(node.blocks.drain(kept..).rev());
            if node.is_marked {
                self.unmark(id, kept);
            }
            if kept > 0 {
                self.node_mut(id).keys.truncate(kept);
            } else {
                self.remove_leaf(id);
            }
        }
    }

    /// Blocks of a held prefix, from its beginning.
    pub(crate) fn blocks_of(&self, held: Held) -> Vec<BlockId> {
        let mut path = Vec::new();
        let mut at = held.node;
        while at != ROOT {
            path.push(at);
            at = self.node(at).parent;
        }
        path.iter().rev().flat_map(|id| self.node(*id).blocks.iter().copied()).collect()
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    fn locate(&self, keys: &[BlockKey]) -> Position {
        let mut position = self.last_landmark(keys);
        loop {
            let (run, rest) = (&self.node(position.node).keys[position.inside..], &keys[position.blocks..]);
            let agreed = common(run, rest);
            position.inside += agreed;
            position.blocks += agreed;
            if agreed < run.len() || agreed == rest.len() {
                return position;
            }
            let Some(child) = self.index.get(position.node.0, rest[agreed]) else { return position };
            position = Position { node: NodeId(child), inside: 0, ..position };
        }
    }

    /// The position behind the last of the keys that is a landmark here, found by halves: where a key is known, so are all before it.
    fn last_landmark(&self, keys: &[BlockKey]) -> Position {
        let mut position = Position::BEGINNING;
        let mut end = if self.landmarks.is_empty() { 0 } else { keys.len() };
        while position.blocks < end {
            let middle = position.blocks.midpoint(end);
            let next = keys[middle..end].iter().position(|key| key.is_landmark());
            match next.and_then(|ahead| self.landmark(keys, middle + ahead)) {
                Some(found) => position = found,
                None => end = middle,
            }
        }
        position
    }

    /// The position behind a key that is a landmark here. The key was made of all before it, so these need no comparison.
    fn landmark(&self, keys: &[BlockKey], at: usize) -> Option<Position> {
        let id = self.landmarks.get(ANYWHERE, keys[at])?;
        let node = &self.nodes[id as usize];
        let inside = at.checked_sub(node.start as usize)?;
        let is_there = node.keys.get(inside) == Some(&keys[at]);
        is_there.then_some(Position { node: NodeId(id), inside: inside + 1, blocks: at + 1 })
    }

    /// Lets the landmarks among the first keys of a node lead to it.
    fn mark(&mut self, id: NodeId, keys: usize) {
        self.node_mut(id).is_marked = true;
        for key in self.nodes[id.0 as usize].keys[..keys].iter().filter(|key| key.is_landmark()) {
            self.landmarks.set(ANYWHERE, *key, id.0);
        }
    }

    /// Forgets the landmarks of a node after its first `kept` keys.
    fn unmark(&mut self, id: NodeId, kept: usize) {
        for key in self.nodes[id.0 as usize].keys[kept..].iter().filter(|key| key.is_landmark()) {
            if self.landmarks.get(ANYWHERE, *key) == Some(id.0) {
                self.landmarks.remove(ANYWHERE, *key);
            }
        }
    }

    /// Keeps a list of the milestones that come from now on.
    pub(crate) fn watch_milestones(&mut self) {
        self.news.get_or_insert_default();
    }

    /// The milestones that came since this was last called.
    pub(crate) fn new_milestones(&mut self) -> impl Iterator<Item = BlockKey> {
        self.news.iter_mut().flat_map(|news| news.drain(..))
    }

    /// All milestones that it has.
    pub(crate) fn milestones(&self) -> impl Iterator<Item = BlockKey> {
        self.nodes.iter().flat_map(|node| &node.keys).copied().filter(|key| key.is_milestone())
    }

    /// The node that ends after `inside` keys of `id`; splits it where it is longer. The lower part keeps
    /// the id, because sequences that hold it hold all of it.
    fn cut(&mut self, id: NodeId, inside: usize) -> NodeId {
        if id == ROOT || inside == self.node(id).keys.len() {
            return id;
        }
        let upper = self.vacant_node();
        let Node { parent, start, holders, .. } = *self.node(id);
        let lower = self.node_mut(id);
        let (first, boundary) = (lower.keys[0], lower.keys[inside]);
        let keys: Vec<BlockKey> = lower.keys.drain(..inside).collect();
        let blocks: Vec<BlockId> = lower.blocks.drain(..inside).collect();
        lower.parent = upper;
        lower.start += inside as u32;
        let (children, combined) = (1, id.0);
        *self.node_mut(upper) =
            Node { parent, start, holders, children, combined, keys, blocks, ..Node::VACANT };
        self.mark(upper, inside);
        // The parent has the upper part instead of the lower one.
        self.node_mut(parent).combined ^= id.0 ^ upper.0;
        self.index.set(parent.0, first, upper.0);
        self.index.set(upper.0, boundary, id.0);
        if holders == 0 {
            self.insert_idle_after(id, upper);
        }
        upper
    }

    /// A new leaf below `parent`, held once.
    fn add(&mut self, parent: NodeId, keys: &[BlockKey], blocks: &[BlockId]) -> NodeId {
        let id = self.vacant_node();
        let above = self.node(parent);
        let start = above.start + above.keys.len() as u32;
        let node = self.node_mut(id);
        node.parent = parent;
        node.start = start;
        node.holders = 1;
        node.is_marked = false;
        node.keys.extend_from_slice(keys);
        node.blocks.extend_from_slice(blocks);
        self.held_blocks += blocks.len() as u32;
        self.index.set(parent.0, keys[0], id.0);
        if let Some(news) = &mut self.news {
            news.extend(keys.iter().filter(|key| key.is_milestone()));
        }
        let parent = self.node_mut(parent);
        parent.children += 1;
        parent.combined ^= id.0;
        id
    }

    fn vacant_node(&mut self) -> NodeId {
        self.vacant.pop().unwrap_or_else(|| {
            let id = NodeId(self.nodes.len() as u32);
            self.nodes.push(Node::VACANT);
            id
        })
    }

    fn remove_leaf(&mut self, id: NodeId) {
        self.unlink_idle(id);
        let node = self.node_mut(id);
        let (parent, first) = (node.parent, node.keys[0]);
        node.keys.clear();
        self.index.remove(parent.0, first);
        self.vacant.push(id);
        let above = self.node_mut(parent);
        above.children -= 1;
        above.combined ^= id.0;
        if parent != ROOT && above.children == 1 {
            self.join(parent);
        }
    }

    /// Makes one node of an upper one and its only child, where every sequence that holds the one holds the other; so that paths
    /// stay as short as what branches off them demands. The lower one keeps its id, as when they were cut.
    fn join(&mut self, upper: NodeId) {
        let lower = NodeId(self.node(upper).combined);
        let holders = self.node(upper).holders;
        let is_apart = self.node(lower).holders != holders;
        // Idle ones must be evicted one right after the other as they are.
        if is_apart || (holders == 0 && self.node(lower).newer != upper) {
            return;
        }
        if holders == 0 {
            self.unlink_idle(upper);
        }
        let Node { parent, start, mut keys, mut blocks, .. } =
            std::mem::replace(self.node_mut(upper), Node::VACANT);
        let (first, moved) = (keys[0], keys.len());
        self.index.remove(upper.0, self.nodes[lower.0 as usize].keys[0]);
        let joined = self.node_mut(lower);
        keys.append(&mut joined.keys);
        blocks.append(&mut joined.blocks);
        (joined.parent, joined.start, joined.keys, joined.blocks) = (parent, start, keys, blocks);
        self.mark(lower, moved);
        self.index.set(parent.0, first, lower.0);
        self.node_mut(parent).combined ^= upper.0 ^ lower.0;
        self.vacant.push(upper);
    }

    fn hold_node(&mut self, id: NodeId) {
        if self.node(id).holders == 0 {
            let blocks = self.node(id).blocks.len() as u32;
            self.idle_blocks -= blocks;
            self.held_blocks += blocks;
            self.unlink_idle(id);
        }
        self.node_mut(id).holders += 1;
    }

    fn append_idle(&mut self, id: NodeId) {
        self.link(self.newest, id);
        self.link(id, NONE);
    }

    fn insert_idle_after(&mut self, older: NodeId, id: NodeId) {
        let newer = self.node(older).newer;
        self.link(older, id);
        self.link(id, newer);
    }

    fn unlink_idle(&mut self, id: NodeId) {
        let Node { older, newer, .. } = *self.node(id);
        self.link(older, newer);
    }

    /// Makes two nodes neighbours; `NONE` stands for the end of the list.
    fn link(&mut self, older: NodeId, newer: NodeId) {
        match older {
            NONE => self.oldest = newer,
            _ => self.node_mut(older).newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            _ => self.node_mut(newer).older = older,
        }
    }
}

fn common(run: &[BlockKey], keys: &[BlockKey]) -> usize {
    let limit = run.len().min(keys.len());
    // Whole runs usually match, and slices compare faster than elements.
    if run[..limit] == keys[..limit] {
        return limit;
    }
    run.iter().zip(keys).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
#[path = "prefix_tests.rs"]
mod tests;
