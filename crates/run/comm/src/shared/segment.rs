//! What the members of a group on one host share: for each member a clock and the calls that it has entered, counters for
//! work that any member may claim, two slots for elements on their way, and a pipe to every other member.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::flag::Flag;
use super::mapping::Mapping;
use crate::Call;

/// Bytes of a slot. Two of them for each of a few members fit in the second-level cache.
pub(crate) const SLOT: usize = 256 << 10;
/// Bytes of a pipe.
pub(crate) const PIPE: usize = 128 << 10;
const LINE: usize = 64;
const PAGE: usize = 4096;

/// A member's clock and its last two calls.
#[repr(C, align(64))]
pub(crate) struct Cell {
    pub(crate) clock: Flag,
    padding: [u8; LINE - size_of::<Flag>()],
    entries: [CallEntry; 2],
}

/// A call as a member entered it. Published by its clock.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct CallEntry {
    number: AtomicU64,
    signature: AtomicU64,
    len: AtomicU64,
    source: [AtomicU64; 2],
    target: [AtomicU64; 2],
}

/// Where peers find a member's elements: registered memory and a place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryWindow {
    pub(crate) id: u64,
    pub(crate) offset: u64,
}

/// What a member entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entered {
    pub(crate) number: u64,
    signature: u64,
    len: u64,
    pub(crate) source: Option<MemoryWindow>,
    pub(crate) target: Option<MemoryWindow>,
}

impl Entered {
    pub(crate) fn new(
        number: u64,
        call: &Call,
        source: Option<MemoryWindow>,
        target: Option<MemoryWindow>,
    ) -> Self {
        Self { number, signature: call.signature(), len: call.len, source, target }
    }

    /// Whether two members make the same call.
    #[inline]
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        (self.number, self.signature, self.len) == (other.number, other.signature, other.len)
    }

    pub(crate) fn call(&self) -> Option<Call> {
        Call::from_words(self.signature, self.len)
    }
}

/// Work that members claim piece by piece.
#[repr(C, align(64))]
pub(crate) struct Counter {
    claimed: AtomicU32,
    padding: [u8; LINE - size_of::<AtomicU32>()],
    pub(crate) done: Flag,
    padding_after: [u8; LINE - size_of::<Flag>()],
}

impl Counter {
    /// The next piece that no member has claimed.
    pub(crate) fn claim(&self) -> u32 {
        self.claimed.fetch_add(1, Ordering::Relaxed)
    }

    /// Before the first member can claim: published by the clock of the member that resets.
    pub(crate) fn reset(&self) {
        self.claimed.store(0, Ordering::Relaxed);
        self.done.set(0);
    }
}

/// A stream of bytes from one member to another: the sender raises `head`, the receiver `tail`.
#[repr(C, align(64))]
pub(crate) struct PipeEnds {
    pub(crate) head: Flag,
    padding: [u8; LINE - size_of::<Flag>()],
    pub(crate) tail: Flag,
    padding_after: [u8; LINE - size_of::<Flag>()],
}

#[derive(Debug)]
pub(crate) struct SharedSegment {
    mapping: Mapping,
    members: usize,
}

impl SharedSegment {
    pub(crate) fn new(members: usize) -> io::Result<Self> {
        Ok(Self { mapping: Mapping::new(bytes(members))?, members })
    }

    pub(crate) fn map(descriptor: OwnedFd, members: usize) -> io::Result<Self> {
        Ok(Self { mapping: Mapping::map(descriptor, bytes(members))?, members })
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.mapping.descriptor()
    }

    pub(crate) fn members(&self) -> usize {
        self.members
    }

    pub(crate) fn cell(&self, member: usize) -> &Cell {
        self.part(counters_end() + self.checked(member) * size_of::<Cell>())
    }

    pub(crate) fn counter(&self, number: u64) -> &Counter {
        self.part((number % 2) as usize * size_of::<Counter>())
    }

    /// The address of a slot of a member; it has [`SLOT`] bytes.
    pub(crate) fn slot(&self, member: usize, slot: u64) -> *mut u8 {
        let index = self.checked(member) * 2 + (slot % 2) as usize;
        self.mapping.at(slots_start(self.members) + index * SLOT, SLOT)
    }

    pub(crate) fn pipe(&self, from: usize, to: usize) -> (&PipeEnds, *mut u8) {
        let index = self.checked(from) * self.members + self.checked(to);
        let start = pipes_start(self.members) + index * (PAGE + PIPE);
        (self.part(start), self.mapping.at(start + PAGE, PIPE))
    }

    fn checked(&self, member: usize) -> usize {
        assert!(member < self.members, "member {member} of {}", self.members);
        member
    }

    #[expect(unsafe_code, reason = "a part of shared memory")]
    fn part<T>(&self, offset: usize) -> &T {
        let address = self.mapping.at(offset, size_of::<T>()).cast::<T>();
        debug_assert!(address.is_aligned());
        // SAFETY: the part lies inside the segment, is aligned, and consists of atomics for which all bits are valid; other
        // processes change it only by atomic operations.
        unsafe { &*address }
    }
}

impl Cell {
    #[inline]
    pub(crate) fn enter(&self, entered: &Entered) {
        let entry = &self.entries[(entered.number % 2) as usize];
        entry.number.store(entered.number, Ordering::Relaxed);
        entry.signature.store(entered.signature, Ordering::Relaxed);
        entry.len.store(entered.len, Ordering::Relaxed);
        store(&entry.source, entered.source);
        store(&entry.target, entered.target);
    }

    /// What the member entered last under this number, once its clock says so.
    #[inline]
    pub(crate) fn entered(&self, number: u64) -> Entered {
        let entry = &self.entries[(number % 2) as usize];
        Entered {
            number: entry.number.load(Ordering::Relaxed),
            signature: entry.signature.load(Ordering::Relaxed),
            len: entry.len.load(Ordering::Relaxed),
            source: load(&entry.source),
            target: load(&entry.target),
        }
    }
}

fn store(to: &[AtomicU64; 2], window: Option<MemoryWindow>) {
    let MemoryWindow { id, offset } = window.unwrap_or(MemoryWindow { id: 0, offset: 0 });
    to[0].store(id, Ordering::Relaxed);
    to[1].store(offset, Ordering::Relaxed);
}

fn load(from: &[AtomicU64; 2]) -> Option<MemoryWindow> {
    let id = from[0].load(Ordering::Relaxed);
    (id > 0).then(|| MemoryWindow { id, offset: from[1].load(Ordering::Relaxed) })
}

const fn counters_end() -> usize {
    2 * size_of::<Counter>()
}

fn slots_start(members: usize) -> usize {
    (counters_end() + members * size_of::<Cell>()).next_multiple_of(PAGE)
}

fn pipes_start(members: usize) -> usize {
    slots_start(members) + members * 2 * SLOT
}

/// Pages that are never touched cost nothing.
fn bytes(members: usize) -> usize {
    pipes_start(members) + members * members * (PAGE + PIPE)
}
