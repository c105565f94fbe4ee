//! Flags, and the clocks of a shared segment, under a scheduler that tries interleavings. It knows no time, so a wake-up that is lost is a
//! deadlock that it finds.

use std::convert::Infallible;
use std::time::Duration;

mod sync {
    use std::time::Duration;

    pub(super) use shuttle::hint::spin_loop;
    pub(super) use shuttle::sync::atomic::{AtomicU32, Ordering};
    use shuttle::sync::{Condvar, Mutex};
    pub(super) use shuttle::thread::yield_now;

    shuttle::lazy_static! {
        /// How often the sleepers of each word were woken.
        static ref WOKEN: (Mutex<Vec<(usize, u64)>>, Condvar) = (Mutex::new(Vec::new()), Condvar::new());
    }

    fn count(woken: &mut Vec<(usize, u64)>, word: usize) -> &mut u64 {
        let at = woken.iter().position(|(each, _)| *each == word).unwrap_or_else(|| {
            woken.push((word, 0));
            woken.len() - 1
        });
        &mut woken[at].1
    }

    /// As the system does it: the word is compared and the sleep begins in one step.
    pub(super) fn sleep_while(word: &AtomicU32, value: u32, _: Duration) {
        let at = std::ptr::from_ref(word).addr();
        let mut woken = WOKEN.0.lock().expect("no holder of this lock panics");
        if word.load(Ordering::SeqCst) != value {
            return;
        }
        let before = *count(&mut woken, at);
        while *count(&mut woken, at) == before {
            woken = WOKEN.1.wait(woken).expect("no holder of this lock panics");
        }
    }

    pub(super) fn wake_all(word: &AtomicU32) {
        let mut woken = WOKEN.0.lock().expect("no holder of this lock panics");
        *count(&mut woken, std::ptr::from_ref(word).addr()) += 1;
        WOKEN.1.notify_all();
    }
}
#[expect(clippy::duplicate_mod, dead_code, reason = "the same flags by other means of synchronisation")]
#[path = "flag.rs"]
mod flag;

use flag::{Flag, WaitPace};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::thread;

const SCHEDULES: usize = 3_000;
const PACE: WaitPace = WaitPace { looks: 1, yields: 1 };

fn wait(flag: &Flag, wanted: u32) {
    let never = |_: Duration| Ok::<(), Infallible>(());
    let Ok(_) = flag.wait(wanted, PACE, never);
}

/// Members that publish elements in two slots each, under the rule of a shared segment: a slot is written only when all others have
/// published their last one.
struct Members {
    clocks: Vec<Flag>,
    slots: Vec<[AtomicU32; 2]>,
}

fn calls(members: &Members, me: usize, count: u32) {
    for call in 1..=count {
        let others = || (0..members.clocks.len()).filter(|member| *member != me);
        others().for_each(|member| wait(&members.clocks[member], call - 1));
        members.slots[me][call as usize % 2].store(call, Ordering::Relaxed);
        members.clocks[me].set(call);
        for member in others() {
            wait(&members.clocks[member], call);
            assert_eq!(members.slots[member][call as usize % 2].load(Ordering::Relaxed), call);
        }
    }
}

#[test]
fn members_read_what_was_published_and_none_waits_for_ever() {
    let scenario = || {
        let members = Members {
            clocks: (0..3).map(|_| Flag::default()).collect(),
            slots: (0..3).map(|_| [AtomicU32::new(0), AtomicU32::new(0)]).collect(),
        };
        let members = Arc::new(members);
        let start = |me: usize| {
            let members = Arc::clone(&members);
            thread::spawn(move || calls(&members, me, 3))
        };
        let threads: Vec<_> = (0..3).map(start).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no member panics"));
    };
    shuttle::check_random(scenario, SCHEDULES);
    shuttle::check_pct(scenario, SCHEDULES, 3);
}

#[test]
fn a_flag_that_several_raise_wakes_who_waits_for_the_sum() {
    shuttle::check_random(
        || {
            let flag = Arc::new(Flag::default());
            let raise = || {
                let flag = Arc::clone(&flag);
                thread::spawn(move || flag.add(1).max(flag.add(1)))
            };
            let threads = [raise(), raise()];
            wait(&flag, 4);
            assert_eq!(flag.value(), 4);
            for thread in threads {
                thread.join().expect("no thread panics");
            }
        },
        SCHEDULES,
    );
}
