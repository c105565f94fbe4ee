//! The algorithms of calls over channels. All sum in an order that depends on the members alone, so a call gives the same bits
//! every time.

mod doubling;
mod pairwise;
mod ring;
mod tree;

use std::ops::Range;

use super::Channels;
use crate::arithmetic::{Combine, combine};
use crate::choice::Algorithm;
use crate::engine::CollectiveTask;
use crate::span::{ByteSpan, copy};
use crate::{Call, Fault, Operation};

/// Bytes of one message of a large call: what is summed is still in the cache.
const PIECE: usize = 512 << 10;

impl Channels {
    /// Carries out a collective; the caller has checked the sizes of source and target, and keeps both alive.
    pub(crate) fn run(&mut self, task: &CollectiveTask<'_>, algorithm: Algorithm) -> Result<(), Fault> {
        let algorithm = if task.call.is_narrow_average() { Algorithm::Pairwise } else { algorithm };
        match (task.call.operation, algorithm) {
            (Operation::AllReduce, Algorithm::Ring) => self.ring_all_reduce(task),
            (Operation::AllReduce, Algorithm::Halving) if self.members().is_power_of_two() => {
                self.halving_all_reduce(task)
            }
            (Operation::AllReduce, Algorithm::Doubling) => self.doubling_all_reduce(task),
            (Operation::AllReduce, _) => self.pairwise_all_reduce(task),
            (Operation::AllGather, Algorithm::Ring) => self.ring_all_gather(task),
            (Operation::AllGather, _) => self.pairwise_all_gather(task),
            (Operation::ReduceScatter, Algorithm::Ring) => self.ring_reduce_scatter(task),
            (Operation::ReduceScatter, _) => self.pairwise_reduce_scatter(task),
            (Operation::AllToAll, _) => self.pairwise_all_to_all(task),
            (Operation::Broadcast, _) => self.tree_broadcast(task),
            (Operation::Reduce, Algorithm::Tree) => self.tree_reduce(task),
            (Operation::Reduce, _) => self.pairwise_reduce(task),
            (Operation::Gather, _) => self.gather(task),
            (Operation::Scatter, _) => self.scatter(task),
            (Operation::Barrier, _) => self.barrier(task.waiting),
            (operation, _) => unreachable!("{operation} is no collective of equal parts"),
        }
    }

    /// Room for what other members send, kept from call to call.
    fn room(&mut self, bytes: usize) -> ByteSpan {
        let words = bytes.div_ceil(size_of::<u64>());
        if self.scratch.len() < words {
            self.scratch.resize(words, 0);
        }
        ByteSpan { address: self.scratch.as_mut_ptr().cast(), bytes, is_on_gpu: false }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (me, members) = (self.me, self.members());
        (1..members).map(move |step| (me + step) % members)
    }
}

/// Elements `range` of a part that begins `first` elements into a span.
fn elements(call: &Call, span: ByteSpan, first: usize, range: &Range<usize>) -> ByteSpan {
    let size = call.format.size();
    span.part((first + range.start) * size, range.len() * size)
}

/// A range in pieces of at most [`PIECE`] bytes; one piece where there is nothing, so that members still compare their calls.
fn pieces(call: &Call, len: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let each = PIECE / call.format.size();
    (0..len.div_ceil(each).max(1)).map(move |piece| piece * each..((piece + 1) * each).min(len))
}

/// A member's share of elements that need not divide evenly.
fn share(len: usize, member: usize, members: usize) -> Range<usize> {
    len * member / members..len * (member + 1) / members
}

/// Combines sources into a target of the same size.
#[expect(unsafe_code, reason = "works on addresses")]
fn combine_into(call: &Call, divide_by: usize, sources: &[ByteSpan], target: ByteSpan) {
    let addresses: Vec<*const u8> = sources.iter().map(|source| source.address.cast_const()).collect();
    assert!(sources.iter().all(|source| source.bytes == target.bytes), "sources of one size");
    let how = Combine { format: call.format, by: call.by, divide_by: divide_by as u32 };
    // SAFETY: the spans are alive while the call lasts and belong to this member alone; a target is one of the sources or apart.
    unsafe { combine(how, &addresses, &[target.address], target.bytes / call.format.size()) };
}

#[expect(unsafe_code, reason = "works on addresses")]
fn copy_into(source: ByteSpan, target: ByteSpan) {
    assert_eq!(source.bytes, target.bytes, "spans of one size");
    // SAFETY: as above.
    unsafe { copy(source.address, target.address, target.bytes) };
}
