//! Binomial trees: as many steps as the number of members has binary digits.

use super::{combine_into, elements, pieces};
use crate::Fault;
use crate::channels::Channels;
use crate::engine::CollectiveTask;
use crate::span::ByteSpan;
use crate::waiting::Waiting;

/// A member's place in the tree of a root.
struct Branch {
    parent: Option<usize>,
    /// The nearest first.
    children: Vec<usize>,
}

impl Channels {
    fn branch(&self, root: usize) -> Branch {
        let members = self.members();
        let place = (self.me + members - root) % members;
        let member = |place: usize| (place + root) % members;
        let lowest = if place == 0 { members.next_power_of_two() } else { 1 << place.trailing_zeros() };
        let distances = std::iter::successors(Some(1), |distance| Some(distance * 2));
        let children = distances
            .take_while(|distance| *distance < lowest)
            .filter(|distance| place + distance < members)
            .map(|distance| member(place + distance))
            .collect();
        Branch { parent: (place > 0).then(|| member(place - lowest)), children }
    }

    pub(super) fn tree_broadcast(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, waiting } = *task;
        let branch = self.branch(call.root as usize);
        for piece in pieces(call, call.len as usize) {
            let part = match branch.parent {
                None => elements(call, source, 0, &piece),
                Some(parent) => {
                    let part = elements(call, target, 0, &piece);
                    self.exchange(&[], &[(parent, part)], waiting)?;
                    part
                }
            };
            // The farthest first: it has the most to do.
            let sends: Vec<_> = branch.children.iter().rev().map(|child| (*child, part)).collect();
            self.exchange(&sends, &[], waiting)?;
        }
        Ok(())
    }

    pub(super) fn tree_reduce(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, waiting } = *task;
        let branch = self.branch(call.root as usize);
        for piece in pieces(call, call.len as usize) {
            let own = elements(call, source, 0, &piece);
            let room = self.room(own.bytes * (branch.children.len() + 1));
            let sum = match branch.parent {
                None => elements(call, target, 0, &piece),
                Some(_) => room.part(branch.children.len() * own.bytes, own.bytes),
            };
            let place = |index: usize| room.part(index * own.bytes, own.bytes);
            let receives: Vec<_> =
                branch.children.iter().enumerate().map(|(index, child)| (*child, place(index))).collect();
            self.exchange(&[], &receives, waiting)?;
            let mut sources = vec![own];
            sources.extend(receives.iter().map(|(_, place)| *place));
            let divide_by = if branch.parent.is_none() { self.members() } else { 0 };
            combine_into(call, divide_by, &sources, sum);
            if let Some(parent) = branch.parent {
                self.exchange(&[(parent, sum)], &[], waiting)?;
            }
        }
        Ok(())
    }

    /// Each member hears, in growing distance, from all before it.
    pub(super) fn barrier(&mut self, waiting: &Waiting<'_>) -> Result<(), Fault> {
        let members = self.members();
        let mut distance = 1;
        while distance < members {
            let (to, from) = ((self.me + distance) % members, (self.me + members - distance) % members);
            self.exchange(&[(to, ByteSpan::NOTHING)], &[(from, ByteSpan::NOTHING)], waiting)?;
            distance *= 2;
        }
        Ok(())
    }
}
