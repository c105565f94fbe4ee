//! Precedence of a cluster's own processes over the jobs beside them: their turns of the processor come first, and the kernel kills them last for
//! want of memory.
//!
//! A thousand busy processes of a job must not keep an agent from renewing its lease or the daemon from answering. Only root may take precedence; a process of
//! another user stays as it is, as does a root that a container has taken the right from. What an administrator has set is left alone.
#![expect(unsafe_code, reason = "the priority of a process has no safe form here")]

use std::fs;

use nix::libc;

/// Between what users' processes have, 0, and what the kernel's most urgent ones have, -20.
const NICE: i32 = -10;
/// From -1000, never killed, to 1000, killed first.
const OUT_OF_MEMORY: i32 = -900;

const OUT_OF_MEMORY_FILE: &str = "/proc/self/oom_score_adj";
/// Where the kernel groups processes by session, groups compete instead of processes.
const SESSION_FILE: &str = "/proc/self/autogroup";

/// For a process that a cluster needs, before it has threads: they, and what it starts, inherit it. The process should lead a session.
pub fn take_precedence() {
    if nice() == 0 {
        set_nice(NICE);
    }
    if nice() == NICE {
        let _ = fs::write(SESSION_FILE, NICE.to_string());
    }
    if out_of_memory() == Some(0) {
        let _ = fs::write(OUT_OF_MEMORY_FILE, OUT_OF_MEMORY.to_string());
    }
}

/// For a process that starts what others have written: it, and all that it starts, count as any other again.
pub fn give_up_precedence() {
    if nice() == NICE {
        set_nice(0);
    }
    if out_of_memory() == Some(OUT_OF_MEMORY) {
        // Every process may make itself more likely to be killed.
        let _ = fs::write(OUT_OF_MEMORY_FILE, "0");
    }
}

/// For a thread of such a process that nobody waits for before all others of it.
pub fn step_back() {
    set_nice(nice() + 5);
}

/// Of this thread.
fn nice() -> i32 {
    // SAFETY: takes numbers and touches no memory. Zero means the caller.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Without the right to it nothing changes.
fn set_nice(nice: i32) {
    // SAFETY: takes numbers and touches no memory. Zero means the caller.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

fn out_of_memory() -> Option<i32> {
    fs::read_to_string(OUT_OF_MEMORY_FILE).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Priorities are those of a thread; how likely it is to be killed is the whole process's, which this test leaves as it was.
    #[test]
    fn precedence_that_was_taken_is_given_up_and_what_others_set_is_left() {
        let before = (nice(), out_of_memory());
        std::thread::spawn(move || {
            take_precedence();
            let is_privileged = nix::unistd::geteuid().is_root() && before == (0, Some(0));
            if is_privileged && nice() != before.0 {
                assert_eq!(nice(), NICE);
            }
            // A root of a container may have the one right and not the other.
            assert!([before.1, Some(OUT_OF_MEMORY)].contains(&out_of_memory()));
            give_up_precedence();
            assert_eq!((nice(), out_of_memory()), before);
            set_nice(before.0 + 3);
            let own = nice();
            take_precedence();
            give_up_precedence();
            assert_eq!(nice(), own, "somebody else chose it");
        })
        .join()
        .expect("it does not panic");
    }
}
