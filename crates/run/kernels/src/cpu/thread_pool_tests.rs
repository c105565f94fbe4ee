//! The thread pool with threads of the system.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::thread_pool::ThreadPool;

#[test]
fn every_chunk_is_done_exactly_once() {
    let pool = ThreadPool::new(3);
    for chunks in [0, 1, 2, 7, 1000] {
        for _ in 0..200 {
            let counts: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(chunks, &|chunk, _| {
                counts[chunk].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }
}

#[test]
fn a_panic_in_the_work_reaches_the_caller_and_the_team_lives_on() {
    let pool = ThreadPool::new(2);
    let run = |bad: usize| {
        catch_unwind(AssertUnwindSafe(|| {
            pool.run(64, &|chunk, _| assert_ne!(chunk, bad));
        }))
    };
    for bad in [0, 1, 31, 63] {
        assert!(run(bad).is_err());
        assert!(run(64).is_ok());
    }
}
