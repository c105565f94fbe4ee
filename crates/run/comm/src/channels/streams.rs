//! TCP connections to a member on another host. Large messages are cut over all of them.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

pub(crate) struct Streams {
    sockets: Vec<TcpStream>,
}

impl Streams {
    /// Connections in the same order on both sides, at least one.
    pub(crate) fn new(sockets: Vec<TcpStream>) -> io::Result<Self> {
        for socket in &sockets {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
        }
        Ok(Self { sockets })
    }

    pub(crate) fn count(&self) -> usize {
        self.sockets.len()
    }

    pub(crate) fn descriptor(&self, stream: usize) -> BorrowedFd<'_> {
        self.sockets[stream].as_fd()
    }

    /// Writes what the connection takes now.
    pub(crate) fn try_send(&mut self, stream: usize, parts: [&[u8]; 2]) -> io::Result<usize> {
        let [first, second] = parts.map(IoSlice::new);
        now(|| self.sockets[stream].write_vectored(&[first, second]))
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
