//! A number in shared memory that one side raises and others wait for: they look for a while, then give their core away, then
//! sleep.
//!
//! Values wrap around, so "reached" is decided by distance. A waiter counts itself among the sleepers before it looks for the
//! last time, and a setter looks for sleepers after it has set the value; both in one order (`SeqCst`), so no wake-up is lost.

use std::time::Duration;

use super::sync::{AtomicU32, Ordering, sleep_while, spin_loop, wake_all, yield_now};

/// How long one sleep lasts at most; a waiter looks for faults in between.
const NAP: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Flag {
    value: AtomicU32,
    sleepers: AtomicU32,
}

/// How a waiter spends its time before it sleeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitPace {
    pub(crate) looks: u32,
    pub(crate) yields: u32,
}

impl WaitPace {
    /// For a thread whose core has other work: computation, or ranks that share it.
    pub(crate) const BACKGROUND: Self = Self { looks: 40, yields: 0 };

    /// For `ranks` that share `cores`. A rank that has its core to itself looks for some ten microseconds; where ranks share
    /// cores the one that is waited for may need this one.
    pub(crate) fn of(ranks: usize, cores: usize) -> Self {
        if ranks <= cores { Self { looks: 400, yields: 100 } } else { Self { looks: 40, yields: 200 } }
    }
}

/// Whether a value that wraps around has come to another.
#[inline(always)]
pub(crate) fn reached(value: u32, wanted: u32) -> bool {
    value.wrapping_sub(wanted) as i32 >= 0
}

impl Flag {
    #[inline]
    pub(crate) fn value(&self) -> u32 {
        self.value.load(Ordering::Acquire)
    }

    /// Sets the value and wakes who waits for it. Everything written before is visible to who sees the value.
    #[inline]
    pub(crate) fn set(&self, value: u32) {
        self.value.store(value, Ordering::SeqCst);
        self.wake();
    }

    /// Adds to the value, for flags that several raise; returns the new value.
    #[inline]
    pub(crate) fn add(&self, count: u32) -> u32 {
        let value = self.value.fetch_add(count, Ordering::SeqCst).wrapping_add(count);
        self.wake();
        value
    }

    fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            wake_all(&self.value);
        }
    }

    /// Waits until the value has come to `wanted`. `check` is asked now and then, with how long the waiter meant to be away.
    #[inline]
    pub(crate) fn wait<E>(
        &self,
        wanted: u32,
        pace: WaitPace,
        mut check: impl FnMut(Duration) -> Result<(), E>,
    ) -> Result<u32, E> {
        let value = self.value();
        if reached(value, wanted) {
            return Ok(value);
        }
        for look in 1..=pace.looks {
            spin_loop();
            let value = self.value();
            if reached(value, wanted) {
                return Ok(value);
            }
            if look % 256 == 0 {
                check(Duration::ZERO)?;
            }
        }
        for _ in 0..pace.yields {
            yield_now();
            let value = self.value();
            if reached(value, wanted) {
                return Ok(value);
            }
        }
        loop {
            check(NAP)?;
            if let Some(value) = self.nap(wanted) {
                return Ok(value);
            }
        }
    }

    /// Sleeps once, if the value has not come; the value if it has.
    fn nap(&self, wanted: u32) -> Option<u32> {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let value = self.value.load(Ordering::SeqCst);
        let has_come = reached(value, wanted);
        if !has_come {
            sleep_while(&self.value, value, NAP);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        let value = self.value();
        reached(value, wanted).then_some(value)
    }
}
