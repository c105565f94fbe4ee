//! The links between ranks outside of calls: signs of life, faults, and descriptors of shared memory.
//!
//! Every pair of ranks has one: a socket of the host where they share memory, a TCP connection otherwise. The kernel closes
//! it when a process ends, so the other side knows at once.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use crate::sealed::{SealedReader, SealedStream, SealedWriter};
use crate::wire::{Message, frame, take_frame};

/// The longest message on a local link.
const LONGEST: usize = 64 << 10;
/// A message that a peer does not take for this long is not sent.
const SENDING: Duration = Duration::from_secs(2);

/// A message, and a descriptor that came with it.
pub(crate) type Received = (Message, Option<OwnedFd>);

pub(crate) struct RankLink {
    wire: Wire,
    sending: Mutex<()>,
    state: AtomicU8,
}

enum Wire {
    Local(OwnedFd),
    Remote(Box<RemoteWire>),
}

/// A connection: what is sent, what comes, and what both are waited for by.
struct RemoteWire {
    descriptor: OwnedFd,
    writer: Mutex<SealedWriter>,
    incoming: Mutex<Incoming>,
}

/// What comes over a connection, and what has come of a message that is not whole yet.
struct Incoming {
    reader: SealedReader,
    kept: Vec<u8>,
}

/// What is known of the rank at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum LinkState {
    Alive,
    /// It left in good order.
    Left,
    Gone,
}

impl RankLink {
    pub(crate) fn local(socket: OwnedFd) -> io::Result<Self> {
        nix::fcntl::fcntl(&socket, nix::fcntl::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
        Ok(Self::new(Wire::Local(socket)))
    }

    pub(crate) fn remote(stream: SealedStream) -> io::Result<Self> {
        stream.socket().set_nonblocking(true)?;
        stream.socket().set_nodelay(true)?;
        let descriptor = stream.reader.as_fd().try_clone_to_owned()?;
        let SealedStream { reader, writer } = stream;
        let incoming = Mutex::new(Incoming { reader, kept: Vec::new() });
        Ok(Self::new(Wire::Remote(Box::new(RemoteWire { descriptor, writer: Mutex::new(writer), incoming }))))
    }

    /// A link to a rank that ended before there was one.
    pub(crate) fn gone() -> io::Result<Self> {
        let (socket, _) = std::os::unix::net::UnixStream::pair()?;
        let link = Self::new(Wire::Local(socket.into()));
        link.set_state(LinkState::Gone);
        Ok(link)
    }

    fn new(wire: Wire) -> Self {
        Self { wire, sending: Mutex::new(()), state: AtomicU8::new(LinkState::Alive as u8) }
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self.wire, Wire::Local(_))
    }

    pub(crate) fn state(&self) -> LinkState {
        match self.state.load(Ordering::Acquire) {
            0 => LinkState::Alive,
            1 => LinkState::Left,
            _ => LinkState::Gone,
        }
    }

    pub(crate) fn set_state(&self, state: LinkState) {
        self.state.store(state as u8, Ordering::Release);
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.wire {
            Wire::Local(socket) => socket.as_fd(),
            Wire::Remote(wire) => wire.descriptor.as_fd(),
        }
    }

    /// A sign of life, if there is room for it: a peer that takes nothing will not miss it.
    pub(crate) fn send_sign(&self) {
        let Ok(_turn) = self.sending.try_lock() else { return };
        let mut writable = [PollFd::new(self.descriptor(), PollFlags::POLLOUT)];
        let has_room = poll(&mut writable, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
        if has_room {
            let _ = self.put(&Message::Alive, None);
        }
    }

    pub(crate) fn send(&self, message: &Message, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let _turn = self.sending.lock().expect("no holder of this lock panics");
        self.put(message, descriptor)
    }

    fn put(&self, message: &Message, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let began = Instant::now();
        match &self.wire {
            Wire::Local(socket) => {
                let bytes = serde_json::to_vec(message)?;
                let descriptors: Vec<RawFd> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
                let rights = [ControlMessage::ScmRights(&descriptors)];
                let control = if descriptors.is_empty() { &rights[..0] } else { &rights[..] };
                let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                let parts = [IoSlice::new(&bytes)];
                self.retried(began, || {
                    Ok(sendmsg::<()>(socket.as_raw_fd(), &parts, control, flags, None).map(drop)?)
                })
            }
            Wire::Remote(wire) => {
                let mut writer = wire.writer.lock().expect("no holder of this lock panics");
                let bytes = frame(message)?;
                let mut sent = 0;
                while sent < bytes.len() {
                    self.retried(began, || {
                        sent += writer.write(&bytes[sent..])?;
                        Ok(())
                    })?;
                }
                Ok(())
            }
        }
    }

    /// Tries until there is room, for a bounded time.
    fn retried(&self, began: Instant, mut attempt: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        loop {
            match attempt() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && began.elapsed() < SENDING => {
                    let mut writable = [PollFd::new(self.descriptor(), PollFlags::POLLOUT)];
                    let _ = poll(&mut writable, PollTimeout::from(50u8));
                }
                other => return other,
            }
        }
    }

    /// The next message, if one is there; an error when the other side is gone.
    pub(crate) fn receive(&self) -> io::Result<Option<Received>> {
        match &self.wire {
            Wire::Local(socket) => receive_local(socket),
            Wire::Remote(wire) => {
                let mut incoming = wire.incoming.lock().expect("no holder of this lock panics");
                let Incoming { reader, kept } = &mut *incoming;
                let mut bytes = [0; 4096];
                loop {
                    if let Some(message) = take_frame(kept)? {
                        return Ok(Some((message, None)));
                    }
                    match reader.read(&mut bytes) {
                        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                        Ok(count) => kept.extend_from_slice(&bytes[..count]),
                        Err(error) if is_momentary(&error) => return Ok(None),
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }
}

fn is_momentary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn receive_local(socket: &OwnedFd) -> io::Result<Option<Received>> {
    let mut bytes = vec![0; LONGEST];
    let mut control = nix::cmsg_space!([RawFd; 1]);
    let (count, descriptor) = {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let received = match recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags) {
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            other => other?,
        };
        let mut descriptor = None;
        for message in received.cmsgs()? {
            if let ControlMessageOwned::ScmRights(list) = message {
                #[expect(unsafe_code, reason = "descriptors arrive as numbers")]
                // SAFETY: the kernel made these descriptors for this process with this message; they have no other owner.
                let mut owned = list.into_iter().map(|raw| unsafe { OwnedFd::from_raw_fd(raw) });
                descriptor = owned.next();
            }
        }
        (received.bytes, descriptor)
    };
    if count == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some((serde_json::from_slice(&bytes[..count])?, descriptor)))
}
