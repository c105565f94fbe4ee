//! The clock of the control plane's host, which people set, and the time that the daemon makes of it.

use super::*;

const DAY: i64 = 86_400_000;
/// How far off the wall clock is set, in milliseconds.
const OFF: [i64; 6] = [-DAY, -3_600_000, -20_000, 20_000, 3_600_000, DAY];
/// The daemon's time runs at most a tenth faster or slower than time passes.
const SLEW: i64 = 10;

/// The daemon's time: the wall clock's, but it does not jump, and a daemon that starts again does not go back behind what it has written.
pub(super) struct ControlClock {
    bug: Option<Bug>,
    /// What the wall clock shows more than the world's.
    ahead: i64,
    at: u64,
    micros: i64,
}

impl ControlClock {
    pub(super) fn new(bug: Option<Bug>) -> Self {
        Self { bug, ahead: 1_000_000_000, at: 0, micros: 0 }
    }

    pub(super) fn now(&self) -> Time {
        Time((self.micros / 1000).cast_unsigned())
    }

    /// A daemon starts, whose journal ends at `latest`.
    pub(super) fn start(&mut self, now: u64, latest: Time) {
        let latest = if self.bug == Some(Bug::StandsStill) { Time::ZERO } else { latest };
        self.at = now;
        self.micros = self.wall(now).max(1000 * latest.0.cast_signed());
    }

    /// Time has passed.
    pub(super) fn advance(&mut self, now: u64) {
        let elapsed = 1000 * (now - self.at).cast_signed();
        let (expected, wall) = (self.micros + elapsed, self.wall(now));
        self.at = now;
        self.micros = match self.bug {
            Some(Bug::JumpsWithTheWall) => wall,
            _ => expected + (wall - expected).clamp(-elapsed / SLEW, elapsed / SLEW),
        };
    }

    /// Somebody sets the wall clock.
    pub(super) fn set(&mut self, off: i64) {
        self.ahead = 1_000_000_000 + off;
    }

    fn wall(&self, now: u64) -> i64 {
        1000 * (now.cast_signed() + self.ahead)
    }
}

impl World {
    pub(super) fn jump(&mut self) {
        if !self.is_stormy {
            return;
        }
        let pause = self.random.between(2_000, 30_000);
        self.after(pause, Coming::Jump);
        let off = OFF[self.random.between(0, OFF.len() as u64) as usize];
        self.tell(&format!("the control plane's clock is set {off} ms off"));
        self.clock.set(off);
    }
}
