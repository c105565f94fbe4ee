//! A progress bar on standard error, where that is a terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use bedplate_terminal::Console;
use bedplate_terminal::present::bar;

/// Often enough to look alive.
const EVERY: Duration = Duration::from_millis(100);
const WIDTH: usize = 30;

pub(super) struct Meter<'a> {
    console: &'a Console,
    is_shown: bool,
    last: Option<Instant>,
}

impl<'a> Meter<'a> {
    pub(super) fn new(console: &'a Console) -> Self {
        let is_shown = std::io::stderr().is_terminal() && !console.is_json();
        Self { console, is_shown, last: None }
    }

    /// Shows the share done, and a remark that is only computed when shown.
    pub(super) fn show(&mut self, part: f64, remark: impl FnOnce() -> String) {
        if self.is_shown && self.last.is_none_or(|last| last.elapsed() >= EVERY) {
            self.last = Some(Instant::now());
            self.console.say_raw(&format!("\r\x1b[K{} {:3.0}% {}", bar(part, WIDTH), part * 100.0, remark()));
        }
    }
}

impl Drop for Meter<'_> {
    fn drop(&mut self) {
        if self.last.is_some() {
            self.console.say_raw("\r\x1b[K");
        }
    }
}
