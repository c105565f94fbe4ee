//! The kernel log, line by line, from the moment the exporter starts: what was written before is no news.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bedplate_health::kernel_log::KernelLine;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The longest record that the kernel writes, and some more.
const LONGEST: usize = 16 << 10;
/// How long one wait lasts, so that the thread can end.
const WAIT_MS: u16 = 1_000;

pub(crate) struct KernelLog {
    file: File,
    lines: Lines,
    is_at_end: bool,
}

/// Bytes that become lines.
#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
    /// The line was too long, and its end has not come yet.
    is_skipping: bool,
}

impl KernelLog {
    /// Opens `/dev/kmsg`, or a pipe or file that a test writes.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path: PathBuf = path.to_owned();
        let mut file =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)?;
        // A pipe has no end to go to.
        let _ = file.seek(SeekFrom::End(0));
        Ok(Self { file, lines: Lines::default(), is_at_end: true })
    }

    /// Waits a moment for lines and hands over each.
    pub(crate) fn next(&mut self, mut take: impl FnMut(KernelLine<'_>)) -> io::Result<()> {
        self.wait()?;
        let mut piece = [0; LONGEST];
        loop {
            match self.file.read(&mut piece) {
                Ok(0) => {
                    self.is_at_end = true;
                    return Ok(());
                }
                Ok(count) => {
                    self.is_at_end = false;
                    self.lines.take(&piece[..count], &mut take);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // Lines were overwritten before we read them: go on with the oldest that is left.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn wait(&self) -> io::Result<()> {
        // Files and pipes without a writer are always ready.
        if self.is_at_end {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let mut ready = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::from(WAIT_MS)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Lines {
    fn take(&mut self, bytes: &[u8], take: &mut impl FnMut(KernelLine<'_>)) {
        self.rest.extend(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let is_whole = !std::mem::take(&mut self.is_skipping) && line.len() <= LONGEST;
            let line = String::from_utf8_lossy(&line);
            // Lines that begin with a space belong to the record before.
            if let Some(line) = KernelLine::parse(&line).filter(|_| is_whole && !line.starts_with(' ')) {
                take(line);
            }
        }
        if self.rest.len() > LONGEST {
            self.rest.clear();
            self.is_skipping = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(pieces: &[Vec<u8>]) -> Vec<String> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        pieces.iter().for_each(|piece| lines.take(piece, &mut |line| found.push(line.text.to_owned())));
        found
    }

    #[test]
    fn the_end_of_a_line_that_is_too_long_is_no_line() {
        let long = [vec![b'x'; 2 * LONGEST], b"4,1,1,-;NVRM: Xid (PCI:0000:10:00): 79, made up\n".to_vec()];
        assert_eq!(texts(&long), Vec::<String>::new());
        let after = [&long[..], &[b"4,2,2,-;real\n".to_vec()]].concat();
        assert_eq!(texts(&after), ["real"]);
    }

    proptest! {
        /// Where the kernel cuts its bytes changes nothing.
        #[test]
        fn lines_are_the_same_however_they_are_cut(
            texts_in in prop::collection::vec("[ -~]{0,40}", 0..20),
            cuts in prop::collection::vec(1usize..30, 1..20),
        ) {
            let all: String = texts_in.iter().map(|text| format!("6,1,1,-;{text}\n")).collect();
            let (mut pieces, mut rest) = (Vec::new(), all.as_bytes());
            for cut in cuts.iter().cycle() {
                let (piece, more) = rest.split_at((*cut).min(rest.len()));
                pieces.push(piece.to_vec());
                rest = more;
                if rest.is_empty() {
                    break;
                }
            }
            let wanted: Vec<&str> = texts_in.iter().map(|text| text.trim_end()).collect();
            prop_assert_eq!(texts(&pieces), wanted);
        }

        #[test]
        fn arbitrary_bytes_never_harm(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..500), 0..20)) {
            let _ = texts(&pieces);
        }
    }
}
