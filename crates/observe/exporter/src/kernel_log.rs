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
const WAIT_MS: u16 = 200;

pub(crate) struct KernelLog {
    file: File,
    rest: Vec<u8>,
    is_at_end: bool,
}

impl KernelLog {
    /// Opens `/dev/kmsg`, or a pipe or file that a test writes.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path: PathBuf = path.to_owned();
        let mut file =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)?;
        // A pipe has no end to go to.
        let _ = file.seek(SeekFrom::End(0));
        Ok(Self { file, rest: Vec::new(), is_at_end: true })
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
                    self.rest.extend(&piece[..count]);
                    self.hand_over(&mut take);
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

    fn hand_over(&mut self, take: &mut impl FnMut(KernelLine<'_>)) {
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            // Lines that begin with a space belong to the record before.
            if let Some(line) = KernelLine::parse(&line).filter(|_| !line.starts_with(' ')) {
                take(line);
            }
        }
        if self.rest.len() > LONGEST {
            self.rest.clear();
        }
    }
}
