//! Collectives between the ranks of one host, through shared memory.
//!
//! Members agree on a *shared segment*. A member that enters a call writes what it calls to its cell and raises its clock; the others
//! see the clock, compare, and go on. From then on there are three ways:
//!
//! - *Small* elements lie in the member's slot before its clock says so; each member delivers to itself. One wait, no more.
//! - *Claimed*: all sources and targets are registered, so any member can do any piece. Whoever runs claims the next one, and
//!   a member that the system has put aside holds nothing up. Each byte is read once and written where it is wanted.
//! - *Staged*: sources that are not registered go through slots in segments, and each member delivers to itself from there.
//!
//! Clocks of all members advance by the same number of ticks in a call. A member writes to a slot or an entry only when all
//! others have published their last one: by then they have read the one before.

mod deliver;
pub(crate) mod flag;
#[cfg(test)]
mod interleavings;
pub(crate) mod mapping;
pub(crate) mod pipe;
pub(crate) mod segment;
mod sync;
pub(crate) mod windows;

use std::ops::Range;
use std::sync::Arc;

use deliver::{MemberSource, Pieces, deliver, source_parts, sum, target_parts};
use flag::{WaitPace, reached};
use mapping::Mapping;
use segment::{Entered, MemoryWindow, SLOT, SharedSegment};
use windows::MemoryWindows;

use crate::engine::CollectiveTask;
use crate::span::{ByteSpan, copy};
use crate::waiting::Waiting;
use crate::{Call, Fault, Operation};

/// A call of this many bytes goes through slots in one go, registered or not.
const SMALL: usize = 16 << 10;

/// This member's side of a group on one host.
pub(crate) struct SharedGroup {
    segment: Arc<SharedSegment>,
    windows: Arc<MemoryWindows>,
    me: usize,
    /// The ranks of the members in the world.
    ranks: Vec<u32>,
    /// The number of the next call.
    number: u64,
    /// The value of the own clock.
    clock: u32,
    /// What all clocks must have come to before the next slot or entry is written.
    guard: u32,
    /// The next slot.
    slot: u64,
    /// The last seen clock of each member.
    seen: Vec<u32>,
    unchecked: Option<Unchecked>,
    pace: WaitPace,
}

/// Memory of peers that a call works on, mapped until it is over.
type Kept = Vec<Arc<Mapping>>;

/// A call in which this member did not wait for all others, and so has not compared them.
struct Unchecked {
    mine: Entered,
    number: u64,
    call: Call,
}

/// How a call that is not small is carried out; all members come to the same.
enum Way {
    Claimed(Vec<MemberSource>, Vec<*mut u8>, Kept),
    /// As above, and the others have done it all before this member saw where the elements are.
    Done,
    Staged,
}

impl SharedGroup {
    pub(crate) fn new(
        segment: Arc<SharedSegment>,
        windows: Arc<MemoryWindows>,
        me: usize,
        ranks: Vec<u32>,
        pace: WaitPace,
    ) -> Self {
        let seen = vec![0; ranks.len()];
        assert_eq!(segment.members(), ranks.len(), "a cell for each member");
        let unchecked = None;
        Self { segment, windows, me, ranks, number: 0, clock: 0, guard: 0, slot: 0, seen, unchecked, pace }
    }

    pub(crate) fn set_pace(&mut self, pace: WaitPace) {
        self.pace = pace;
    }

    pub(crate) fn members(&self) -> usize {
        self.ranks.len()
    }

    /// Carries out a call; the caller has checked the sizes of source and target, and keeps both alive.
    pub(crate) fn run(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, waiting } = *task;
        let members = self.members();
        let parts = source_parts(call, self.me, members);
        let is_small = call.part_bytes() * members <= SMALL;
        let window =
            |span: ByteSpan| if is_small || span.bytes == 0 { None } else { self.windows.find_own(span) };
        // What the member called, of which this may be a step.
        let mine = Entered::new(self.number, &waiting.call, window(source), window(target));
        self.wait_for_all(self.guard, waiting)?;
        self.compare_last(waiting)?;
        if self.me == 0 {
            self.segment.counter(self.number).reset();
        }
        self.segment.cell(self.me).enter(&mine);
        self.number += 1;
        if is_small {
            return self.run_small(call, &mine, (source, parts), target, waiting);
        }
        let is_staged = mine.source.is_none();
        let first = 0..self.piece_len(call).min(call.len as usize);
        if is_staged {
            self.stage(call, source, parts, first, self.piece_len(call));
        }
        self.publish();
        self.wait_for_all(self.clock, waiting)?;
        let entered = self.compare_all(&mine, waiting)?;
        match self.way(call, &entered, source, target, waiting)? {
            Way::Claimed(sources, targets, _kept) => {
                self.run_claimed(call, &mine, &sources, &targets, waiting)
            }
            Way::Done => Ok(()),
            Way::Staged => self.run_staged(call, &entered, (source, parts), target, waiting),
        }
    }

    fn run_small(
        &mut self,
        call: &Call,
        mine: &Entered,
        (source, parts): (ByteSpan, usize),
        target: ByteSpan,
        waiting: &Waiting<'_>,
    ) -> Result<(), Fault> {
        let len = call.len as usize;
        self.stage(call, source, parts, 0..len, len);
        let slot = self.slot;
        self.slot += 1;
        self.publish();
        let from_root = matches!(call.operation, Operation::Broadcast | Operation::Scatter);
        let to_root = matches!(call.operation, Operation::Reduce | Operation::Gather);
        let (root, is_root) = (call.root as usize, call.root as usize == self.me);
        if from_root || to_root {
            self.unchecked = Some(Unchecked { mine: *mine, number: waiting.number, call: waiting.call });
        }
        for member in 0..self.members() {
            let is_needed = match (from_root, to_root) {
                (true, _) => member == root,
                (_, true) => is_root,
                _ => true,
            };
            if is_needed && member != self.me {
                self.wait_for(member, self.clock, waiting)?;
                self.compare(mine, member, waiting)?;
            }
        }
        let sources =
            |member| MemberSource { address: self.segment.slot(member, slot), stride: len, origin: 0 };
        let sources: Vec<MemberSource> = (0..self.members()).map(sources).collect();
        #[expect(unsafe_code, reason = "reads slots of other members")]
        // SAFETY: members that are read have published this slot and write to it again only after this member has published the
        // next; slots hold all parts of a small call, and the target was checked by the caller.
        unsafe {
            deliver(call, &sources, self.me, target.address, 0..len);
        }
        Ok(())
    }

    /// Does pieces until all are claimed, then waits until all are done.
    fn run_claimed(
        &mut self,
        call: &Call,
        mine: &Entered,
        sources: &[MemberSource],
        targets: &[*mut u8],
        waiting: &Waiting<'_>,
    ) -> Result<(), Fault> {
        let pieces = Pieces::of(call, self.members());
        let counter = self.segment.counter(mine.number);
        loop {
            let piece = counter.claim();
            if piece >= pieces.count() {
                break;
            }
            #[expect(unsafe_code, reason = "reads and writes memory of other members")]
            // SAFETY: all members are in this call, so all sources and targets are left alone; their memory is kept by the
            // caller; this piece was claimed by this member alone.
            unsafe {
                pieces.perform(piece, sources, targets);
            }
            counter.done.add(1);
        }
        counter.done.wait(pieces.count(), self.pace, waiting.checks(&|| Vec::new()))?;
        Ok(())
    }

    /// Piece by piece: elements into slots where peers cannot reach them, then to the own target.
    fn run_staged(
        &mut self,
        call: &Call,
        entered: &[Entered],
        (source, parts): (ByteSpan, usize),
        target: ByteSpan,
        waiting: &Waiting<'_>,
    ) -> Result<(), Fault> {
        let mut kept = Kept::new();
        let direct = self.direct_sources(call, entered, source, &mut kept, &|| false, waiting)?;
        let (len, each) = (call.len as usize, self.piece_len(call));
        let mut start = 0;
        while start < len {
            let range = start..(start + each).min(len);
            let slot = self.slot;
            self.slot += 1;
            let sources = self.segment_sources(&direct, slot, range.start, each);
            self.deliver_segment(call, &sources, slot, target, range, waiting)?;
            start += each;
            if start < len {
                self.wait_for_all(self.guard, waiting)?;
                if direct[self.me].is_none() {
                    self.stage(call, source, parts, start..(start + each).min(len), each);
                }
                self.publish();
                self.wait_for_all(self.clock, waiting)?;
            }
        }
        if direct.iter().any(Option::is_some) {
            // Peers have read the own source only when they say so.
            self.publish();
            self.wait_for_all(self.clock, waiting)?;
        }
        Ok(())
    }

    fn deliver_segment(
        &mut self,
        call: &Call,
        sources: &[MemberSource],
        slot: u64,
        target: ByteSpan,
        range: Range<usize>,
        waiting: &Waiting<'_>,
    ) -> Result<(), Fault> {
        if call.operation != Operation::AllReduce {
            #[expect(unsafe_code, reason = "reads memory of other members")]
            // SAFETY: all members have published this piece and leave it alone until this one has published the next.
            unsafe {
                deliver(call, sources, self.me, target.address, range);
            }
            return Ok(());
        }
        // Each member sums its share of the piece into its own slot, where the others fetch it.
        let size = call.format.size();
        let place = |share: &Range<usize>| (share.start - range.start) * size;
        let mine = share(&range, self.me, self.members());
        let own = self.segment.slot(self.me, slot).wrapping_add(place(&mine));
        #[expect(unsafe_code, reason = "reads memory of other members")]
        // SAFETY: as above; only this member reads this share of any slot before the clock ticks, and only it writes to its slot.
        unsafe {
            sum(call, sources, 0, &[own], mine);
        }
        self.tick();
        self.wait_for_all(self.clock, waiting)?;
        for member in 0..self.members() {
            let theirs = share(&range, member, self.members());
            let from = self.segment.slot(member, slot).wrapping_add(place(&theirs));
            let to = target.address.wrapping_add(theirs.start * size);
            #[expect(unsafe_code, reason = "reads memory of other members")]
            // SAFETY: the member has summed its share, and leaves it alone until this member has published the next piece.
            unsafe {
                copy(from, to, theirs.len() * size);
            }
        }
        Ok(())
    }

    /// Elements of one part that a piece has.
    fn piece_len(&self, call: &Call) -> usize {
        let most_parts = match call.operation {
            Operation::ReduceScatter | Operation::AllToAll | Operation::Scatter => self.members(),
            _ => 1,
        };
        // Multiples of a line keep segments aligned.
        (SLOT / most_parts / call.format.size() / 64 * 64).max(1)
    }

    /// Copies a range of every part of the own source to the next slot, `stride` elements apart.
    fn stage(&self, call: &Call, source: ByteSpan, parts: usize, range: Range<usize>, stride: usize) {
        let (len, size) = (call.len as usize, call.format.size());
        let slot = self.segment.slot(self.me, self.slot);
        for part in 0..parts {
            let from = source.part((part * len + range.start) * size, range.len() * size);
            let offset = part * stride * size;
            assert!(offset + from.bytes <= SLOT, "a piece fits in a slot");
            #[expect(unsafe_code, reason = "writes to the own slot")]
            // SAFETY: the source is alive; the slot has room, and all members have read what was in it (`guard`).
            unsafe {
                copy(from.address, slot.wrapping_add(offset), from.bytes);
            }
        }
    }

    /// Claimed, when everybody's elements can be reached by everybody.
    fn way(
        &self,
        call: &Call,
        entered: &[Entered],
        source: ByteSpan,
        target: ByteSpan,
        waiting: &Waiting<'_>,
    ) -> Result<Way, Fault> {
        let members = self.members();
        let reachable = |(member, entry): (usize, &Entered)| {
            (entry.source.is_some() || source_parts(call, member, members) == 0)
                && (entry.target.is_some() || target_parts(call, member, members) == 0)
        };
        if !entered.iter().enumerate().all(reachable) {
            return Ok(Way::Staged);
        }
        let done = &self.segment.counter(entered[self.me].number).done;
        let count = Pieces::of(call, members).count();
        let is_over = || reached(done.value(), count);
        let mut kept = Kept::new();
        let sources = self.direct_sources(call, entered, source, &mut kept, &is_over, waiting)?;
        let nowhere = MemberSource { address: std::ptr::null(), stride: 0, origin: 0 };
        let sources = sources.into_iter().map(|source| source.unwrap_or(nowhere)).collect();
        let mut targets = Vec::with_capacity(members);
        for (member, entry) in entered.iter().enumerate() {
            let bytes = target_parts(call, member, members) * call.part_bytes();
            let address = self.reach(member, entry.target, target, bytes, &mut kept, &is_over, waiting)?;
            targets.push(address.unwrap_or(std::ptr::null_mut()));
        }
        // A window that is not there any more is not needed any more.
        Ok(if is_over() { Way::Done } else { Way::Claimed(sources, targets, kept) })
    }

    /// The registered sources of all members.
    fn direct_sources(
        &self,
        call: &Call,
        entered: &[Entered],
        source: ByteSpan,
        kept: &mut Kept,
        is_over: &dyn Fn() -> bool,
        waiting: &Waiting<'_>,
    ) -> Result<Vec<Option<MemberSource>>, Fault> {
        let members = self.members();
        let mut sources = Vec::with_capacity(members);
        for (member, entry) in entered.iter().enumerate() {
            let bytes = source_parts(call, member, members) * call.part_bytes();
            let address = self.reach(member, entry.source, source, bytes, kept, is_over, waiting)?;
            sources.push(address.map(|address| MemberSource {
                address,
                stride: call.len as usize,
                origin: 0,
            }));
        }
        Ok(sources)
    }

    /// The address at which this process reaches a member's window.
    #[expect(clippy::too_many_arguments, reason = "a place, and what a wait for it needs")]
    fn reach(
        &self,
        member: usize,
        window: Option<MemoryWindow>,
        own: ByteSpan,
        bytes: usize,
        kept: &mut Kept,
        is_over: &dyn Fn() -> bool,
        waiting: &Waiting<'_>,
    ) -> Result<Option<*mut u8>, Fault> {
        match window {
            None => Ok(None),
            Some(_) if member == self.me => Ok(Some(own.address)),
            Some(window) => {
                let checks = waiting.checks(&|| Vec::new());
                let found = self.windows.find_theirs(self.ranks[member], window, bytes, is_over, checks)?;
                Ok(found.map(|reached| {
                    kept.push(reached.kept);
                    reached.address
                }))
            }
        }
    }

    fn segment_sources(
        &self,
        direct: &[Option<MemberSource>],
        slot: u64,
        origin: usize,
        stride: usize,
    ) -> Vec<MemberSource> {
        let staged = |member| MemberSource { address: self.segment.slot(member, slot), stride, origin };
        direct.iter().enumerate().map(|(member, source)| source.unwrap_or_else(|| staged(member))).collect()
    }

    /// Compares the last call with what the others entered under its number: all have, and none can have overwritten it.
    fn compare_last(&mut self, waiting: &Waiting<'_>) -> Result<(), Fault> {
        let Some(Unchecked { mine, number, call }) = self.unchecked.take() else { return Ok(()) };
        for member in 0..self.members() {
            let theirs = self.segment.cell(member).entered(mine.number);
            if !theirs.agrees(&mine) {
                let theirs = theirs.call().unwrap_or(call);
                return Err(waiting.mismatch_of((number, call), self.ranks[member], number, theirs));
            }
        }
        Ok(())
    }

    /// What all members entered; a fault when they differ.
    fn compare_all(&self, mine: &Entered, waiting: &Waiting<'_>) -> Result<Vec<Entered>, Fault> {
        (0..self.members()).map(|member| self.compare(mine, member, waiting)).collect()
    }

    #[inline]
    fn compare(&self, mine: &Entered, member: usize, waiting: &Waiting<'_>) -> Result<Entered, Fault> {
        let theirs = self.segment.cell(member).entered(mine.number);
        if theirs.agrees(mine) {
            return Ok(theirs);
        }
        // A cell that holds no call is not one of ours.
        let call = theirs.call().unwrap_or(waiting.call);
        Err(waiting.mismatch(self.ranks[member], waiting.number, call))
    }

    /// Tells the others that a slot or an entry is ready.
    #[inline]
    fn publish(&mut self) {
        self.tick();
        self.guard = self.clock;
    }

    #[inline]
    fn tick(&mut self) {
        self.clock = self.clock.wrapping_add(1);
        self.segment.cell(self.me).clock.set(self.clock);
    }

    fn wait_for_all(&mut self, wanted: u32, waiting: &Waiting<'_>) -> Result<(), Fault> {
        // From the next one on, so that members do not all look at the same cell.
        for step in 1..self.members() {
            self.wait_for((self.me + step) % self.members(), wanted, waiting)?;
        }
        Ok(())
    }

    #[inline]
    fn wait_for(&mut self, member: usize, wanted: u32, waiting: &Waiting<'_>) -> Result<(), Fault> {
        if reached(self.seen[member], wanted) {
            return Ok(());
        }
        let clocks = || (0..self.members()).map(|each| (each, self.segment.cell(each).clock.value()));
        let behind = || {
            clocks().filter(|(_, clock)| !reached(*clock, wanted)).map(|(each, _)| self.ranks[each]).collect()
        };
        let seen = self.segment.cell(member).clock.wait(wanted, self.pace, waiting.checks(&behind))?;
        self.seen[member] = seen;
        Ok(())
    }
}

/// A member's share of a range.
fn share(range: &Range<usize>, member: usize, members: usize) -> Range<usize> {
    let at = |member: usize| range.start + range.len() * member / members;
    at(member)..at(member + 1)
}
