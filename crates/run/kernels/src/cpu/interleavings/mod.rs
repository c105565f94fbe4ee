//! The thread pool under a scheduler that tries interleavings of its threads.

mod sync {
    pub(super) use shuttle::hint::spin_loop;
    pub(super) use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    pub(super) use shuttle::sync::{Arc, Mutex};
    pub(super) use shuttle::thread::{self, JoinHandle, Thread};

    /// Few, so that workers also sleep.
    pub(super) const LOOKS: u32 = 2;
}
#[expect(clippy::duplicate_mod, reason = "the same thread pool by other means of synchronisation")]
#[path = "../thread_pool.rs"]
mod thread_pool;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use sync::{AtomicBool, AtomicUsize, Ordering};
use thread_pool::ThreadPool;

const SCHEDULES: usize = 2_000;

/// Every chunk is done exactly once, and no member works after its run has ended.
fn run(pool: &ThreadPool, chunks: usize) {
    let counts: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
    let is_over = AtomicBool::new(false);
    pool.run(chunks, &|chunk, _| {
        assert!(!is_over.load(Ordering::SeqCst), "a member works on after the end");
        counts[chunk].fetch_add(1, Ordering::SeqCst);
    });
    is_over.store(true, Ordering::SeqCst);
    assert!(counts.iter().all(|count| count.load(Ordering::SeqCst) == 1), "every chunk is done once");
}

#[test]
fn runs_follow_each_other_and_the_team_ends_in_any_interleaving() {
    let scenario = || {
        let pool = ThreadPool::new(3);
        assert_eq!(pool.size(), 3);
        run(&pool, 3);
        run(&pool, 2);
        run(&pool, 4);
    };
    shuttle::check_random(scenario, SCHEDULES);
    shuttle::check_pct(scenario, SCHEDULES, 3);
}

#[test]
fn a_panic_of_any_member_ends_the_run_and_not_the_pool() {
    shuttle::check_random(
        || {
            let pool = ThreadPool::new(2);
            // Resumed rather than begun, so that no hook prints a thousand planned panics.
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(3, &|chunk, _| {
                    if chunk == 1 {
                        resume_unwind(Box::new("as planned"));
                    }
                });
            }));
            let panic = outcome.expect_err("the run panics");
            assert_eq!(panic.downcast_ref(), Some(&"as planned"));
            run(&pool, 3);
        },
        SCHEDULES / 10,
    );
}
