//! Work that tests count, because a count does not depend on how busy the machine is: allocations, reads and
//! writes, and the comparison of any count with the most that a path may need.
//!
//! A test program counts its allocations by one line beside its imports:
//! `#[global_allocator] static ALLOCATOR: CountingAllocator = CountingAllocator;`. A program in which several
//! tests run at the same time counts by [`of_thread`]; [`of_process`] sees every thread, so its test runs alone.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
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
    /// What all threads of the process have allocated so far, for work that begins and ends in callbacks.
    pub fn so_far() -> Self {
        Self { count: COUNT.load(Ordering::Relaxed), bytes: BYTES.load(Ordering::Relaxed) }
    }

    pub fn since(self, before: Self) -> Self {
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
    let before = Allocations::so_far();
    let answer = work();
    (answer, Allocations::so_far().since(before))
}

/// Calls of the system that read and write, and their bytes: of files, pipes and lists of buffers to sockets. `send` and
/// `recv` are not among them, nor are files that are mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SystemIo {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
}

/// What `work` answers, and what the calling thread read and wrote for it.
pub fn io_of_thread<T>(work: impl FnOnce() -> T) -> (T, SystemIo) {
    io_during("/proc/thread-self/io", work)
}

/// What `work` answers, and what all threads of the process read and wrote meanwhile.
pub fn io_of_process<T>(work: impl FnOnce() -> T) -> (T, SystemIo) {
    io_during("/proc/self/io", work)
}

fn io_during<T>(file: &str, work: impl FnOnce() -> T) -> (T, SystemIo) {
    let (before, own_bytes) = io_so_far(file);
    let answer = work();
    let (after, _) = io_so_far(file);
    // The kernel counts the look at its counts once it is over.
    let io = SystemIo {
        reads: after.reads - before.reads - 1,
        read_bytes: after.read_bytes - before.read_bytes - own_bytes,
        writes: after.writes - before.writes,
        written_bytes: after.written_bytes - before.written_bytes,
    };
    (answer, io)
}

fn io_so_far(file: &str) -> (SystemIo, u64) {
    let mut text = [0; 512];
    let len =
        File::open(file).and_then(|mut file| file.read(&mut text)).expect("Linux counts a thread's reads");
    let text = String::from_utf8_lossy(&text[..len]);
    let number = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        line.and_then(|number| number.parse::<u64>().ok()).expect("the kernel's list of counts")
    };
    let io = SystemIo {
        reads: number("syscr"),
        read_bytes: number("rchar"),
        writes: number("syscw"),
        written_bytes: number("wchar"),
    };
    (io, len as u64)
}

/// Fails where a path needs more than it did when `most` was written down. `path` names the work and its unit,
/// as in "allocations per decoded token". With `--nocapture` a test shows the count, for a path that needs less by now.
#[track_caller]
#[expect(clippy::print_stderr, reason = "a test's output")]
pub fn assert_at_most<N: PartialOrd + Display>(path: &str, counted: N, most: N) {
    eprintln!("{path}: {counted} of {most}");
    assert!(counted <= most, "{path} grew from {most} to {counted}");
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
