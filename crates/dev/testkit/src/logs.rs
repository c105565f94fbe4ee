//! What the code under test logs, kept for the test to look at.

use std::io;
use std::sync::{Mutex, Once, PoisonError};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Keeping;

impl io::Write for Keeping {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(bytes).into_owned();
        LINES.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps what any thread of this process logs from now on. Called before the code under test starts.
pub fn keep_logs() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Keeping);
        lines.init();
    });
}

/// Whether a line with these words was logged since [`keep_logs`].
pub fn has_logged(words: &str) -> bool {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|line| line.contains(words))
}
