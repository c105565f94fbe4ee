//! The daemon's time: the wall clock's, but it neither goes back nor jumps.

use bedplate_gangs::Time;
use bedplate_host::clock::SlewedClock;

#[derive(Debug)]
pub(crate) struct Clock(SlewedClock);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(SlewedClock::start())
    }

    /// The journal ends at this time: the daemon's does not begin before it, whatever the wall clock shows now.
    pub(crate) fn go_on_from(&self, latest: Time) {
        self.0.go_on_from(latest.0);
    }

    pub(crate) fn now(&self) -> Time {
        Time(self.0.now_ms())
    }
}
