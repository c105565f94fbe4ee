//! What a collective does to memory, once every member's elements can be read: which bytes of which member end up where.
//!
//! Sums are in the order of members, whoever computes them and however the work is cut.

#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::arithmetic::{Combine, combine};
use crate::span::copy;
use crate::{Call, Operation};

/// Where a member's elements can be read. Part `p`, number `i` lies at `(p * stride + i - origin)` elements from `address`.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemberSource {
    pub(super) address: *const u8,
    pub(super) stride: usize,
    pub(super) origin: usize,
}

impl MemberSource {
    fn at(&self, part: usize, number: usize, size: usize) -> *const u8 {
        self.address.wrapping_add((part * self.stride + number - self.origin) * size)
    }
}

/// Parts of a member's source: the shares of all members, or one.
pub(super) fn source_parts(call: &Call, member: usize, members: usize) -> usize {
    match call.operation {
        Operation::ReduceScatter | Operation::AllToAll => members,
        Operation::Scatter if member == call.root as usize => members,
        Operation::Broadcast | Operation::Scatter if member != call.root as usize => 0,
        Operation::Barrier => 0,
        _ => 1,
    }
}

/// Parts of a member's target.
pub(super) fn target_parts(call: &Call, member: usize, members: usize) -> usize {
    let is_root = member == call.root as usize;
    match call.operation {
        Operation::AllGather | Operation::AllToAll => members,
        Operation::Gather if is_root => members,
        Operation::Gather | Operation::Reduce if !is_root => 0,
        Operation::Barrier => 0,
        _ => 1,
    }
}

pub(super) fn combining(call: &Call, members: usize) -> Combine {
    Combine { format: call.format, by: call.by, divide_by: members as u32 }
}

/// Delivers a range of every part to one member.
///
/// # Safety
///
/// Sources and target must be alive for the parts of the call, complete in this range, and not written by others.
#[expect(unsafe_code, reason = "reads and writes memory of other processes")]
pub(super) unsafe fn deliver(
    call: &Call,
    sources: &[MemberSource],
    to: usize,
    target: *mut u8,
    range: Range<usize>,
) {
    let (members, size) = (sources.len(), call.format.size());
    let (len, part_len) = (range.len(), call.len as usize);
    let place = |part: usize| target.wrapping_add((part * part_len + range.start) * size);
    let from = |member: usize, part: usize| sources[member].at(part, range.start, size);
    let root = call.root as usize;
    // SAFETY: the parts exist by the call, the range is inside a part, and the rest is as the caller upholds.
    let add = |part: usize| unsafe { sum(call, sources, part, &[place(0)], range.clone()) };
    // SAFETY: as above.
    let give = |from: *const u8, to: *mut u8| unsafe { copy(from, to, len * size) };
    match call.operation {
        Operation::AllReduce => add(0),
        Operation::ReduceScatter => add(to),
        Operation::Reduce if to == root => add(0),
        Operation::AllGather => (0..members).for_each(|member| give(from(member, 0), place(member))),
        Operation::AllToAll => (0..members).for_each(|member| give(from(member, to), place(member))),
        Operation::Gather if to == root => {
            (0..members).for_each(|member| give(from(member, 0), place(member)))
        }
        Operation::Broadcast if to != root => give(from(root, 0), place(0)),
        Operation::Scatter => give(from(root, to), place(0)),
        _ => {}
    }
}

/// Adds up a range of one part of all sources into every target, which are given for the start of the range.
///
/// # Safety
///
/// As for [`deliver`].
#[expect(unsafe_code, reason = "reads and writes memory of other processes")]
pub(super) unsafe fn sum(
    call: &Call,
    sources: &[MemberSource],
    part: usize,
    targets: &[*mut u8],
    range: Range<usize>,
) {
    let size = call.format.size();
    let mut addresses = [std::ptr::null(); 16];
    let many: Vec<*const u8>;
    let from = if sources.len() <= addresses.len() {
        for (address, source) in addresses.iter_mut().zip(sources) {
            *address = source.at(part, range.start, size);
        }
        &addresses[..sources.len()]
    } else {
        many = sources.iter().map(|source| source.at(part, range.start, size)).collect();
        &many[..]
    };
    // SAFETY: as the caller upholds.
    unsafe { combine(combining(call, sources.len()), from, targets, range.len()) };
}

/// A collective cut into pieces that any member can do, because it can reach everybody's sources and targets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pieces {
    call: Call,
    members: usize,
    units: usize,
    per_unit: usize,
    piece_len: usize,
}

/// Bytes of a piece: large enough that claiming costs nothing, small enough that members finish together.
const PIECE: usize = 128 << 10;

impl Pieces {
    pub(super) fn of(call: &Call, members: usize) -> Self {
        let units = match call.operation {
            Operation::AllReduce | Operation::Broadcast | Operation::Reduce => 1,
            Operation::AllToAll => members * members,
            Operation::Barrier => 0,
            _ => members,
        };
        let len = call.len as usize;
        let most = (PIECE / call.format.size()).max(1);
        let per_unit = len.div_ceil(most);
        // A multiple of a cache line, so that pieces do not share lines.
        let piece_len = len.div_ceil(per_unit.max(1)).next_multiple_of(64);
        let per_unit = if len == 0 { 0 } else { len.div_ceil(piece_len) };
        Self { call: *call, members, units, per_unit, piece_len }
    }

    pub(super) fn count(&self) -> u32 {
        (self.units * self.per_unit) as u32
    }

    /// # Safety
    ///
    /// As for [`deliver`], for the sources and targets of all members; each piece is done once.
    #[expect(unsafe_code, reason = "reads and writes memory of other processes")]
    pub(super) unsafe fn perform(&self, piece: u32, sources: &[MemberSource], targets: &[*mut u8]) {
        let (unit, within) = (piece as usize / self.per_unit, piece as usize % self.per_unit);
        let (len, size) = (self.call.len as usize, self.call.format.size());
        let start = within * self.piece_len;
        let range = start..(start + self.piece_len).min(len);
        let bytes = range.len() * size;
        let place = |member: usize, part: usize| targets[member].wrapping_add((part * len + start) * size);
        let from = |member: usize, part: usize| sources[member].at(part, start, size);
        let root = self.call.root as usize;
        // SAFETY: as the caller upholds.
        let add = |part: usize, to: &[*mut u8]| unsafe { sum(&self.call, sources, part, to, range.clone()) };
        // SAFETY: as the caller upholds.
        let give = |from: *const u8, to: *mut u8| unsafe { copy(from, to, bytes) };
        let all = 0..self.members;
        match self.call.operation {
            Operation::AllReduce => add(0, &all.map(|member| place(member, 0)).collect::<Vec<_>>()),
            Operation::AllGather => all.for_each(|member| give(from(unit, 0), place(member, unit))),
            Operation::Broadcast => {
                all.filter(|member| *member != root).for_each(|member| give(from(root, 0), place(member, 0)));
            }
            Operation::AllToAll => {
                let (giver, taker) = (unit / self.members, unit % self.members);
                give(from(giver, taker), place(taker, giver));
            }
            Operation::ReduceScatter => add(unit, &[place(unit, 0)]),
            Operation::Reduce => add(0, &[place(root, 0)]),
            Operation::Gather => give(from(unit, 0), place(root, unit)),
            Operation::Scatter => give(from(root, unit), place(unit, 0)),
            _ => {}
        }
    }
}
