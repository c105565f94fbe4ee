//! The radix tree of cached prefixes.
//!
//! A node holds the blocks of a piece of a run of keys. A sequence *holds* the node at which its shared
//! prefix ends, and with it every node above. Nodes that no sequence holds are *idle*: they stay for later
//! requests until their blocks are needed.
//!
//! Kept true: `users` of a node counts the sequences that hold it and the nodes right below it that are not idle, so nothing below an
//! idle node is held, and holding a node below one that is held already goes no further up. The idle list is ordered by when a node was last
//! released, and when a path is released its lower nodes are listed before its upper ones; so the oldest idle node never has children, and taking
//! blocks from its end is least-recently-used eviction of leaves without searching for one.

use std::ops::Range;

use crate::blocks::{BlockId, BlockList};
use crate::keys::{BlockKey, BlockKeys};
use crate::runs::{RunNodes, RunPart, Runs};

/// A block that the tree gave up, with the prefix that it was. Its numbers are there until the next step writes to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted {
    pub key: BlockKey,
    pub block: BlockId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeId(u32);

impl NodeId {
    pub(crate) const ROOT: NodeId = NodeId(0);
    /// No node: the ends of the idle list.
    pub(crate) const NONE: NodeId = NodeId(u32::MAX);
}

#[derive(Debug, Clone)]
struct Node<B> {
    parent: NodeId,
    /// What its keys exceed their positions by.
    origin: u64,
    /// Blocks from the root to its first.
    start: u32,
    users: u32,
    /// How many nodes stand below it, and their numbers combined by exclusive or: of a single one, its number.
    children: u32,
    combined: u32,
    blocks: B,
    /// Neighbours in the idle list, meaningful while it is idle.
    older: NodeId,
    newer: NodeId,
}

impl<B: BlockList> Node<B> {
    fn vacant() -> Self {
        Self {
            parent: NodeId::NONE,
            origin: 0,
            start: 0,
            users: 0,
            children: 0,
            combined: 0,
            blocks: B::default(),
            older: NodeId::NONE,
            newer: NodeId::NONE,
        }
    }

    /// Blocks from the root to behind its last.
    fn end(&self) -> u32 {
        self.start + self.blocks.len()
    }

    fn is_idle(&self) -> bool {
        self.users == 0
    }
}

/// How much of a prompt the tree has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cached {
    pub(crate) blocks: u32,
    /// How many of these are idle, so that holding them makes fewer evictable.
    pub(crate) idle: u32,
    /// The node that has the last of them.
    node: NodeId,
}

/// A prefix that a sequence holds: all up to the end of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldPrefix {
    pub(crate) node: NodeId,
    pub(crate) blocks: u32,
}

impl HeldPrefix {
    pub(crate) const NOTHING: HeldPrefix = HeldPrefix { node: NodeId::ROOT, blocks: 0 };
}

/// How far the blocks of a run reach at most; 0 when there are none any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reach {
    pub(crate) origin: u64,
    pub(crate) end: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct PrefixTree<B> {
    nodes: Vec<Node<B>>,
    vacant: Vec<NodeId>,
    runs: Runs,
    /// Runs with other nodes than when this was last asked for, where anybody asks.
    changes: Option<Vec<Reach>>,
    oldest: NodeId,
    newest: NodeId,
    idle_blocks: u32,
    held_blocks: u32,
}

impl<B: BlockList> PrefixTree<B> {
    pub(crate) fn new() -> Self {
        // The root is never idle.
        let root = Node { users: 1, ..Node::vacant() };
        Self {
            nodes: vec![root],
            vacant: Vec::new(),
            runs: Runs::new(),
            changes: None,
            oldest: NodeId::NONE,
            newest: NodeId::NONE,
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

    /// How many blocks it has of those with the first `most` keys.
    pub(crate) fn known(&self, keys: &BlockKeys, most: u32) -> u32 {
        self.locate(keys, most).0
    }

    /// The longest known prefix of the first `most` keys, without touching anything.
    pub(crate) fn cached(&self, keys: &BlockKeys, most: u32) -> Cached {
        let (blocks, node) = self.locate(keys, most);
        let (mut first, mut above) = (blocks, node);
        while self.node(above).is_idle() {
            first = self.node(above).start;
            above = self.node(above).parent;
        }
        Cached { blocks, idle: blocks - first, node }
    }

    /// Holds the longest known prefix of `keys`.
    pub(crate) fn hold(&mut self, keys: &BlockKeys) -> HeldPrefix {
        let (blocks, node) = self.locate(keys, keys.len());
        self.hold_blocks(node, blocks)
    }

    /// Holds what was found, in the tree as it was then.
    pub(crate) fn hold_cached(&mut self, cached: &Cached) -> HeldPrefix {
        self.hold_blocks(cached.node, cached.blocks)
    }

    fn hold_blocks(&mut self, node: NodeId, blocks: u32) -> HeldPrefix {
        let held = HeldPrefix { node: self.cut(node, blocks), blocks };
        self.hold_again(held);
        held
    }

    /// Holds a prefix once more that is held, or ends with a node.
    pub(crate) fn hold_again(&mut self, held: HeldPrefix) {
        let mut at = held.node;
        while at != NodeId::ROOT {
            let node = self.node_mut(at);
            node.users += 1;
            if node.users > 1 {
                return;
            }
            let (blocks, parent) = (node.blocks.len(), node.parent);
            self.idle_blocks -= blocks;
            self.held_blocks += blocks;
            self.unlink_idle(at);
            at = parent;
        }
    }

    /// Releases a hold; nodes without users become idle.
    pub(crate) fn release(&mut self, held: HeldPrefix) {
        let mut at = held.node;
        while at != NodeId::ROOT {
            let node = self.node_mut(at);
            node.users -= 1;
            if node.users > 0 {
                return;
            }
            let (blocks, parent) = (node.blocks.len(), node.parent);
            self.idle_blocks += blocks;
            self.held_blocks -= blocks;
            self.append_idle(at);
            at = parent;
        }
    }

    /// Inserts blocks of a table, of which the caller holds the first, up to the position `end`, and lets it hold them too. Blocks that
    /// the tree has already take the place of those in the table, which are pushed on `spare`.
    pub(crate) fn extend(
        &mut self,
        held: HeldPrefix,
        keys: &BlockKeys,
        table: &mut B,
        end: u32,
        spare: &mut B,
    ) -> HeldPrefix {
        debug_assert!(end <= keys.len() && end <= table.len(), "every block has a key");
        let mut held = held;
        for run in keys.runs_from(held.blocks) {
            let to = run.end.min(end);
            while held.blocks < to {
                let nodes = self.runs.find(run.origin);
                held = match nodes.and_then(|nodes| self.node_with(nodes, held.blocks + 1)) {
                    Some(there) => {
                        let (from, to) = (held.blocks, self.node(there).end().min(to));
                        spare.append(table, from..to);
                        let longer = self.hold_blocks(there, to);
                        self.release(held);
                        let node = self.node(longer.node);
                        table.replace(from, &node.blocks, from - node.start..to - node.start);
                        longer
                    }
                    None => self.add(held, run.origin, table, held.blocks..to),
                };
            }
        }
        held
    }

    /// Takes up to `wanted` blocks from the nodes that have been idle longest, ends of prefixes first. `log` gets their keys too.
    pub(crate) fn evict(&mut self, wanted: u32, freed: &mut B, mut log: Option<&mut Vec<Evicted>>) {
        let mut missing = wanted.min(self.idle_blocks);
        self.idle_blocks -= missing;
        while missing > 0 {
            let id = self.oldest;
            let node = self.node_mut(id);
            let had = node.blocks.len();
            let kept = had.saturating_sub(missing);
            missing -= had - kept;
            if let Some(log) = &mut log {
                let evicted = (node.start..).zip(node.blocks.numbers()).skip(kept as usize);
                log.extend(evicted.map(|(position, block)| Evicted {
                    key: BlockKey::at(position, node.origin),
                    block: *block,
                }));
            }
            freed.append(&node.blocks, kept..had);
            node.blocks.truncate(kept);
            // A node that loses only its end is not reported: what is known of its run stays above what there is.
            if kept == 0 {
                self.remove_leaf(id);
            }
        }
    }

    /// Adds the blocks of a held prefix to a table, from its beginning.
    pub(crate) fn list(&self, held: HeldPrefix, table: &mut B) {
        table.append_lists(held.blocks, || {
            let mut path = Vec::new();
            let mut at = held.node;
            while at != NodeId::ROOT {
                path.push(&self.node(at).blocks);
                at = self.node(at).parent;
            }
            path.reverse();
            path
        });
    }

    /// Keeps a list of changes from now on.
    pub(crate) fn watch_changes(&mut self) {
        self.changes.get_or_insert_default();
    }

    /// How far runs reach that changed since this was last called.
    pub(crate) fn take_changes(&mut self) -> impl Iterator<Item = Reach> {
        self.changes.iter_mut().flat_map(|changes| changes.drain(..))
    }

    fn note_change(&mut self, origin: u64, end: u32) {
        if let Some(changes) = &mut self.changes {
            changes.push(Reach { origin, end });
        }
    }

    fn node(&self, id: NodeId) -> &Node<B> {
        &self.nodes[id.0 as usize]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node<B> {
        &mut self.nodes[id.0 as usize]
    }

    /// How many of the first `most` keys are known, and the node that has the last of them. Where a run is known, so are all before it.
    fn locate(&self, keys: &BlockKeys, most: u32) -> (u32, NodeId) {
        let runs = keys.runs_before(most);
        let known = match runs {
            [] | [_] | [_, _] => runs.len(),
            many => many.partition_point(|run| self.runs.find(run.origin).is_some()),
        };
        for at in (0..known).rev() {
            let Some(nodes) = self.runs.find(runs[at].origin) else { continue };
            let blocks = self.node(nodes.tip()).end().min(runs[at].end).min(most);
            // What is known under its name elsewhere is another run.
            let begins = at.checked_sub(1).map_or(0, |before| runs[before].end);
            if blocks > begins
                && let Some(node) = self.node_with(nodes, blocks)
            {
                return (blocks, node);
            }
        }
        (0, NodeId::ROOT)
    }

    /// Which of the nodes of a run has the block before a position.
    fn node_with(&self, nodes: RunNodes<'_>, position: u32) -> Option<NodeId> {
        let id = nodes.before(position)?;
        let node = self.node(id);
        (node.start < position && position <= node.end()).then_some(id)
    }

    /// The node that ends at `end`; splits it where it is longer. The lower part keeps
    /// the id, because sequences that hold it hold all of it.
    fn cut(&mut self, id: NodeId, end: u32) -> NodeId {
        if end == self.node(id).end() {
            return id;
        }
        let upper = self.vacant_node();
        let mut blocks = std::mem::take(&mut self.node_mut(upper).blocks);
        let lower = self.node_mut(id);
        let kept = end - lower.start;
        blocks.append(&lower.blocks, kept..lower.blocks.len());
        lower.blocks.truncate(kept);
        std::mem::swap(&mut lower.blocks, &mut blocks);
        let Node { parent, origin, start, users, .. } = *lower;
        lower.parent = upper;
        lower.start = end;
        let (children, combined) = (1, id.0);
        *self.node_mut(upper) =
            Node { parent, origin, start, users: users.min(1), children, combined, blocks, ..Node::vacant() };
        // The parent has the upper part instead of the lower one.
        self.node_mut(parent).combined ^= id.0 ^ upper.0;
        self.runs.cut(origin, RunPart { start, node: upper }, RunPart { start: end, node: id });
        if users == 0 {
            self.insert_idle_after(id, upper);
        }
        upper
    }

    /// Adds blocks of a run behind a held prefix, and lets its holder hold them: in the same node where nobody else uses it, otherwise
    /// in a new one below.
    fn add(&mut self, held: HeldPrefix, origin: u64, blocks: &B, part: Range<u32>) -> HeldPrefix {
        let new = part.end - part.start;
        self.held_blocks += new;
        let above = self.node_mut(held.node);
        let continues = above.origin == origin && held.node != NodeId::ROOT;
        let node = if continues && above.users == 1 && above.children == 0 {
            above.blocks.append(blocks, part);
            held.node
        } else {
            // The hold of the node above becomes that of its new child.
            self.add_leaf(held, origin, blocks, part)
        };
        self.note_change(origin, held.blocks + new);
        HeldPrefix { node, blocks: held.blocks + new }
    }

    fn add_leaf(&mut self, held: HeldPrefix, origin: u64, blocks: &B, part: Range<u32>) -> NodeId {
        let id = self.vacant_node();
        let node = self.node_mut(id);
        node.parent = held.node;
        node.origin = origin;
        node.start = held.blocks;
        node.users = 1;
        node.children = 0;
        node.combined = 0;
        node.blocks.append(blocks, part);
        let above = self.node_mut(held.node);
        above.children += 1;
        above.combined ^= id.0;
        let above = RunPart { start: above.start, node: held.node };
        self.runs.add(origin, above, RunPart { start: held.blocks, node: id });
        id
    }

    fn vacant_node(&mut self) -> NodeId {
        self.vacant.pop().unwrap_or_else(|| {
            let id = NodeId(self.nodes.len() as u32);
            self.nodes.push(Node::vacant());
            id
        })
    }

    fn remove_leaf(&mut self, id: NodeId) {
        self.unlink_idle(id);
        let Node { parent, origin, start, .. } = *self.node(id);
        let tip = self.runs.remove(origin, RunPart { start, node: id });
        self.note_change(origin, tip.map_or(0, |tip| self.node(tip).end()));
        self.vacant.push(id);
        let above = self.node_mut(parent);
        above.children -= 1;
        above.combined ^= id.0;
        if parent != NodeId::ROOT && above.children == 1 {
            self.join(parent);
        }
    }

    /// Makes one node of an upper one and its only child, where no sequence holds the upper one alone; so that paths
    /// stay about as short as what branches off them demands. The lower one keeps its id, as when they were cut.
    fn join(&mut self, upper: NodeId) {
        let lower = NodeId(self.node(upper).combined);
        let (above, below) = (self.node(upper), self.node(lower));
        let is_held_alone = above.users > u32::from(!below.is_idle());
        // Idle ones must be evicted one right after the other as they are.
        let is_apart = above.is_idle() && below.newer != upper;
        if above.origin != below.origin || is_held_alone || is_apart {
            return;
        }
        let Node { parent, origin, start, .. } = *above;
        let (is_idle, part) = (above.is_idle(), RunPart { start: below.start, node: lower });
        if !self.runs.join(origin, RunPart { start, node: upper }, part) {
            return;
        }
        if is_idle {
            self.unlink_idle(upper);
        }
        let mut blocks = std::mem::take(&mut self.node_mut(upper).blocks);
        let joined = self.node_mut(lower);
        blocks.append(&joined.blocks, 0..joined.blocks.len());
        std::mem::swap(&mut joined.blocks, &mut blocks);
        (joined.parent, joined.start) = (parent, start);
        blocks.truncate(0);
        self.node_mut(upper).blocks = blocks;
        self.node_mut(parent).combined ^= upper.0 ^ lower.0;
        self.vacant.push(upper);
    }

    fn append_idle(&mut self, id: NodeId) {
        self.link(self.newest, id);
        self.link(id, NodeId::NONE);
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
            NodeId::NONE => self.oldest = newer,
            _ => self.node_mut(older).newer = newer,
        }
        match newer {
            NodeId::NONE => self.newest = older,
            _ => self.node_mut(newer).older = older,
        }
    }
}

#[cfg(test)]
#[path = "prefix_tests.rs"]
mod tests;
