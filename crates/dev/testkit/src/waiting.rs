//! Waiting in tests for what other threads and processes do: by looking again and again, never for a fixed time.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for anything. A test whose subject works never waits this long, even on a slow machine with much
/// else to do.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until `is_so` holds; panics with `what` was awaited when it does not.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// Waits until `look` finds something, and returns it.
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    wait(what, || look().ok_or(""))
}

/// Waits until what `look` sees is as wanted, and returns it; a panic shows what was seen last.
#[track_caller]
pub fn wait_to_see<T: Debug>(what: &str, mut look: impl FnMut() -> T, is_so: impl Fn(&T) -> bool) -> T {
    wait(what, || {
        let seen = look();
        if is_so(&seen) { Ok(seen) } else { Err(seen) }
    })
}

#[track_caller]
fn wait<T, S: Debug>(what: &str, mut look: impl FnMut() -> Result<T, S>) -> T {
    let began = Instant::now();
    loop {
        let seen = match look() {
            Ok(found) => return found,
            Err(seen) => seen,
        };
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}; last seen: {seen:#?}");
        // What comes at once is noticed at once; looking for long, as commands do, takes a small share of the processor.
        thread::sleep((began.elapsed() / 16).clamp(Duration::from_millis(2), Duration::from_millis(100)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_later_is_seen() {
        let mut looks = 0;
        let mut look = || {
            looks += 1;
            looks
        };
        assert_eq!(wait_to_see("the third look", &mut look, |looks| *looks == 3), 3);
        assert_eq!(wait_for("another", || Some(look()).filter(|looks| *looks > 5)), 6);
        wait_until("a last one", || look() > 6);
    }
}
