//! Time that a rank spends waiting for other ranks.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Waiting since it was last taken.
#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<Waited>);

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Waited {
    /// For numbers of other ranks.
    pub(crate) communication: Duration,
    /// For a neighbouring stage to be ready.
    pub(crate) bubble: Duration,
}

impl Waits {
    pub(crate) fn time<T>(&self, call: impl FnOnce() -> T) -> T {
        let (value, took) = timed(call);
        self.lock().communication += took;
        value
    }

    pub(crate) fn time_bubble<T>(&self, call: impl FnOnce() -> T) -> T {
        let (value, took) = timed(call);
        self.lock().bubble += took;
        value
    }

    pub(crate) fn take(&self) -> Waited {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waited> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

fn timed<T>(call: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let value = call();
    (value, began.elapsed())
}
