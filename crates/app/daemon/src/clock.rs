//! The daemon's time: the wall clock's, but it neither goes back nor jumps.
//!
//! Silence is measured by it, so a clock that somebody sets forward by an hour must not make every node look lost.
//! When the wall clock differs, this one runs a tenth faster or slower until both agree.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bedplate_gangs::Time;

/// How much faster or slower it may run.
const SLEW: i64 = 10;

#[derive(Debug)]
pub(crate) struct Clock {
    last: Mutex<Reading>,
}

#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    micros: i64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { last: Mutex::new(Reading { at: Instant::now(), micros: wall_micros() }) }
    }

    pub(crate) fn now(&self) -> Time {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let at = Instant::now();
        let elapsed = micros(at.duration_since(last.at));
        *last = Reading { at, micros: advanced(last.micros, elapsed, wall_micros()) };
        Time((last.micros / 1000).cast_unsigned())
    }
}

/// Where the clock stands `elapsed` after it stood at `last`, when the wall clock says `wall`.
fn advanced(last: i64, elapsed: i64, wall: i64) -> i64 {
    let expected = last + elapsed;
    expected + (wall - expected).clamp(-elapsed / SLEW, elapsed / SLEW)
}

fn wall_micros() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_wall_clock_without_a_jump() {
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
}
