//! Which nodes, of those that will do: close to each other, and so that large sets stay whole.

use std::ops::Range;

use crate::Packing;
use crate::fleet::NodeFleet;
use crate::view::{NodeSetRule, Openings, RequestClass};

/// Chooses the nodes of one role; `None` when the rule cannot be kept.
pub(crate) fn choose(
    fleet: &NodeFleet,
    class: &RequestClass,
    open: &Openings<'_>,
    packing: Packing,
) -> Option<Vec<u32>> {
    let picker = Picker { fleet, open, packing };
    let all = 0..fleet.count();
    let count = class.nodes;
    let mut chosen = match class.rule {
        NodeSetRule::Anywhere => picker.anywhere(all, count)?,
        NodeSetRule::OneSet { level } => picker.in_one_set(usize::from(level), count)?,
        NodeSetRule::Segments { level, segment } => picker.in_segments(usize::from(level), count, segment)?,
        NodeSetRule::Spread { level } => picker.spread(usize::from(level), count)?,
    };
    chosen.sort_unstable();
    Some(chosen)
}

struct Picker<'a> {
    fleet: &'a NodeFleet,
    open: &'a Openings<'a>,
    packing: Packing,
}

impl Picker<'_> {
    fn anywhere(&self, all: Range<u32>, count: u32) -> Option<Vec<u32>> {
        if self.packing == Packing::FirstFit {
            return self.first(all, count);
        }
        if count == 1 {
            return self.fullest_node().map(|node| vec![node]);
        }
        let levels = self.fleet.levels().len();
        (0..levels).find_map(|level| self.in_one_set(level, count))
    }

    /// The first open nodes in order.
    fn first(&self, nodes: Range<u32>, count: u32) -> Option<Vec<u32>> {
        let chosen: Vec<u32> = nodes.filter(|node| self.open.is_open(*node)).take(count as usize).collect();
        (chosen.len() == count as usize).then_some(chosen)
    }

    /// The node with the least left over, in the set with the fewest open nodes.
    fn fullest_node(&self) -> Option<u32> {
        let sets = self.fleet.levels().first()?;
        let mut best = None;
        for set in &sets.sets {
            let open = self.open.count(set.clone());
            if open == 0 {
                continue;
            }
            let node = self.fullest_in(set.clone())?;
            let key = (self.open.spare(node), open);
            if best.is_none_or(|(least, _)| key < least) {
                best = Some((key, node));
            }
        }
        best.map(|(_, node)| node)
    }

    fn fullest_in(&self, set: Range<u32>) -> Option<u32> {
        set.filter(|node| self.open.is_open(*node)).min_by_key(|node| self.open.spare(*node))
    }

    /// All in the set of a level that has the fewest open nodes of those with enough.
    fn in_one_set(&self, level: usize, count: u32) -> Option<Vec<u32>> {
        let sets = &self.fleet.levels()[level].sets;
        let counted = sets.iter().map(|set| (self.open.count(set.clone()), set));
        let mut fitting = counted.filter(|(open, _)| *open >= count);
        match self.packing {
            Packing::FirstFit => self.first(fitting.next()?.1.clone(), count),
            Packing::Topology => {
                let (_, set) = fitting.min_by_key(|(open, set)| (*open, set.start))?;
                Some(self.within(set.clone(), count, level))
            }
        }
    }

    /// `count` open nodes of a set that has as many: whole subsets first, the rest from the tightest fit.
    fn within(&self, set: Range<u32>, count: u32, level: usize) -> Vec<u32> {
        if level == 0 {
            return self.fullest(set, count);
        }
        let below = &self.fleet.levels()[level - 1].sets;
        let first = below.partition_point(|sub| sub.start < set.start);
        let inside = below[first..].iter().take_while(|sub| sub.end <= set.end);
        let mut subsets: Vec<(u32, Range<u32>)> = inside
            .map(|sub| (self.open.count(sub.clone()), sub.clone()))
            .filter(|(open, _)| *open > 0)
            .collect();
        subsets.sort_by_key(|(open, sub)| (std::cmp::Reverse(*open), sub.start));
        let mut chosen = Vec::with_capacity(count as usize);
        while (chosen.len() as u32) < count {
            let missing = count - chosen.len() as u32;
            let tightest = subsets.iter().rposition(|(open, _)| *open >= missing);
            let (open, subset) = subsets.remove(tightest.unwrap_or(0));
            chosen.extend(self.within(subset, open.min(missing), level - 1));
        }
        chosen
    }

    /// The open nodes with the least left over.
    fn fullest(&self, set: Range<u32>, count: u32) -> Vec<u32> {
        let mut nodes: Vec<u32> = set.filter(|node| self.open.is_open(*node)).collect();
        nodes.sort_by_key(|node| self.open.spare(*node));
        nodes.truncate(count as usize);
        nodes
    }

    fn in_segments(&self, level: usize, count: u32, segment: u32) -> Option<Vec<u32>> {
        let sets = &self.fleet.levels()[level].sets;
        let mut fitting: Vec<(u32, Range<u32>)> = sets
            .iter()
            .map(|set| (self.open.count(set.clone()) / segment, set.clone()))
            .filter(|(n, _)| *n > 0)
            .collect();
        fitting.sort_by_key(|(segments, set)| (std::cmp::Reverse(*segments), set.start));
        let mut missing = count / segment;
        let mut chosen = Vec::with_capacity(count as usize);
        while missing > 0 {
            if fitting.is_empty() {
                return None;
            }
            let tightest = fitting.iter().rposition(|(segments, _)| *segments >= missing);
            let (segments, set) = fitting.remove(tightest.unwrap_or(0));
            let taken = segments.min(missing);
            chosen.extend(self.within(set, taken * segment, level));
            missing -= taken;
        }
        Some(chosen)
    }

    /// One node from each set in turn, beginning with the sets that have most to give.
    fn spread(&self, level: usize, count: u32) -> Option<Vec<u32>> {
        let sets = &self.fleet.levels()[level].sets;
        let mut queues: Vec<Vec<u32>> = sets
            .iter()
            .map(|set| self.fullest(set.clone(), count))
            .filter(|nodes| !nodes.is_empty())
            .collect();
        queues.sort_by_key(|nodes| (std::cmp::Reverse(nodes.len()), nodes[0]));
        let mut chosen = Vec::with_capacity(count as usize);
        for turn in 0..count as usize {
            let of_turn = queues.iter().filter_map(|nodes| nodes.get(turn));
            chosen.extend(of_turn.take(count as usize - chosen.len()));
            if chosen.len() == count as usize {
                return Some(chosen);
            }
        }
        None
    }
}
