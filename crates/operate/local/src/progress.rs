//! Whether a process that does not answer is slow or dead.
//!
//! A daemon that takes long over a decision, or that reads a large journal before it listens, has a thread that computes or waits for
//! the disk. One that hangs or was stopped has none. So the threads that do a daemon's work are looked at again and again while it is
//! silent; those that answer heartbeats do not count, because they go on when the work has stopped.

use std::fs;
use std::time::{Duration, Instant};

/// The threads of a daemon that open its journal, decide and write: a test of the daemon holds their names.
pub const WORKING_THREADS: [&str; 3] = ["daemon", "control", "journal"];

/// Fewer looks than this say nothing.
const FEWEST_LOOKS: u32 = 3;

/// What was seen of a silent process.
#[derive(Debug, Clone)]
pub(crate) struct Silence {
    since: Instant,
    /// Where the looks that count began.
    from: Instant,
    looks: u32,
    at_work: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// Not silent for long enough.
    Early,
    /// It works, and has not answered for so long.
    Slow(Duration),
    Dead,
}

impl Silence {
    pub(crate) fn since(asked: Instant) -> Self {
        Self { since: asked, from: asked, looks: 0, at_work: 0 }
    }

    /// After another question without an answer: whether it was at work just now, and how patient we are.
    pub(crate) fn look(&mut self, is_at_work: bool, now: Instant, patience: Duration) -> Judgement {
        self.looks += 1;
        self.at_work += u32::from(is_at_work);
        if now.saturating_duration_since(self.from) < patience || self.looks < FEWEST_LOOKS {
            return Judgement::Early;
        }
        // Slow at times and waiting for a thread of another name at others: a third of the looks is far more than an idle one has.
        if self.at_work * 3 < self.looks {
            return Judgement::Dead;
        }
        *self = Self { since: self.since, ..Self::since(now) };
        Judgement::Slow(now.saturating_duration_since(self.since))
    }
}

/// Whether a thread that does the work of this process computes, wants to, or waits for the disk at this moment.
pub(crate) fn is_at_work(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok()).any(|stat| works(&stat))
}

/// By the line of `/proc/PID/task/TID/stat`: `12 (control) R …`.
fn works(stat: &str) -> bool {
    let parts = stat.split_once(" (").and_then(|(_, rest)| rest.rsplit_once(") "));
    parts.is_some_and(|(name, rest)| WORKING_THREADS.contains(&name) && rest.starts_with(['R', 'D']))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// What is judged of looks a second apart.
    fn judged(looks: impl IntoIterator<Item = bool>) -> Vec<Judgement> {
        let began = Instant::now();
        let mut silence = Silence::since(began);
        let looks = looks.into_iter().zip(1..);
        let judged =
            looks.map(|(works, second)| silence.look(works, began + Duration::from_secs(second), PATIENCE));
        judged.filter(|judgement| *judgement != Judgement::Early).collect()
    }

    #[test]
    fn what_works_is_slow_however_long_and_what_does_not_is_dead() {
        let slow = |seconds| Judgement::Slow(Duration::from_secs(seconds));
        assert_eq!(judged((0..190).map(|_| true)), [slow(60), slow(120), slow(180)]);
        assert_eq!(
            judged((0..60).map(|second| second % 2 == 0)),
            [slow(60)],
            "it waits for others now and then"
        );
        assert_eq!(judged((0..60).map(|_| false)), [Judgement::Dead]);
        // A thread that wakes up now and then for a moment is idle, not at work.
        assert_eq!(judged((0..60).map(|second| second % 10 == 0)), [Judgement::Dead]);
        assert_eq!(
            judged((0..120).map(|second| second < 60)),
            [slow(60), Judgement::Dead],
            "slow, then dead"
        );
    }

    #[test]
    fn one_look_after_a_long_time_says_nothing() {
        let began = Instant::now();
        let mut silence = Silence::since(began);
        for _ in 1..FEWEST_LOOKS {
            assert_eq!(silence.look(false, began + 10 * PATIENCE, PATIENCE), Judgement::Early);
        }
        assert_eq!(silence.look(false, began + 10 * PATIENCE, PATIENCE), Judgement::Dead);
    }

    #[test]
    fn threads_are_known_by_name_and_state() {
        assert!(works("12 (control) R 1 2 3") && works("12 (journal) D 1"));
        for idle in
            ["12 (control) S 1", "12 (daemon) T 1", "12 (tokio-rt-worker) R 1", "12 (a) control) R 1", ""]
        {
            assert!(!works(idle), "{idle}");
        }
        let thread = std::thread::Builder::new().name("control".into());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let busy = thread.spawn(move || while !stopped.load(Ordering::Relaxed) {}).unwrap();
        bedplate_testkit::wait_until("the thread is seen at work", || is_at_work(std::process::id()));
        stop.store(true, Ordering::Relaxed);
        busy.join().unwrap();
    }
}
