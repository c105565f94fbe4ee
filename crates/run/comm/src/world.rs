//! A world: ranks that have met, at one epoch. After a fault it can do no more, and the survivors make the next one.

mod devices;
mod rebuilding;
mod registered;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bedplate_kernels::Device;
use bedplate_layout::{Dimension, RankMap};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::connect::{CONNECTING, Connections, links};
use crate::core::Core;
use crate::handshake::HandshakeError;
use crate::links::RankLink;
use crate::listener::Listener;
use crate::meeting::{Guests, MeetingHost, attend, introduce};
use crate::monitor::watch_over;
use crate::recorder::{FlightRecord, Recorder};
use crate::rendezvous::{Rendezvous, Transport, WorldOptions};
use crate::sealed::SealedStream;
use crate::shared::windows::MemoryWindows;
use crate::span::ByteSpan;
use crate::watch::FaultWatch;
use crate::wire::{Arrival, Message, Purpose, Welcome};
use crate::{CommError, Fault, Group, JoinError, Number};

pub use registered::Registered;

/// A rank's place among all ranks. Dropping it leaves in good order.
pub struct World {
    core: Arc<Core>,
    monitor: Option<JoinHandle<()>>,
    /// How often groups of the same name and ranks were made.
    made: Mutex<BTreeMap<(String, Vec<u32>), u32>>,
}

/// How the ranks of the next world are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbering {
    /// Survivors in their old order, then as many newcomers as are waited for.
    Compact { newcomers: u32 },
    /// Survivors keep their ranks; a newcomer takes the place of each rank that is gone.
    Kept,
}

/// How many ranks of a world are left, and how many are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    pub left: u32,
    pub gone: u32,
}

/// What newcomers need to [join](World::join_next) the next world: the address of the rank that gathers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeetingPoint {
    pub address: SocketAddr,
    /// Of the world that is to be made.
    pub epoch: u64,
}

/// Retries to reach a rank that has not opened its listener yet.
const AGAIN: Duration = Duration::from_millis(50);
const VERSION: &str = env!("CARGO_PKG_VERSION");

impl World {
    /// Meets the other ranks. Returns when all are there and connected.
    pub fn join(rendezvous: &Rendezvous, options: &WorldOptions) -> Result<Self, JoinError> {
        raise_file_limit();
        let rendezvous = &rendezvous.with_encryption(options.encryption);
        let own =
            |port| arrival(Some(rendezvous.rank), Some(rendezvous.world), rendezvous.epoch, port, options);
        if rendezvous.rank == 0 {
            let address = rendezvous.listening_address()?;
            let listen = |source| JoinError::Listen { address: address.to_string(), source };
            let listener = Arc::new(Listener::open(address, rendezvous.secret.clone()).map_err(listen)?);
            let guests = Guests::World(rendezvous.world);
            let host = MeetingHost {
                listener: &listener,
                own: own(listener.port()),
                guests,
                options,
                table: options.table.clone(),
                at_most: options.join,
            };
            let welcome = host.gather()?;
            return Self::made(welcome, address.ip(), listener, rendezvous, options);
        }
        let began = Instant::now();
        let (mut stream, listener) = reach(rendezvous, options, began, &own)?;
        let meeting = stream.peer_addr().map(|address| address.ip());
        let meeting = meeting.map_err(|source| JoinError::Connection { who: "rank 0".into(), source })?;
        let welcome = attend(&mut stream, "rank 0", options.join, &|| false)?;
        Self::made(welcome, meeting, listener, rendezvous, options)
    }

    /// Takes part in a world that survivors rebuild: as a spare, or in place of a rank that is gone. It knocks once: those who gather may
    /// do so elsewhere by now.
    pub fn join_next(
        point: MeetingPoint,
        rendezvous: &Rendezvous,
        options: &WorldOptions,
    ) -> Result<Self, JoinError> {
        raise_file_limit();
        let rendezvous = &rendezvous.with_encryption(options.encryption);
        let lost = |source| JoinError::Connection { who: "the survivors".into(), source };
        let own = |port| arrival(None, None, point.epoch, port, options);
        let at = Rendezvous {
            address: point.address.ip().to_string(),
            port: point.address.port(),
            rank: u32::MAX,
            ..rendezvous.clone()
        };
        let (mut stream, listener) = reach_once(&at, options, &own)?;
        let meeting = stream.peer_addr().map_err(lost)?.ip();
        let welcome = attend(&mut stream, "the survivors", options.join, &|| false)?;
        Self::made_again(welcome, meeting, listener, rendezvous.secret.clone(), options.clone())
    }

    fn made(
        welcome: Welcome,
        meeting: IpAddr,
        listener: Arc<Listener>,
        rendezvous: &Rendezvous,
        options: &WorldOptions,
    ) -> Result<Self, JoinError> {
        let who = |rank: u32| welcome.members[rank as usize].who.clone();
        let (links, lost) = links(&welcome, meeting, &listener, &rendezvous.secret, options.join)?;
        if let Some((rank, source)) = lost.into_iter().next() {
            return Err(JoinError::Connection { who: format!("rank {rank} ({})", who(rank)), source });
        }
        Self::assemble(welcome, links, meeting, listener, rendezvous.secret.clone(), options.clone())
    }

    /// A rank that ended since it was welcome is the first fault of the new world, which can be rebuilt in its turn.
    fn made_again(
        welcome: Welcome,
        meeting: IpAddr,
        listener: Arc<Listener>,
        secret: crate::handshake::Secret,
        options: WorldOptions,
    ) -> Result<Self, JoinError> {
        let (links, lost) = links(&welcome, meeting, &listener, &secret, CONNECTING)?;
        let world = Self::assemble(welcome, links, meeting, listener, secret, options)?;
        for (rank, source) in lost {
            let why = format!("{source} ({})", world.who(rank));
            world.core.fail(Fault::Lost { rank, why });
        }
        Ok(world)
    }

    fn assemble(
        welcome: Welcome,
        links: Vec<Option<RankLink>>,
        meeting: IpAddr,
        listener: Arc<Listener>,
        secret: crate::handshake::Secret,
        options: WorldOptions,
    ) -> Result<Self, JoinError> {
        let options = WorldOptions { streams: welcome.streams.max(1), deadline: welcome.deadline, ..options };
        let here = |source| JoinError::Connection { who: "this rank".into(), source };
        let core = Core {
            rank: welcome.rank,
            epoch: welcome.epoch,
            id: welcome.id,
            members: welcome.members,
            meeting,
            secret,
            recorder: Recorder::new(options.recorded),
            table: welcome.table,
            options,
            listener,
            links,
            watch: FaultWatch::default(),
            windows: Arc::new(MemoryWindows::default()),
            segments: Mutex::default(),
            segment_came: Condvar::new(),
            is_closing: AtomicBool::new(false),
            wake: EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(|error| here(error.into()))?,
            left: AtomicU32::new(0),
            left_at: Mutex::default(),
        };
        let core = Arc::new(core);
        let watched = Arc::clone(&core);
        let monitor = thread::Builder::new().name("comm-monitor".into()).spawn(move || watch_over(&watched));
        Ok(Self { core, monitor: Some(monitor.map_err(here)?), made: Mutex::default() })
    }

    pub fn rank(&self) -> u32 {
        self.core.rank
    }

    pub fn size(&self) -> u32 {
        self.core.members.len() as u32
    }

    /// Counts the worlds that these ranks have made one after the other.
    pub fn epoch(&self) -> u64 {
        self.core.epoch
    }

    /// For people: host and process of a rank. Panics when there is no such rank.
    pub fn who(&self, rank: u32) -> &str {
        &self.core.members[rank as usize].who
    }

    /// The ranks that share this one's host.
    pub fn host_ranks(&self) -> Vec<u32> {
        let mine = &self.core.members[self.core.rank as usize].host;
        (0..self.size()).filter(|rank| self.core.members[*rank as usize].host == *mine).collect()
    }

    /// All ranks.
    pub fn everyone(&self) -> Result<Group, CommError> {
        self.group("world", &(0..self.size()).collect::<Vec<u32>>())
    }

    /// The ranks that this one works with along a dimension of a layout.
    pub fn along(&self, map: &RankMap, dimension: Dimension) -> Result<Group, CommError> {
        if map.world() != self.size() {
            let why = format!("the layout has {} ranks and the world {}", map.world(), self.size());
            return Err(CommError::Group { ranks: Vec::new(), why });
        }
        let ranks: Vec<u32> = map.group(dimension, self.rank()).ranks().collect();
        self.group(&format!("{dimension:?}").to_lowercase(), &ranks)
    }

    /// A group of these ranks, in this order. All of them make it, in the same order as their other groups.
    pub fn group(&self, name: &str, ranks: &[u32]) -> Result<Group, CommError> {
        self.core.watch.check()?;
        let bad = |why: &str| CommError::Group { ranks: ranks.to_vec(), why: why.to_owned() };
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != ranks.len() {
            return Err(bad("a rank is named twice"));
        }
        if sorted.last().is_none_or(|last| *last >= self.size()) {
            return Err(bad("there is no such rank"));
        }
        if sorted.binary_search(&self.rank()).is_err() {
            return Err(bad("this rank is not among them"));
        }
        let count = {
            let mut made = self.made.lock().expect("no holder of this lock panics");
            let count = made.entry((name.to_owned(), ranks.to_vec())).or_default();
            *count += 1;
            *count
        };
        Connections::new(&self.core, name, ranks, count).group()
    }

    /// Memory that the ranks of this host read and write in place: collectives on it copy nothing twice. A GPU's is its own. After a fault of the
    /// world, a peer that was in a call may still write to what the call worked on, also when it was stopped and goes on much
    /// later: elements that are needed after a fault are copied elsewhere.
    pub fn shared<E: Number>(&self, device: &Device, len: usize) -> Result<Registered<E>, CommError> {
        let share = |error: io::Error| CommError::Share(error.to_string());
        if !device.is_cpu() {
            let buffer = device.reserve::<E>(len).map_err(share)?;
            return Ok(Registered {
                core: Arc::clone(&self.core),
                buffer,
                span: ByteSpan::NOTHING,
                id: None,
            });
        }
        let mut buffer = device.shareable::<E>(len).map_err(share)?;
        let span = ByteSpan::of_mut(device, buffer.view_mut());
        let id = self.core.windows.add_own(span);
        let registered = Registered { core: Arc::clone(&self.core), buffer, span, id: Some(id) };
        if span.bytes > 0 {
            let message = Message::Window { id, bytes: span.bytes as u64 };
            let told = self.core.tell_host(&message, registered.buffer.descriptor());
            told.map_err(|error| self.core.explained().map_or_else(|| share(error), CommError::Fault))?;
        }
        Ok(registered)
    }

    /// The fault that ended this world, if one did.
    pub fn fault(&self) -> Option<Fault> {
        self.core.watch.fault()
    }

    /// Ranks that are gone, as far as this one knows.
    pub fn gone(&self) -> Vec<u32> {
        (0..self.size()).filter(|rank| self.core.is_gone(*rank)).collect()
    }

    /// Ends the calls of all ranks with a fault, so that the world can be rebuilt.
    pub fn revoke(&self, reason: &str) {
        self.core.fail(Fault::Revoked { rank: self.rank(), reason: reason.to_owned() });
    }

    /// Tells all ranks that this one has lost its GPU and computes no more; they may go on without it.
    pub fn lose_device(&self, why: &str) {
        self.core.fail(Fault::Device { rank: self.rank(), why: why.to_owned() });
    }

    /// The last calls of this rank.
    pub fn flight_record(&self) -> FlightRecord {
        self.core.recorder.record(self.rank(), self.size(), self.epoch(), self.fault())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.core.tell_all(&Message::Leave);
        self.core.is_closing.store(true, Ordering::Release);
        let _ = self.core.wake.write(1);
        if let Some(monitor) = self.monitor.take() {
            let _ = monitor.join();
        }
        // Nobody hears the peers any more, so calls of groups that are left would wait in vain.
        self.core
            .watch
            .raise(Fault::Revoked { rank: self.core.rank, reason: "it has left the world".into() });
    }
}

/// Reaches rank 0, which may start later, and opens a listener on the address by which it was reached.
fn reach(
    rendezvous: &Rendezvous,
    options: &WorldOptions,
    began: Instant,
    own: &dyn Fn(u16) -> Arrival,
) -> Result<(SealedStream, Arc<Listener>), JoinError> {
    loop {
        match reach_once(rendezvous, options, own) {
            Err(JoinError::Unreachable { .. }) if began.elapsed() <= options.join => thread::sleep(AGAIN),
            outcome => return outcome,
        }
    }
}

fn reach_once(
    rendezvous: &Rendezvous,
    options: &WorldOptions,
    own: &dyn Fn(u16) -> Arrival,
) -> Result<(SealedStream, Arc<Listener>), JoinError> {
    let at = format!("{}:{}", rendezvous.address, rendezvous.port);
    attempt(rendezvous, options, own).map_err(|error| match error {
        Attempt::Final(error) => error,
        Attempt::Again(HandshakeError::WrongSecret) => {
            JoinError::WrongSecret { who: format!("rank 0 at {at}") }
        }
        Attempt::Again(HandshakeError::Protocol(why)) => {
            JoinError::Protocol { who: format!("what listens at {at}"), why }
        }
        Attempt::Again(HandshakeError::Io(source)) => {
            let (rank, seconds) = (rendezvous.rank, options.join.as_secs());
            JoinError::Unreachable { rank, address: at, seconds, source }
        }
    })
}

enum Attempt {
    Again(HandshakeError),
    Final(JoinError),
}

fn attempt(
    rendezvous: &Rendezvous,
    options: &WorldOptions,
    own: &dyn Fn(u16) -> Arrival,
) -> Result<(SealedStream, Arc<Listener>), Attempt> {
    let at_most = options.join.min(Duration::from_secs(10));
    let mut last = HandshakeError::Io(io::ErrorKind::NotFound.into());
    for address in rendezvous.addresses().map_err(Attempt::Final)? {
        match open_and_introduce(address, rendezvous, at_most, own) {
            Ok(found) => return Ok(found),
            Err(error) => last = error,
        }
    }
    Err(Attempt::Again(last))
}

fn open_and_introduce(
    address: SocketAddr,
    rendezvous: &Rendezvous,
    at_most: Duration,
    own: &dyn Fn(u16) -> Arrival,
) -> Result<(SealedStream, Arc<Listener>), HandshakeError> {
    let stream = std::net::TcpStream::connect_timeout(&address, at_most)?;
    let reached_at = rendezvous.reachable(SocketAddr::new(stream.local_addr()?.ip(), 0));
    let listener = Listener::open(reached_at, rendezvous.secret.clone())?;
    let stream = introduce(stream, &rendezvous.secret, &Purpose::Arrive(own(listener.port())), at_most)?;
    Ok((stream, Arc::new(listener)))
}

fn arrival(rank: Option<u32>, world: Option<u32>, epoch: u64, port: u16, options: &WorldOptions) -> Arrival {
    let process = std::process::id();
    let who = format!("{} process {process}", host_name());
    let host = match options.transport {
        Transport::Automatic => host_identity(),
        // A host of its own.
        Transport::Tcp => format!("{}/{}/{port}", host_identity(), process),
        Transport::Hosts(ranks) => format!("{}/{}", host_identity(), rank.unwrap_or(0) / ranks.max(1)),
    };
    let port = options.reached_at.unwrap_or(port);
    Arrival { epoch, world, rank, host, port, who, version: VERSION.to_owned() }
}

fn host_name() -> String {
    nix::unistd::gethostname().map_or_else(|_| "a host".into(), |name| name.to_string_lossy().into_owned())
}

/// The same for processes that can share memory and reach each other by a socket without a file: one kernel, one network
/// namespace, one user.
fn host_identity() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_else(|_| host_name());
    let network = std::fs::read_link("/proc/self/ns/net").map(|link| link.display().to_string());
    format!("{}/{}/{}", boot.trim(), network.unwrap_or_default(), nix::unistd::geteuid())
}

/// A world has a connection or two for every pair of ranks.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    const ENOUGH: u64 = 65_536;
    if let Ok((now, most)) = getrlimit(Resource::RLIMIT_NOFILE)
        && now < ENOUGH
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most.min(ENOUGH), most);
    }
}
