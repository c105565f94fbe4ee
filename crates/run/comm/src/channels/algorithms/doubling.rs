//! Recursive doubling and halving: partners at growing or shrinking distance, in as many steps as the number of members has
//! binary digits.

use std::ops::Range;

use super::{combine_into, copy_into, elements};
use crate::channels::Channels;
use crate::engine::CollectiveTask;
use crate::span::ByteSpan;
use crate::{Call, Fault};

impl Channels {
    /// All elements with a partner in each step: few steps, for small messages. Members beyond a power of two fold their
    /// elements into a neighbour's first and get the result last.
    pub(super) fn doubling_all_reduce(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, waiting } = *task;
        let members = self.members();
        copy_into(source, target);
        let room = self.room(target.bytes);
        let power = 1 << members.ilog2();
        let folded = members - power;
        if self.me < 2 * folded {
            if self.me.is_multiple_of(2) {
                self.exchange(&[(self.me + 1, target)], &[], waiting)?;
                return self.exchange(&[], &[(self.me + 1, target)], waiting);
            }
            self.exchange(&[], &[(self.me - 1, room)], waiting)?;
            combine_into(call, 0, &[room, target], target);
        }
        let place = if self.me < 2 * folded { self.me / 2 } else { self.me - folded };
        let member = |place: usize| if place < folded { 2 * place + 1 } else { place + folded };
        let mut distance = 1;
        while distance < power {
            let partner = member(place ^ distance);
            self.exchange(&[(partner, target)], &[(partner, room)], waiting)?;
            self.combine_with(call, partner, room, target);
            distance *= 2;
        }
        combine_into(call, members, &[target], target);
        if self.me < 2 * folded {
            self.exchange(&[(self.me - 1, target)], &[], waiting)?;
        }
        Ok(())
    }

    /// Half of the elements with a partner, then half of that half, until each member has the sum of its share; then back. For a
    /// power of two of members.
    pub(super) fn halving_all_reduce(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, waiting } = *task;
        let members = self.members();
        copy_into(source, target);
        let room = self.room(target.bytes);
        let part = |range: &Range<usize>| elements(call, target, 0, range);
        let mut mine = 0..call.len as usize;
        let mut given = Vec::new();
        let mut distance = members / 2;
        while distance > 0 {
            let partner = self.me ^ distance;
            let middle = mine.start + mine.len() / 2;
            let (kept, sent) = match self.me & distance {
                0 => (mine.start..middle, middle..mine.end),
                _ => (middle..mine.end, mine.start..middle),
            };
            let incoming = elements(call, room, 0, &kept);
            self.exchange(&[(partner, part(&sent))], &[(partner, incoming)], waiting)?;
            self.combine_with(call, partner, incoming, part(&kept));
            given.push((partner, sent));
            mine = kept;
            distance /= 2;
        }
        combine_into(call, members, &[part(&mine)], part(&mine));
        for (partner, theirs) in given.into_iter().rev() {
            self.exchange(&[(partner, part(&mine))], &[(partner, part(&theirs))], waiting)?;
            mine = mine.start.min(theirs.start)..mine.end.max(theirs.end);
        }
        Ok(())
    }

    /// In the order of members, so that both partners get the same bits.
    fn combine_with(&self, call: &Call, partner: usize, theirs: ByteSpan, mine: ByteSpan) {
        let sources = if partner < self.me { [theirs, mine] } else { [mine, theirs] };
        combine_into(call, 0, &sources, mine);
    }
}
