//! Lines of JSON over a socket that is never waited for, with the files that came along.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::start::own_file;

/// One end of the conversation with the agent.
pub(super) struct Channel {
    socket: UnixStream,
    received: Vec<u8>,
    files: VecDeque<OwnedFd>,
    /// What has not been written yet.
    outgoing: Vec<u8>,
}

/// What came, and whether more can come.
pub(super) struct Heard<T> {
    pub(super) messages: Vec<T>,
    pub(super) is_open: bool,
}

impl Channel {
    /// Over the socket that is this process's standard input.
    pub(super) fn on_stdin() -> io::Result<Self> {
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        socket.set_nonblocking(true)?;
        Ok(Self { socket, received: Vec::new(), files: VecDeque::new(), outgoing: Vec::new() })
    }

    /// Becomes ready when there is something to read, or room for what waits to be written.
    pub(super) fn watched(&self) -> PollFd<'_> {
        let writing = if self.outgoing.is_empty() { PollFlags::empty() } else { PollFlags::POLLOUT };
        PollFd::new(self.socket.as_fd(), PollFlags::POLLIN | writing)
    }

    /// All messages that are whole.
    pub(super) fn hear<T: DeserializeOwned>(&mut self) -> io::Result<Heard<T>> {
        let is_open = self.receive();
        let received = std::mem::take(&mut self.received);
        let mut rest = received.as_slice();
        let mut messages = Vec::new();
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            messages.push(serde_json::from_slice(&rest[..end]).map_err(io::Error::from)?);
            rest = &rest[end + 1..];
        }
        self.received = rest.to_vec();
        Ok(Heard { messages, is_open })
    }

    /// The next of the files that came along, in their order.
    pub(super) fn take_file(&mut self) -> Option<OwnedFd> {
        self.files.pop_front()
    }

    /// Reads all there is. False when the other end is gone.
    fn receive(&mut self) -> bool {
        let mut chunk = [0; 65_536];
        loop {
            let mut space = cmsg_space!([i32; 1]);
            let mut parts = [IoSliceMut::new(&mut chunk)];
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
            let message = recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(&mut space), flags);
            let length = match &message {
                Ok(message) => {
                    self.files.extend(message.cmsgs().into_iter().flatten().flat_map(files_in));
                    message.bytes
                }
                Err(Errno::EAGAIN) => return true,
                Err(Errno::EINTR) => continue,
                Err(_) => return false,
            };
            match length {
                0 => return false,
                length => self.received.extend_from_slice(&chunk[..length]),
            }
        }
    }

    /// Written by [`tell`](Self::tell).
    pub(super) fn say(&mut self, message: &impl Serialize) {
        let text = serde_json::to_vec(message).expect("a message is plain data");
        self.outgoing.extend_from_slice(&text);
        self.outgoing.push(b'\n');
    }

    /// Writes as much as the other end takes; the rest waits, because an agent that stands still must not stop this
    /// process too.
    pub(super) fn tell(&mut self) {
        let mut written = 0;
        while written < self.outgoing.len() {
            match self.socket.write(&self.outgoing[written..]) {
                Ok(length) => written += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The agent is gone, which the next read tells.
                Err(_) => written = self.outgoing.len(),
            }
        }
        self.outgoing.drain(..written);
    }
}

fn files_in(message: ControlMessageOwned) -> Vec<OwnedFd> {
    match message {
        ControlMessageOwned::ScmRights(files) => files.into_iter().map(own_file).collect(),
        _ => Vec::new(),
    }
}
