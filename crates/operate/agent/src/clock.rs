//! The clock that leases are measured by, for agent and keeper alike.

use bedplate_gangs::Time;
use nix::time::{ClockId, clock_gettime};

/// Milliseconds that also pass while the host sleeps, for the control plane's clock does not sleep with it.
pub(crate) fn now() -> Time {
    let clock = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has this clock");
    Time(clock.tv_sec() as u64 * 1000 + clock.tv_nsec() as u64 / 1_000_000)
}
