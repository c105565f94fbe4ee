//! Every member with every other at once: each sums its own share of the elements, in the order of members and rounded once.
//!
//! It moves as few bytes as a ring, in one step instead of one for each member. A ring is kinder to a network of many hosts,
//! where a member that hears from all at once is slowed down.

use super::{combine_into, copy_into, elements, pieces, share};
use crate::channels::Channels;
use crate::engine::CollectiveTask;
use crate::span::ByteSpan;
use crate::waiting::Waiting;
use crate::{Call, Fault};

impl Channels {
    pub(super) fn pairwise_all_reduce(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, target, waiting, .. } = *task;
        let (len, members) = (call.len as usize, self.members());
        self.reduce_shares(task)?;
        let all = |member: usize| elements(call, target, 0, &share(len, member, members));
        let sends: Vec<_> = self.others().map(|peer| (peer, all(self.me))).collect();
        let receives: Vec<_> = self.others().map(|peer| (peer, all(peer))).collect();
        self.exchange(&sends, &receives, waiting)
    }

    /// Each member sums its share of the whole into the same place of its target.
    fn reduce_shares(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, waiting } = *task;
        let (len, members) = (call.len as usize, self.members());
        let longest = len.div_ceil(members);
        for piece in pieces(call, longest) {
            let part = |member: usize| {
                let whole = share(len, member, members);
                whole.start + piece.start.min(whole.len())..whole.start + piece.end.min(whole.len())
            };
            let mine = part(self.me);
            let target = elements(call, target, 0, &mine);
            let own = elements(call, source, 0, &mine);
            let theirs = |peer: usize| elements(call, source, 0, &part(peer));
            self.sum_from_all(call, own, target, theirs, waiting)?;
        }
        Ok(())
    }

    pub(super) fn pairwise_reduce_scatter(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, waiting } = *task;
        let len = call.len as usize;
        for piece in pieces(call, len) {
            let part = |member: usize| elements(call, source, member * len, &piece);
            let target = elements(call, target, 0, &piece);
            self.sum_from_all(call, part(self.me), target, part, waiting)?;
        }
        Ok(())
    }

    /// Sends each member its elements, and sums what all send into the target.
    fn sum_from_all(
        &mut self,
        call: &Call,
        own: ByteSpan,
        target: ByteSpan,
        theirs: impl Fn(usize) -> ByteSpan,
        waiting: &Waiting<'_>,
    ) -> Result<(), Fault> {
        let members = self.members();
        let room = self.room(own.bytes * members);
        let place = |member: usize| room.part(member * own.bytes, own.bytes);
        let sends: Vec<_> = self.others().map(|peer| (peer, theirs(peer))).collect();
        let receives: Vec<_> = self.others().map(|peer| (peer, place(peer))).collect();
        self.exchange(&sends, &receives, waiting)?;
        let me = self.me;
        let sources: Vec<ByteSpan> =
            (0..members).map(|member| if member == me { own } else { place(member) }).collect();
        combine_into(call, members, &sources, target);
        Ok(())
    }

    pub(super) fn pairwise_all_gather(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, waiting } = *task;
        let len = call.len as usize;
        let place = |member: usize| elements(call, target, member * len, &(0..len));
        copy_into(source, place(self.me));
        let sends: Vec<_> = self.others().map(|peer| (peer, source)).collect();
        let receives: Vec<_> = self.others().map(|peer| (peer, place(peer))).collect();
        self.exchange(&sends, &receives, waiting)
    }

    pub(super) fn pairwise_all_to_all(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let counts = vec![task.call.len as usize; self.members()];
        self.all_to_all_v(task, &counts, &counts)
    }

    /// Parts of any lengths, one after the other in source and target.
    pub(crate) fn all_to_all_v(
        &mut self,
        task: &CollectiveTask<'_>,
        sent: &[usize],
        received: &[usize],
    ) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, waiting } = *task;
        let (from, to) = (parts(call, source, sent), parts(call, target, received));
        copy_into(from[self.me], to[self.me]);
        let sends: Vec<_> = self.others().map(|peer| (peer, from[peer])).collect();
        let receives: Vec<_> = self.others().map(|peer| (peer, to[peer])).collect();
        self.exchange(&sends, &receives, waiting)
    }

    pub(super) fn pairwise_reduce(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, waiting } = *task;
        let root = call.root as usize;
        for piece in pieces(call, call.len as usize) {
            let own = elements(call, source, 0, &piece);
            if self.me != root {
                self.exchange(&[(root, own)], &[], waiting)?;
                continue;
            }
            let members = self.members();
            let room = self.room(own.bytes * members);
            let place = |member: usize| room.part(member * own.bytes, own.bytes);
            let receives: Vec<_> = self.others().map(|peer| (peer, place(peer))).collect();
            self.exchange(&[], &receives, waiting)?;
            let sources: Vec<ByteSpan> =
                (0..members).map(|member| if member == root { own } else { place(member) }).collect();
            combine_into(call, members, &sources, elements(call, target, 0, &piece));
        }
        Ok(())
    }

    pub(super) fn gather(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, waiting } = *task;
        let (len, root) = (call.len as usize, call.root as usize);
        if self.me != root {
            return self.exchange(&[(root, source)], &[], waiting);
        }
        let place = |member: usize| elements(call, target, member * len, &(0..len));
        copy_into(source, place(root));
        let receives: Vec<_> = self.others().map(|peer| (peer, place(peer))).collect();
        self.exchange(&[], &receives, waiting)
    }

    pub(super) fn scatter(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, waiting } = *task;
        let (len, root) = (call.len as usize, call.root as usize);
        if self.me != root {
            return self.exchange(&[], &[(root, target)], waiting);
        }
        let part = |member: usize| elements(call, source, member * len, &(0..len));
        copy_into(part(root), target);
        let sends: Vec<_> = self.others().map(|peer| (peer, part(peer))).collect();
        self.exchange(&sends, &[], waiting)
    }
}

/// Parts of given lengths, one after the other.
fn parts(call: &Call, span: ByteSpan, counts: &[usize]) -> Vec<ByteSpan> {
    let mut first = 0;
    let part = |count: &usize| {
        let part = elements(call, span, first, &(0..*count));
        first += count;
        part
    };
    counts.iter().map(part).collect()
}
