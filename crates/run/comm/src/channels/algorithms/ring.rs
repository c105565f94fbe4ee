//! Members in a ring, each with its two neighbours: partial sums travel round it, and every link carries as much.
//!
//! The elements of member `m`'s share are added from member `m + 1` on. Formats of 16 bits are rounded at every hop.

use std::ops::Range;

use super::{combine_into, copy_into, elements, pieces, share};
use crate::channels::Channels;
use crate::engine::CollectiveTask;
use crate::span::ByteSpan;
use crate::waiting::Waiting;
use crate::{Call, Fault};

impl Channels {
    fn before(&self, steps: usize) -> usize {
        (self.me + self.members() - steps % self.members()) % self.members()
    }

    pub(super) fn ring_all_reduce(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, waiting } = *task;
        let (len, members) = (call.len as usize, self.members());
        for piece in pieces(call, len.div_ceil(members)) {
            let part = |member: usize| -> Range<usize> {
                let whole = share(len, member, members);
                whole.start + piece.start.min(whole.len())..whole.start + piece.end.min(whole.len())
            };
            let source = |member: usize| elements(call, source, 0, &part(member));
            let target = |member: usize| elements(call, target, 0, &part(member));
            let mine = target(self.me);
            self.pass_sums(call, source, mine, waiting)?;
            self.pass_on(target, waiting)?;
        }
        Ok(())
    }

    pub(super) fn ring_reduce_scatter(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, waiting } = *task;
        let len = call.len as usize;
        for piece in pieces(call, len) {
            let part = |member: usize| elements(call, source, member * len, &piece);
            self.pass_sums(call, part, elements(call, target, 0, &piece), waiting)?;
        }
        Ok(())
    }

    pub(super) fn ring_all_gather(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, waiting } = *task;
        let len = call.len as usize;
        copy_into(source, elements(call, target, self.me * len, &(0..len)));
        for piece in pieces(call, len) {
            self.pass_on(|member| elements(call, target, member * len, &piece), waiting)?;
        }
        Ok(())
    }

    /// Partial sums go round until this member's own are complete.
    fn pass_sums(
        &mut self,
        call: &Call,
        part: impl Fn(usize) -> ByteSpan,
        target: ByteSpan,
        waiting: &Waiting<'_>,
    ) -> Result<(), Fault> {
        let members = self.members();
        let (next, previous) = ((self.me + 1) % members, self.before(1));
        let longest = (0..members).map(|member| part(member).bytes).max().unwrap_or(0).next_multiple_of(8);
        let room = self.room(2 * longest);
        let mut outgoing = part(self.before(1));
        for step in 1..members {
            let about = self.before(step + 1);
            let own = part(about);
            let is_last = step + 1 == members;
            let incoming = room.part(step % 2 * longest, own.bytes);
            self.exchange(&[(next, outgoing)], &[(previous, incoming)], waiting)?;
            let sum = if is_last { target } else { incoming };
            combine_into(call, if is_last { members } else { 0 }, &[incoming, own], sum);
            outgoing = sum;
        }
        if members == 1 {
            copy_into(outgoing, target);
        }
        Ok(())
    }

    /// What each member has goes round until all have it.
    fn pass_on(&mut self, part: impl Fn(usize) -> ByteSpan, waiting: &Waiting<'_>) -> Result<(), Fault> {
        let members = self.members();
        let (next, previous) = ((self.me + 1) % members, self.before(1));
        for step in 0..members - 1 {
            let (outgoing, incoming) = (part(self.before(step)), part(self.before(step + 1)));
            self.exchange(&[(next, outgoing)], &[(previous, incoming)], waiting)?;
        }
        Ok(())
    }
}
