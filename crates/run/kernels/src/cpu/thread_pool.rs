//! Threads that share out the chunks of one operator at a time.
//!
//! The caller works too. Chunks are claimed one by one, so a thread that the system does not run delays no other: the
//! caller waits only for those that have begun. Between operators workers look for the next one for some
//! microseconds before they sleep. Nothing is allocated by a run.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::sync::{
    Arc, AtomicBool, AtomicU64, AtomicUsize, JoinHandle, LOOKS, Mutex, Ordering, Thread, spin_loop, thread,
};

/// The lowest bits of the gate count members inside, the next says whether one may enter, the rest counts runs.
const INSIDE: u64 = 0xffff;
const OPEN: u64 = 0x1_0000;
const RUN: u64 = 0x2_0000;

pub(super) struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    gate: AtomicU64,
    next: AtomicUsize,
    /// What a worker panicked with; the caller panics with it.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    is_ending: AtomicBool,
    task: UnsafeCell<Option<Task>>,
}

/// What is to be done, for as long as the gate is open or a member is inside.
struct Task {
    work: *const (dyn Fn(usize, usize) + Sync),
    chunks: usize,
    caller: Thread,
}

#[expect(unsafe_code, reason = "the gate orders all access to the task")]
// SAFETY: `task` is written only by the caller while no member is inside, and read only by those inside.
unsafe impl Sync for Shared {}
#[expect(unsafe_code, reason = "the work that a task points to may be shared")]
// SAFETY: the pointer is to something `Sync`, and the caller keeps it alive while a member is inside.
unsafe impl Send for Shared {}

impl ThreadPool {
    /// A thread pool of `size` members, the caller included; fewer where the system does not start that many threads.
    pub(super) fn new(size: usize) -> Self {
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            panic: Mutex::new(None),
            is_ending: AtomicBool::new(false),
            task: UnsafeCell::new(None),
        });
        let worker = |member: usize| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(format!("kernels-{member}")).spawn(move || shared.serve(member))
        };
        let workers = (1..size.max(1)).map_while(|member| worker(member).ok()).collect();
        Self { shared, workers }
    }

    pub(super) fn size(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work(chunk, member)` once for each chunk, on any member that is free; returns when all are done.
    ///
    /// One run at a time: the device is not shared between threads.
    pub(super) fn run(&self, chunks: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        if chunks <= 1 || self.workers.is_empty() {
            return (0..chunks).for_each(|chunk| work(chunk, 0));
        }
        let run = self.open(chunks, work);
        self.workers.iter().for_each(|worker| worker.thread().unpark());
        let outcome = catch_unwind(AssertUnwindSafe(|| self.shared.claim(chunks, work, 0)));
        self.shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        self.wait_until_all_left(run);
        let panic_of_a_worker = self.shared.panic.lock().expect("nobody panics with it").take();
        if let Some(panic) = outcome.err().or(panic_of_a_worker) {
            resume_unwind(panic);
        }
    }

    #[expect(unsafe_code, reason = "hands borrowed work to threads that outlive the borrow")]
    fn open(&self, chunks: usize, work: &(dyn Fn(usize, usize) + Sync)) -> u64 {
        // SAFETY: only the lifetime changes; `run` does not return before all members have left the work.
        let work = unsafe {
            std::mem::transmute::<&(dyn Fn(usize, usize) + Sync), &'static (dyn Fn(usize, usize) + Sync)>(
                work,
            )
        };
        // SAFETY: the gate is closed and no member is inside, so only the caller looks at the task.
        unsafe { *self.shared.task.get() = Some(Task { work, chunks, caller: thread::current() }) };
        self.shared.next.store(0, Ordering::Relaxed);
        let run = (self.shared.gate.load(Ordering::Relaxed) & !(OPEN | INSIDE)).wrapping_add(RUN);
        self.shared.gate.store(run | OPEN, Ordering::Release);
        run
    }

    fn wait_until_all_left(&self, run: u64) {
        let mut looks = 0;
        while self.shared.gate.load(Ordering::Acquire) != run {
            looks += 1;
            if looks < LOOKS { spin_loop() } else { thread::park() }
        }
    }
}

impl Shared {
    fn serve(&self, member: usize) {
        let mut seen = 0;
        while !self.is_ending.load(Ordering::Acquire) {
            match self.enter(seen) {
                Some(run) => {
                    seen = run;
                    self.take_part(member);
                }
                None => self.idle(seen),
            }
        }
    }

    /// Enters a run that is open and has not been seen.
    fn enter(&self, seen: u64) -> Option<u64> {
        let gate = self.gate.load(Ordering::Acquire);
        let run = gate & !(OPEN | INSIDE);
        if gate & OPEN == 0 || run == seen {
            return None;
        }
        let entered = self.gate.compare_exchange(gate, gate + 1, Ordering::AcqRel, Ordering::Relaxed);
        entered.is_ok().then_some(run)
    }

    #[expect(unsafe_code, reason = "reads the task that the caller left")]
    fn take_part(&self, member: usize) {
        // SAFETY: this member is inside, so the caller neither changes the task nor lets go of the work.
        let task = unsafe { (*self.task.get()).as_ref().expect("an open gate has a task") };
        // SAFETY: as above.
        let work = unsafe { &*task.work };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.claim(task.chunks, work, member))) {
            *self.panic.lock().expect("nobody panics with it") = Some(panic);
        }
        let caller = task.caller.clone();
        let before = self.gate.fetch_sub(1, Ordering::AcqRel);
        if before & OPEN == 0 && before & INSIDE == 1 {
            caller.unpark();
        }
    }

    fn claim(&self, chunks: usize, work: &(dyn Fn(usize, usize) + Sync), member: usize) {
        loop {
            let chunk = self.next.fetch_add(1, Ordering::Relaxed);
            if chunk >= chunks {
                return;
            }
            work(chunk, member);
        }
    }

    fn idle(&self, seen: u64) {
        for _ in 0..LOOKS {
            let gate = self.gate.load(Ordering::Relaxed);
            if gate & OPEN != 0 && gate & !(OPEN | INSIDE) != seen {
                return;
            }
            spin_loop();
        }
        // An `unpark` that came in between makes this return at once.
        thread::park();
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker ends only by returning: panics of work are caught.
            let _ = worker.join();
        }
    }
}
