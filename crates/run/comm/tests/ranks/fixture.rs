//! Ranks as threads of the test: each joins the world as a process would.

use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

use bedplate_comm::{Encryption, Rendezvous, Transport, World, WorldOptions};

pub(crate) const SECRET: &[u8] = b"a secret of the tests";

/// Every way in which ranks of one machine can reach each other.
pub(crate) const TRANSPORTS: [Transport; 4] =
    [Transport::Automatic, Transport::Tcp, Transport::Hosts(2), Transport::Hosts(3)];

/// A port that rank 0 can listen on.
pub(crate) fn free_port() -> u16 {
    free_port_at(IpAddr::from([127, 0, 0, 1]))
}

/// The port stays ours until the test program ends: the end of a connection that was accepted there keeps the system from
/// giving it to others, and lets those listen that ask for this very port.
pub(crate) fn free_port_at(address: IpAddr) -> u16 {
    static KEPT: Mutex<Vec<[TcpStream; 2]>> = Mutex::new(Vec::new());
    let listener = TcpListener::bind((address, 0)).unwrap();
    let place = listener.local_addr().unwrap();
    let caller = TcpStream::connect(place).unwrap();
    let (callee, _) = listener.accept().unwrap();
    KEPT.lock().unwrap().push([caller, callee]);
    place.port()
}

pub(crate) fn options(transport: Transport) -> WorldOptions {
    let (join, patience) = (Duration::from_secs(60), Duration::from_secs(60));
    // Over TCP as between hosts, though all are on one.
    let encryption = Encryption::Always;
    let deadline = Duration::from_secs(30);
    WorldOptions { transport, encryption, join, patience, deadline, ..WorldOptions::default() }
}

/// Runs `work` on every rank and returns what each returned, by rank.
pub(crate) fn ranks<R: Send>(count: u32, options: &WorldOptions, work: impl Fn(World) -> R + Sync) -> Vec<R> {
    let port = free_port();
    let (work, options) = (&work, &options);
    thread::scope(|scope| {
        let start = |rank| {
            scope.spawn(move || {
                let rendezvous = Rendezvous::on_this_machine(rank, count, port, SECRET);
                work(World::join(&rendezvous, options).expect("all ranks join"))
            })
        };
        let threads: Vec<_> = (0..count).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// Where ranks wait for each other without a call of their world. A rank that leaves or rebuilds ends the calls of others, also the
/// barrier that it has left itself.
pub(crate) struct Together {
    ranks: u32,
    here: Mutex<u32>,
    came: Condvar,
}

impl Together {
    pub(crate) fn new(ranks: u32) -> Self {
        Self { ranks, here: Mutex::new(0), came: Condvar::new() }
    }

    pub(crate) fn wait(&self) {
        let mut here = self.here.lock().unwrap();
        *here += 1;
        self.came.notify_all();
        let is_incomplete = |here: &mut u32| *here < self.ranks;
        let waited = self.came.wait_timeout_while(here, Duration::from_secs(60), is_incomplete).unwrap();
        assert!(!waited.1.timed_out(), "only {} of {} ranks came", waited.0, self.ranks);
    }
}
