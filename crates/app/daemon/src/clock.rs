//! The daemon's time: the wall clock's, but it neither goes back nor jumps.

use bedplate_gangs::Time;
use bedplate_host::clock::SlewedClock;

#[derive(Debug)]
pub(crate) struct Clock(SlewedClock);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(SlewedClock::start())
    }

    pub(crate) fn now(&self) -> Time {
        Time(self.0.now_ms())
    }
}
