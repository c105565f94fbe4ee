//! What flags are made of; the test of interleavings puts a scheduler of its own in this place.

use std::time::Duration;

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicU32, Ordering};
pub(crate) use std::thread::yield_now;

/// Sleeps while the word has this value, until woken or for `at_most`; may also wake for no reason.
#[expect(unsafe_code, reason = "a system call that the standard library lacks")]
pub(crate) fn sleep_while(word: &AtomicU32, value: u32, at_most: Duration) {
    let limit = libc::timespec {
        tv_sec: at_most.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(at_most.subsec_nanos()),
    };
    // SAFETY: the word outlives the call, which reads it and the limit. Other processes may wake it: the flag is not private.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &limit) };
}

/// Wakes everything that sleeps on the word, in all processes.
#[expect(unsafe_code, reason = "a system call that the standard library lacks")]
pub(crate) fn wake_all(word: &AtomicU32) {
    // SAFETY: the call only uses the address of the word.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
