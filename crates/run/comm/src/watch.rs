//! What interrupts a wait: a fault of the world, or patience that has run out.
//!
//! Time counts only while this process itself runs: each look adds at most twice the time that it meant to sleep. A gang that
//! was suspended and resumed has aged by almost nothing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Fault;

/// The first fault of a world, as seen by this rank.
#[derive(Debug, Default)]
pub(crate) struct FaultWatch {
    is_raised: AtomicBool,
    fault: Mutex<Option<Fault>>,
}

impl FaultWatch {
    /// Keeps the first fault; says whether this is it.
    pub(crate) fn raise(&self, fault: Fault) -> bool {
        let mut kept = self.fault.lock().expect("no holder of this lock panics");
        let is_first = kept.is_none();
        kept.get_or_insert(fault);
        self.is_raised.store(true, Ordering::Release);
        is_first
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.is_raised.load(Ordering::Acquire) { Err(self.first()) } else { Ok(()) }
    }

    pub(crate) fn fault(&self) -> Option<Fault> {
        self.fault.lock().expect("no holder of this lock panics").clone()
    }

    fn first(&self) -> Fault {
        self.fault().expect("a raised watch has its fault")
    }
}

/// Counts the time that passes for a process that may be suspended.
#[derive(Debug)]
pub(crate) struct OwnTime {
    last: Instant,
    lived: Duration,
}

impl OwnTime {
    pub(crate) fn start() -> Self {
        Self { last: Instant::now(), lived: Duration::ZERO }
    }

    /// Counts what has passed since the last look, of which a process that runs spends `meant` or little more.
    pub(crate) fn look(&mut self, meant: Duration) -> Duration {
        let now = Instant::now();
        let passed = (now - self.last).min(meant * 2);
        self.last = now;
        self.lived += passed;
        passed
    }

    pub(crate) fn lived(&self) -> Duration {
        self.lived
    }
}
