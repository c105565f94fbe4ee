//! The clock that leases are measured by, for agent and fork server alike.

use bedplate_gangs::Time;
use bedplate_host::clock::since_boot;

/// Milliseconds that also pass while the host sleeps, for the control plane's clock does not sleep with it.
pub(crate) fn now() -> Time {
    Time(since_boot().as_millis() as u64)
}
