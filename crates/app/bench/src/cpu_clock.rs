//! CPU time of this thread, which other work on the machine does not affect.

use std::time::Instant;

use bedplate_terminal::files::read_system;

/// Runs from its start. Where the system does not count CPU time it counts wall time.
pub(crate) struct CpuClock {
    wall: Instant,
    cpu_ns: Option<u64>,
}

impl CpuClock {
    pub(crate) fn start() -> Self {
        Self { wall: Instant::now(), cpu_ns: thread_ns() }
    }

    pub(crate) fn elapsed_ms(&self) -> f64 {
        match (self.cpu_ns, thread_ns()) {
            (Some(start), Some(now)) => (now - start) as f64 / 1e6,
            _ => self.wall.elapsed().as_secs_f64() * 1e3,
        }
    }
}

/// The first number of Linux's scheduler statistics: nanoseconds on a core.
fn thread_ns() -> Option<u64> {
    read_system("/proc/thread-self/schedstat")?.split_whitespace().next()?.parse().ok()
}
