//! Panics that show: each is printed at once with its thread, place, time and message, and its text can reach the error of
//! whatever it hurt.
//!
//! A panic on a thread of an engine, a collective or a server ends that thread alone. Without this, the user sees a request that
//! never ends, and the operator sees nothing. [`print_all`] is installed once by each program; [`caught`] turns what one call
//! panicked with into a value, [`caught_async`] that of a task.

use std::any::Any;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::Write;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::pin::pin;
use std::task::Poll;
use std::thread;

use bedplate_units::UtcTime;

use crate::clock::unix_time;

thread_local! {
    /// What the newest panic of this thread said, with its place; its payload alone has no place.
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// From now on every panic of any thread is printed to standard error as one line, and remembered for [`caught`].
pub fn print_all() {
    panic::set_hook(Box::new(|info| {
        let told = told(info);
        let name = thread::current().name().unwrap_or("unnamed").to_owned();
        let line = line(unix_time().as_millis() as u64, &name, &told);
        // Standard error may be closed; a second panic here would end the process.
        let _ = std::io::stderr().write_all(line.as_bytes());
        LAST.with(|last| *last.borrow_mut() = Some(told));
    }));
}

/// Runs `work`; a panic becomes its message and place, in one line.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    LAST.with(|last| last.borrow_mut().take());
    panic::catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let told = LAST.with(|last| last.borrow_mut().take());
        told.unwrap_or_else(|| message(payload.as_ref()).to_owned())
    })
}

/// The same for work that waits.
pub async fn caught_async<F: Future>(work: F) -> Result<F::Output, String> {
    let mut work = pin!(work);
    poll_fn(|context| match caught(|| work.as_mut().poll(context)) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(done)) => Poll::Ready(Ok(done)),
        Err(told) => Poll::Ready(Err(told)),
    })
    .await
}

/// What a panic of another thread said, from what its `join` returned.
pub fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

/// `message, at file:line:column`.
fn told(info: &PanicHookInfo<'_>) -> String {
    let message = message(info.payload()).replace('\n', " ");
    match info.location() {
        Some(place) => format!("{message}, at {place}"),
        None => message,
    }
}

/// One line, so that a log keeps it whole: `2026-11-18T16:09:54.123Z panic in thread engine: message, at file:line:column`.
fn line(unix_ms: u64, thread: &str, told: &str) -> String {
    format!("{} panic in thread {thread}: {told}\n", timestamp(unix_ms))
}

fn timestamp(unix_ms: u64) -> String {
    format!("{:#}.{:03}Z", UtcTime::of(unix_ms / 1000), unix_ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caught_panic_says_what_and_where_on_its_own_thread() {
        print_all();
        let told = caught(|| panic!("gang\nis empty")).unwrap_err();
        assert!(told.starts_with("gang is empty, at ") && told.contains("panics.rs:"), "{told}");
        assert_eq!(caught(|| 7), Ok(7));
        let joined = thread::spawn(|| panic!("of another {}", "thread")).join().unwrap_err();
        assert_eq!(message(joined.as_ref()), "of another thread");
        assert!(message(&7_u8).contains("without a message"));
    }

    #[test]
    fn a_line_has_time_thread_and_message() {
        for (ms, expected) in [
            (0, "1970-01-01T00:00:00.000Z panic in thread engine: x\n"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z panic in thread engine: x\n"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z panic in thread engine: x\n"),
            (1_793_376_594_123, "2026-10-30T16:09:54.123Z panic in thread engine: x\n"),
        ] {
            assert_eq!(line(ms, "engine", "x"), expected);
        }
    }
}
