//! Partitions: in one direction only, of half of the cluster, of everything, and links that come and go.

use super::*;

/// What a cut holds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    ToControl,
    ToNode,
    Both,
}

/// Until when nothing passes, by direction.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cut {
    to_control: u64,
    to_node: u64,
}

impl Cut {
    pub(super) fn until(self, way: Way) -> u64 {
        match way {
            Way::ToControl => self.to_control,
            Way::ToNode => self.to_node,
            Way::Both => self.to_control.max(self.to_node),
        }
    }

    pub(super) fn lengthen(&mut self, way: Way, until: u64) {
        if way != Way::ToNode {
            self.to_control = self.to_control.max(until);
        }
        if way != Way::ToControl {
            self.to_node = self.to_node.max(until);
        }
    }
}

impl World {
    pub(super) fn partition(&mut self) {
        if !self.is_stormy {
            return;
        }
        let pause = self.random.between(1_000, 20_000);
        self.after(pause, Coming::Partition);
        let first = self.random.between(0, NODES as u64) as usize;
        let some = |count: usize| (0..count).map(move |number| (first + number) % NODES);
        let length = self.random.between(100, 40_000);
        match self.random.between(0, 5) {
            0 => self.cut(first, Way::ToControl, length),
            1 => self.cut(first, Way::ToNode, length),
            2 => some(NODES / 2 + 1).for_each(|node| self.cut(node, Way::Both, length)),
            3 => some(NODES).for_each(|node| self.cut(node, Way::Both, length)),
            _ => {
                let (up, down) = (self.random.between(50, 2_000), self.random.between(50, 4_000));
                for number in 0..8 {
                    let cut = Coming::Cut { node: first, way: Way::Both, length: down };
                    self.after(number * (up + down) + 1, cut);
                }
            }
        }
    }

    pub(super) fn cut(&mut self, node: usize, way: Way, length: u64) {
        if self.is_stormy {
            let until = self.now + length;
            self.nodes[node].cut.lengthen(way, until);
        }
    }
}
