//! Time on this host: the wall clock, one that never jumps, and one that counts sleep.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

/// How much faster or slower a [`SlewedClock`] may run: a tenth.
const SLEW: i64 = 10;

/// The wall clock, since 1970. It may jump: never measure silence by it.
pub fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The wall clock in milliseconds since 1970.
pub fn unix_ms() -> u64 {
    unix_time().as_millis() as u64
}

/// The time since the host was started, including the time it slept: what leases are measured by.
pub fn since_boot() -> Duration {
    let clock = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has this clock");
    Duration::new(clock.tv_sec().unsigned_abs(), clock.tv_nsec().unsigned_abs() as u32)
}

/// The wall clock's time, but it neither goes back nor jumps.
///
/// Silence and leases are measured by it, so a clock that somebody sets forward by an hour must not make every node look lost.
/// When the wall clock differs, this one runs a tenth faster or slower until both agree.
#[derive(Debug)]
pub struct SlewedClock {
    last: Mutex<Reading>,
}

#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    micros: i64,
}

impl SlewedClock {
    pub fn start() -> Self {
        Self { last: Mutex::new(Reading { at: Instant::now(), micros: micros(unix_time()) }) }
    }

    /// Goes on from this time, in milliseconds since 1970, where the clock shows less: it has been set back since. A clock that
    /// was merely kept from going back would stand still until the wall clock shows that time again, for hours or years.
    pub fn go_on_from(&self, least_ms: u64) {
        let least = i64::try_from(least_ms).map_or(i64::MAX / 4, |least| least.saturating_mul(1000));
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.micros = last.micros.max(least);
    }

    /// Milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let at = Instant::now();
        let elapsed = micros(at.duration_since(last.at));
        *last = Reading { at, micros: advanced(last.micros, elapsed, micros(unix_time())) };
        (last.micros / 1000).cast_unsigned()
    }
}

/// Where the clock stands `elapsed` after it stood at `last`, when the wall clock says `wall`.
fn advanced(last: i64, elapsed: i64, wall: i64) -> i64 {
    let expected = last + elapsed;
    expected + (wall - expected).clamp(-elapsed / SLEW, elapsed / SLEW)
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slewed_clock_follows_the_wall_clock_without_a_jump() {
        let second = 1_000_000;
        for (wall, expected) in [
            (101 * second, 101 * second),
            (101 * second + 50_000, 101 * second + 50_000),
            (3600 * second, 101 * second + second / 10),
            (0, 101 * second - second / 10),
        ] {
            assert_eq!(advanced(100 * second, second, wall), expected, "wall clock at {wall}");
        }
    }

    #[test]
    fn time_passes_after_a_clock_was_set_back_behind_what_was_written() {
        let clock = SlewedClock::start();
        let written = clock.now_ms() + 24 * 3_600_000;
        clock.go_on_from(written);
        let first = clock.now_ms();
        assert!(first >= written);
        while clock.now_ms() == first {
            std::thread::yield_now();
        }
        clock.go_on_from(0);
        assert!(clock.now_ms() > first);
    }

    #[test]
    fn clocks_agree_with_the_wall_and_go_forward() {
        let clock = SlewedClock::start();
        let (first, wall) = (clock.now_ms(), unix_time().as_millis() as u64);
        assert!(first.abs_diff(wall) < 60_000);
        assert!(clock.now_ms() >= first);
        assert!(since_boot() <= since_boot());
    }
}
