//! Work that tests count, because a count does not depend on how busy the machine is: allocations, and the
//! comparison of any count with the most that a path may need.
//!
//! A test program counts its allocations by one line beside its imports:
//! `#[global_allocator] static ALLOCATOR: CountingAllocator = CountingAllocator;`. A program in which several
//! tests run at the same time counts by [`of_thread`]; [`of_process`] sees every thread, so its test runs alone.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OF_THREAD: Cell<Allocations> = const { Cell::new(Allocations { count: 0, bytes: 0 }) };
}

/// How often memory was asked for, and how much in all. Memory that is given back is not taken off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocations {
    pub count: u64,
    pub bytes: u64,
}

impl Allocations {
    fn since(self, before: Self) -> Self {
        Self { count: self.count - before.count, bytes: self.bytes - before.bytes }
    }
}

/// What `work` answers, and what the calling thread allocated for it.
pub fn of_thread<T>(work: impl FnOnce() -> T) -> (T, Allocations) {
    let before = OF_THREAD.get();
    let answer = work();
    (answer, OF_THREAD.get().since(before))
}

/// What `work` answers, and what all threads of the process allocated meanwhile.
pub fn of_process<T>(work: impl FnOnce() -> T) -> (T, Allocations) {
    let before = total();
    let answer = work();
    (answer, total().since(before))
}

/// Fails where a path needs more than it did when `most` was written down. `path` names the work and its unit,
/// as in "allocations per decoded token".
#[track_caller]
pub fn assert_at_most<N: PartialOrd + Display>(path: &str, counted: N, most: N) {
    assert!(counted <= most, "{path} grew from {most} to {counted}");
}

fn total() -> Allocations {
    Allocations { count: COUNT.load(Ordering::Relaxed), bytes: BYTES.load(Ordering::Relaxed) }
}

fn count(bytes: usize) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    let counted = OF_THREAD.get();
    OF_THREAD.set(Allocations { count: counted.count + 1, bytes: counted.bytes + bytes as u64 });
}

/// The system's allocator, with every request counted. Growing a block counts as one more allocation.
pub struct CountingAllocator;

#[expect(unsafe_code, reason = "the one way to see what is allocated")]
// SAFETY: everything is left to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller upholds.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller upholds.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as the caller upholds.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller upholds.
        unsafe { System.dealloc(memory, layout) }
    }
}
