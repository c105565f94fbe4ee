//! The terminal as a screen: keys without Enter, pictures in place, and everything as before at the end.

use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use bedplate_terminal::present::printable;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr};

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Up,
    Down,
    Sort,
}

/// A terminal in our hands; given back when dropped.
pub(super) struct Screen {
    before: Termios,
}

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

impl Screen {
    /// Nothing when standard input and output are no terminal.
    pub(super) fn take() -> Option<Self> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return None;
        }
        let before = tcgetattr(io::stdin()).ok()?;
        let mut raw = before.clone();
        // Ctrl-C comes as a key, so that the terminal is given back in order.
        raw.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG);
        raw.control_chars[SpecialCharacterIndices::VMIN as usize] = 0;
        raw.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
        tcsetattr(io::stdin(), SetArg::TCSANOW, &raw).ok()?;
        let screen = Self { before };
        screen.write(ENTER).ok()?;
        Some(screen)
    }

    /// Columns and rows.
    pub(super) fn size(&self) -> Option<(usize, usize)> {
        terminal_size::terminal_size().map(|(width, height)| (usize::from(width.0), usize::from(height.0)))
    }

    /// Puts a picture over the one before, line by line, so that nothing flickers.
    pub(super) fn show(&self, text: &str) -> io::Result<()> {
        let lines: Vec<String> = text.lines().map(|line| format!("{}\x1b[K", printable(line))).collect();
        self.write(&format!("\x1b[H{}\x1b[J", lines.join("\r\n")))
    }

    /// The next key within this time.
    pub(super) fn key(&self, within: Duration) -> Option<Key> {
        let stdin = io::stdin();
        let mut ready = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(within).unwrap_or(PollTimeout::ZERO);
        if poll(&mut ready, timeout).unwrap_or(0) == 0 {
            return None;
        }
        let mut bytes = [0; 16];
        match stdin.lock().read(&mut bytes) {
            // The terminal has gone.
            Ok(0) | Err(_) => Some(Key::Quit),
            Ok(count) => key_of(&bytes[..count]),
        }
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.write(LEAVE);
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

fn key_of(bytes: &[u8]) -> Option<Key> {
    match bytes {
        b"q" | b"Q" | [3] | [27] => Some(Key::Quit),
        b"j" | b"\x1b[B" => Some(Key::Down),
        b"k" | b"\x1b[A" => Some(Key::Up),
        b"s" => Some(Key::Sort),
        _ => None,
    }
}
