//! Where a rank is reached: a listening socket, and the connections that have proved themselves and wait to be fetched.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;

use crate::handshake::{self, HandshakeError, Secret};
use crate::sealed::SealedStream;
use crate::wire::{Purpose, Timed, read_frame};

/// A stranger that connects and says nothing, or one byte after the other, is dropped after this.
const INTRODUCTION: Duration = Duration::from_secs(10);
/// Connections that introduce themselves at once, and that wait to be fetched; a flood of strangers costs no more.
const MOST: usize = 4096;
const MOST_STRANGERS: u32 = 256;
const LOOK: Duration = Duration::from_millis(100);

/// A connection whose other side knows the secret.
#[derive(Debug)]
pub(crate) struct Visitor {
    pub(crate) purpose: Purpose,
    pub(crate) stream: SealedStream,
}

#[derive(Debug)]
pub(crate) struct Listener {
    address: SocketAddr,
    inside: Arc<Inside>,
    accepter: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Inside {
    visitors: Mutex<Vec<Visitor>>,
    came: Condvar,
    introducing: AtomicU32,
    turned_away: AtomicU32,
    is_closed: AtomicBool,
}

impl Listener {
    pub(crate) fn open(address: SocketAddr, secret: Secret) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let inside = Arc::new(Inside::default());
        let there = Arc::clone(&inside);
        let accepter = thread::Builder::new()
            .name("comm-listener".into())
            .spawn(move || there.keep(&socket, &secret))?;
        Ok(Self { address, inside, accepter: Some(accepter) })
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn ip(&self) -> IpAddr {
        self.address.ip()
    }

    /// Connections that did not know the secret.
    pub(crate) fn turned_away(&self) -> u32 {
        self.inside.turned_away.load(Ordering::Relaxed)
    }

    /// The next visitor of a kind, if one comes within `at_most`.
    pub(crate) fn fetch(
        &self,
        mut is_wanted: impl FnMut(&Purpose) -> bool,
        at_most: Duration,
    ) -> Option<Visitor> {
        let mut visitors = self.inside.lock();
        let mut find = |visitors: &mut Vec<Visitor>| {
            let at = visitors.iter().position(|visitor| is_wanted(&visitor.purpose))?;
            Some(visitors.swap_remove(at))
        };
        if let Some(visitor) = find(&mut visitors) {
            return Some(visitor);
        }
        let wait = self.inside.came.wait_timeout(visitors, at_most);
        find(&mut wait.expect("no holder of this lock panics").0)
    }
}

impl Listener {
    /// Hangs up on visitors that nobody will fetch.
    pub(crate) fn forget(&self, mut is_unwanted: impl FnMut(&Purpose) -> bool) {
        self.inside.lock().retain(|visitor| !is_unwanted(&visitor.purpose));
    }
}

impl Inside {
    fn keep(self: &Arc<Self>, socket: &TcpListener, secret: &Secret) {
        while !self.is_closed.load(Ordering::Acquire) {
            let mut watched = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut watched, PollTimeout::try_from(LOOK).expect("a short time"));
            loop {
                match socket.accept() {
                    Ok((stream, _)) => self.introduce(stream, secret),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // No descriptor is free, say: who waits is still there in a while.
                    Err(_) => {
                        thread::sleep(LOOK);
                        break;
                    }
                }
            }
        }
    }

    /// In a thread of its own: a stranger may take its time.
    fn introduce(self: &Arc<Self>, stream: TcpStream, secret: &Secret) {
        if self.introducing.fetch_add(1, Ordering::AcqRel) >= MOST_STRANGERS {
            self.introducing.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let (inside, secret) = (Arc::clone(self), secret.clone());
        let started = thread::Builder::new().name("comm-visitor".into()).spawn(move || {
            match receive(stream, &secret) {
                Ok(visitor) => inside.let_in(visitor),
                Err(HandshakeError::WrongSecret) => {
                    inside.turned_away.fetch_add(1, Ordering::Relaxed);
                }
                Err(HandshakeError::Io(_) | HandshakeError::Protocol(_)) => {}
            }
            inside.introducing.fetch_sub(1, Ordering::AcqRel);
        });
        if started.is_err() {
            self.introducing.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn let_in(&self, visitor: Visitor) {
        let mut visitors = self.lock();
        if visitors.len() < MOST {
            visitors.push(visitor);
            self.came.notify_all();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Visitor>> {
        self.visitors.lock().expect("no holder of this lock panics")
    }
}

/// Whether both ends of a connection have one address.
pub(crate) fn is_within_host(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(own), Ok(other)) if own.ip() == other.ip())
}

fn receive(stream: TcpStream, secret: &Secret) -> Result<Visitor, HandshakeError> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let keys = handshake::accept(&mut Timed::new(&stream, INTRODUCTION), secret, is_within_host(&stream))?;
    stream.set_read_timeout(Some(INTRODUCTION))?;
    stream.set_write_timeout(Some(INTRODUCTION))?;
    let mut stream = SealedStream::new(stream, keys);
    let purpose = read_frame(&mut stream)?;
    Ok(Visitor { purpose, stream })
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.inside.is_closed.store(true, Ordering::Release);
        if let Some(accepter) = self.accepter.take() {
            let _ = accepter.join();
        }
    }
}
