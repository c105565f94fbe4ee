//! TCP connections to a member on another host. Large messages are cut over all of them.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};

use crate::sealed::SealedStream;

pub(crate) struct Streams {
    sockets: Vec<SealedStream>,
}

impl Streams {
    /// Connections in the same order on both sides, at least one.
    pub(crate) fn new(sockets: Vec<SealedStream>) -> io::Result<Self> {
        for socket in sockets.iter().map(SealedStream::socket) {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
        }
        Ok(Self { sockets })
    }

    pub(crate) fn count(&self) -> usize {
        self.sockets.len()
    }

    pub(crate) fn descriptor(&self, stream: usize) -> BorrowedFd<'_> {
        self.sockets[stream].reader.as_fd()
    }

    /// Writes what the connection takes now. Who is told that nothing went comes again with the same bytes.
    pub(crate) fn try_send(&mut self, stream: usize, parts: [&[u8]; 2]) -> io::Result<usize> {
        now(|| self.sockets[stream].writer.write_parts(parts))
    }

    /// Reads what is there now; the end of the stream is an error.
    pub(crate) fn try_receive(&mut self, stream: usize, bytes: &mut [u8]) -> io::Result<usize> {
        let is_something = !bytes.is_empty();
        let mut is_over = false;
        let count = now(|| {
            let count = self.sockets[stream].read(bytes)?;
            is_over = count == 0 && is_something;
            Ok(count)
        })?;
        if is_over { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(count) }
    }
}

/// Nothing, where the connection would have to be waited for.
fn now(mut attempt: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            other => return other,
        }
    }
}
