//! Connections between ranks that have met: the links of a world, and the segments and channels of a group.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind, connect, getsockopt,
    listen, recv, send, socket, sockopt,
};
use std::os::fd::AsFd;

use crate::channels::{Channel, Channels, Streams};
use crate::core::Core;
use crate::engine::GroupEngine;
use crate::gpu::GroupGpus;
use crate::handshake::{HandshakeError, Secret};
use crate::layered::Layered;
use crate::links::RankLink;
use crate::listener::Listener;
use crate::meeting::knock;
use crate::sealed::SealedStream;
use crate::shared::SharedGroup;
use crate::shared::flag::WaitPace;
use crate::shared::pipe::Pipe;
use crate::shared::segment::SharedSegment;
use crate::wire::{Message, Purpose, Welcome};
use crate::{CommError, Fault, Group, JoinError};

/// How long ranks that have met have to connect to each other.
pub(crate) const CONNECTING: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);
/// How often a rank that is waited for is asked whether it still listens.
const PROBE: Duration = Duration::from_millis(500);
/// A listener that refuses this often, [`LOOK`] apart, is closed; a relay in front of it may be late.
const REFUSALS: u32 = 25;

/// Ranks of a new world that could not be connected to, and why.
pub(crate) type Lost = Vec<(u32, io::Error)>;

/// Connects to every rank of a new world. One whose process has ended since the ranks met has a link that is gone, and is
/// named.
pub(crate) fn links(
    welcome: &Welcome,
    meeting: IpAddr,
    listener: &Listener,
    secret: &Secret,
    at_most: Duration,
) -> Result<(Vec<Option<RankLink>>, Lost), JoinError> {
    // What came for worlds before this one is not fetched any more.
    listener.forget(|purpose| match purpose {
        Purpose::Link { world, .. } | Purpose::Stream { world, .. } => *world != welcome.id,
        Purpose::Arrive(_) => false,
    });
    let until = Instant::now() + at_most.min(CONNECTING);
    let (me, members) = (welcome.rank as usize, welcome.members.len());
    let here = |source| JoinError::Connection { who: "this rank".into(), source };
    let is_local = |rank: usize| welcome.members[rank].host == welcome.members[me].host;
    let address = |rank: usize| welcome.members[rank].address(meeting);
    let local = LocalListener::open(&welcome.id, me).map_err(here)?;
    let mut links: Vec<Option<io::Result<RankLink>>> = welcome.members.iter().map(|_| None).collect();
    // A connection is made by the higher rank; the lower one need not do anything meanwhile.
    for (rank, made) in links.iter_mut().enumerate().take(me) {
        *made = Some(if is_local(rank) {
            call_local(&welcome.id, rank, me, address(rank), until).and_then(RankLink::local)
        } else {
            let purpose = Purpose::Link { world: welcome.id.clone(), rank: me as u32 };
            call(address(rank), secret, &purpose, until, &mut || Ok(())).and_then(RankLink::remote)
        });
    }
    while let Some(missing) = (me + 1..members).find(|rank| is_local(*rank) && links[*rank].is_none()) {
        let soon = until.min(Instant::now() + PROBE);
        match local.accept(soon) {
            Ok((rank, socket)) if rank > me && rank < members && is_local(rank) && links[rank].is_none() => {
                links[rank] = Some(RankLink::local(socket));
            }
            Ok(_) => {
                let why = "it claims a rank that it does not have";
                links[missing] = Some(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
            }
            Err(error) if error.kind() != io::ErrorKind::TimedOut || Instant::now() >= until => {
                links[missing] = Some(Err(error));
            }
            Err(_) => {
                for rank in (me + 1..members).filter(|rank| is_local(*rank)) {
                    if links[rank].is_none() && has_ended(address(rank)) {
                        links[rank] = Some(Err(ended()));
                    }
                }
            }
        }
    }
    for rank in (me + 1..members).filter(|rank| !is_local(*rank)) {
        let wanted = Purpose::Link { world: welcome.id.clone(), rank: rank as u32 };
        links[rank] = Some(fetch(listener, &wanted, address(rank), until).and_then(RankLink::remote));
    }
    sort_out(links).map_err(here)
}

/// Puts a link that is gone in the place of each that could not be made.
fn sort_out(links: Vec<Option<io::Result<RankLink>>>) -> io::Result<(Vec<Option<RankLink>>, Lost)> {
    let mut lost = Lost::new();
    let mut sorted = Vec::with_capacity(links.len());
    for (rank, link) in links.into_iter().enumerate() {
        sorted.push(match link {
            None => None,
            Some(Ok(link)) => Some(link),
            Some(Err(error)) => {
                lost.push((rank as u32, error));
                Some(RankLink::gone()?)
            }
        });
    }
    Ok((sorted, lost))
}

/// Whether nothing listens any more where a rank is reached: it does from before the ranks meet until it ends.
fn has_ended(address: SocketAddr) -> bool {
    let outcome = TcpStream::connect_timeout(&address, PROBE);
    outcome.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionRefused, "its process ended while the world was made")
}

/// Connects to a rank's listener, again and again until it is clear that nobody answers. `check` says whether to go on.
fn call(
    address: SocketAddr,
    secret: &Secret,
    purpose: &Purpose,
    until: Instant,
    check: &mut dyn FnMut() -> io::Result<()>,
) -> io::Result<SealedStream> {
    let mut refused = 0;
    loop {
        check()?;
        let left = until.saturating_duration_since(Instant::now());
        match knock(address, secret, purpose, left.min(Duration::from_secs(5))) {
            Ok(stream) => return Ok(stream),
            Err(HandshakeError::Io(error)) if left.is_zero() => return Err(error),
            Err(HandshakeError::Io(error)) => {
                refused += u32::from(error.kind() == io::ErrorKind::ConnectionRefused);
                if refused > REFUSALS {
                    return Err(ended());
                }
                thread::sleep(LOOK);
            }
            Err(HandshakeError::WrongSecret) => return Err(io::Error::other("it has another secret")),
            Err(HandshakeError::Protocol(why)) => return Err(io::Error::other(why)),
        }
    }
}

fn fetch(
    listener: &Listener,
    wanted: &Purpose,
    from: SocketAddr,
    until: Instant,
) -> io::Result<SealedStream> {
    let mut next_probe = Instant::now() + PROBE;
    loop {
        if let Some(visitor) = listener.fetch(|purpose| purpose == wanted, LOOK) {
            return Ok(visitor.stream);
        }
        let now = Instant::now();
        if now > until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if now > next_probe {
            next_probe = now + PROBE;
            if has_ended(from) {
                return Err(ended());
            }
        }
    }
}

/// Where the higher ranks of this host reach a rank: a socket without a file, whose name only members know.
struct LocalListener(OwnedFd);

fn local_name(world: &str, rank: usize) -> io::Result<UnixAddr> {
    Ok(UnixAddr::new_abstract(format!("bedplate-comm-{world}-{rank}").as_bytes())?)
}

fn local_socket() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

impl LocalListener {
    fn open(world: &str, rank: usize) -> io::Result<Self> {
        let listener = local_socket()?;
        bind(listener.as_raw_fd(), &local_name(world, rank)?)?;
        listen(&listener, Backlog::new(1024).expect("a valid backlog"))?;
        Ok(Self(listener))
    }

    /// The next rank that connects. One of another user is not one of ours.
    fn accept(&self, until: Instant) -> io::Result<(usize, OwnedFd)> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            wait_for(&self.0, left.min(LOOK * 5))?;
            let Ok(raw) = accept4(self.0.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK)
            else {
                continue;
            };
            #[expect(unsafe_code, reason = "descriptors arrive as numbers")]
            // SAFETY: the descriptor is new and has no other owner.
            let socket = unsafe { OwnedFd::from_raw_fd(raw) };
            let is_ours =
                getsockopt(&socket, sockopt::PeerCredentials)?.uid() == nix::unistd::geteuid().as_raw();
            if !is_ours {
                continue;
            }
            let mut rank = [0; 4];
            wait_for(&socket, Duration::from_secs(2))?;
            if recv(socket.as_raw_fd(), &mut rank, MsgFlags::empty()) == Ok(rank.len()) {
                return Ok((u32::from_le_bytes(rank) as usize, socket));
            }
        }
    }
}

fn call_local(
    world: &str,
    rank: usize,
    me: usize,
    address: SocketAddr,
    until: Instant,
) -> io::Result<OwnedFd> {
    let mut next_probe = Instant::now() + PROBE;
    loop {
        let socket = local_socket()?;
        match connect(socket.as_raw_fd(), &local_name(world, rank)?) {
            Ok(()) => {
                send(socket.as_raw_fd(), &(me as u32).to_le_bytes(), MsgFlags::MSG_NOSIGNAL)?;
                return Ok(socket);
            }
            Err(error) if Instant::now() > until => return Err(error.into()),
            Err(_) if Instant::now() > next_probe => {
                next_probe = Instant::now() + PROBE;
                if has_ended(address) {
                    return Err(ended());
                }
            }
            // It has not opened its socket yet.
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn wait_for(descriptor: &OwnedFd, at_most: Duration) -> io::Result<()> {
    let mut watched = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
    let at_most = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
    match poll(&mut watched, at_most) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What a group is made of, on one of its members.
pub(crate) struct Connections<'a> {
    core: &'a Arc<Core>,
    name: &'a str,
    ranks: &'a [u32],
    me: usize,
    /// The same on all members, and different for every group.
    key: String,
    /// The members of each host, in order.
    hosts: Vec<Vec<usize>>,
    my_host: usize,
    my_place: usize,
    until: Instant,
}

impl<'a> Connections<'a> {
    pub(crate) fn new(core: &'a Arc<Core>, name: &'a str, ranks: &'a [u32], count: u32) -> Self {
        let me = ranks.iter().position(|rank| *rank == core.rank).expect("the caller is a member");
        let host = |member: usize| &core.members[ranks[member] as usize].host;
        let mut hosts: Vec<Vec<usize>> = Vec::new();
        for member in 0..ranks.len() {
            match hosts.iter_mut().find(|members| host(members[0]) == host(member)) {
                Some(members) => members.push(member),
                None => hosts.push(vec![member]),
            }
        }
        let my_host =
            hosts.iter().position(|members| members.contains(&me)).expect("every member has a host");
        let my_place =
            hosts[my_host].iter().position(|member| *member == me).expect("a member is on its host");
        let list: Vec<String> = ranks.iter().map(u32::to_string).collect();
        let key = format!("{name}#{count}:{}", list.join(","));
        let until = Instant::now() + core.options.patience;
        Self { core, name, ranks, me, key, hosts, my_host, my_place, until }
    }

    pub(crate) fn group(self) -> Result<Group, CommError> {
        let pace = self.pace();
        let engine = self.engine(pace)?;
        Ok(Group::new(
            Arc::clone(self.core),
            (self.name, self.key),
            self.ranks.to_vec(),
            self.me,
            pace,
            engine,
        ))
    }

    fn pace(&self) -> WaitPace {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        // All ranks of the host share its cores, whatever their groups.
        let host = &self.core.members[self.core.rank as usize].host;
        let ranks = self.core.members.iter().filter(|member| member.host == *host).count();
        WaitPace::of(ranks, cores)
    }

    fn engine(&self, pace: WaitPace) -> Result<GroupEngine, CommError> {
        let table = self.core.table.clone();
        if self.ranks.len() == 1 {
            return Ok(GroupEngine {
                shared: None,
                layered: None,
                channels: None,
                gpus: GroupGpus::default(),
                table,
                number: 0,
            });
        }
        let segment = self.segment()?;
        let local = |segment: &Arc<SharedSegment>| {
            let ranks = self.hosts[self.my_host].iter().map(|member| self.ranks[*member]).collect();
            SharedGroup::new(Arc::clone(segment), Arc::clone(&self.core.windows), self.my_place, ranks, pace)
        };
        let all: Vec<usize> = (0..self.ranks.len()).collect();
        let channels = Some(self.channels("all", &all, segment.as_ref(), pace)?);
        if self.hosts.len() == 1 {
            return Ok(GroupEngine {
                shared: segment.as_ref().map(local),
                layered: None,
                channels,
                gpus: GroupGpus::default(),
                table,
                number: 0,
            });
        }
        if self.hosts.iter().all(|members| members.len() == 1) {
            return Ok(GroupEngine {
                shared: None,
                layered: None,
                channels,
                gpus: GroupGpus::default(),
                table,
                number: 0,
            });
        }
        let is_even = Layered::is_even(&self.hosts);
        let speaks = is_even || self.my_place == 0;
        let rail: Vec<usize> =
            self.hosts.iter().map(|members| members[if is_even { self.my_place } else { 0 }]).collect();
        let rail = if speaks { Some(self.channels("rail", &rail, None, pace)?) } else { None };
        let place = (self.my_host, self.my_place);
        let layered =
            Layered::new(segment.as_ref().map(local), rail, self.hosts.clone(), place, table.clone());
        Ok(GroupEngine {
            shared: None,
            layered: Some(layered),
            channels,
            gpus: GroupGpus::default(),
            table,
            number: 0,
        })
    }

    /// The shared segment of this host's members: the first makes it and sends it to the others.
    fn segment(&self) -> Result<Option<Arc<SharedSegment>>, CommError> {
        let share = |error: io::Error| CommError::Share(error.to_string());
        let members = self.hosts[self.my_host].len();
        if members == 1 {
            return Ok(None);
        }
        if self.my_place > 0 {
            return self.await_segment(members).map(Arc::new).map(Some);
        }
        let segment = SharedSegment::new(members).map_err(share)?;
        let message = Message::Segment { group: self.key.clone(), members: members as u32 };
        for member in &self.hosts[self.my_host][1..] {
            let rank = self.ranks[*member];
            let link = self.core.links[rank as usize].as_ref().expect("every other rank has a link");
            link.send(&message, segment.descriptor()).map_err(|error| self.lost(rank, &error))?;
        }
        Ok(Some(Arc::new(segment)))
    }

    fn await_segment(&self, members: usize) -> Result<SharedSegment, CommError> {
        let mut segments = self.core.segments.lock().expect("no holder of this lock panics");
        loop {
            let is_ours =
                |sent: &crate::core::SegmentSent| sent.group == self.key && sent.members as usize == members;
            if let Some(at) = segments.iter().position(is_ours) {
                let sent = segments.swap_remove(at);
                return SharedSegment::map(sent.descriptor, members)
                    .map_err(|error| CommError::Share(error.to_string()));
            }
            self.check()?;
            segments =
                self.core.segment_came.wait_timeout(segments, LOOK).expect("no holder of this lock panics").0;
        }
    }

    fn check(&self) -> Result<(), CommError> {
        self.core.watch.check()?;
        self.core.check_left(self.ranks)?;
        if Instant::now() < self.until {
            return Ok(());
        }
        let why = format!("not all of them made it within {} s", self.core.options.patience.as_secs());
        let fault = Fault::Revoked { rank: self.core.rank, reason: format!("group `{}`: {why}", self.name) };
        Err(self.core.fail(fault).into())
    }

    fn lost(&self, rank: u32, error: &io::Error) -> CommError {
        let why = format!("{error} ({})", self.core.members[rank as usize].who);
        self.core.fail(Fault::Lost { rank, why }).into()
    }

    /// Channels between some members: pipes on this host, connections to others.
    fn channels(
        &self,
        kind: &str,
        members: &[usize],
        segment: Option<&Arc<SharedSegment>>,
        pace: WaitPace,
    ) -> Result<Channels, CommError> {
        let key = format!("{}/{kind}", self.key);
        let ranks: Vec<u32> = members.iter().map(|member| self.ranks[*member]).collect();
        let me = members.iter().position(|member| *member == self.me).expect("the caller is a member");
        let mut channels: Vec<Option<Channel>> = members.iter().map(|_| None).collect();
        let place = |member: usize| self.hosts[self.my_host].iter().position(|each| *each == member);
        for (index, member) in members.iter().enumerate().filter(|(index, _)| *index != me) {
            if let (Some(place), Some(segment)) = (place(*member), segment) {
                channels[index] = Some(Channel::Pipe(Pipe::new(Arc::clone(segment), self.my_place, place)));
            }
        }
        let remote: Vec<usize> =
            (0..members.len()).filter(|index| *index != me && channels[*index].is_none()).collect();
        // As for links: the higher rank calls, and need not wait for the other to be here.
        for index in remote.iter().filter(|index| self.core.rank > ranks[**index]) {
            let sockets = self.call_streams(&key, ranks[*index])?;
            channels[*index] = Some(Channel::Streams(sockets));
        }
        for index in remote.iter().filter(|index| self.core.rank < ranks[**index]) {
            let sockets = self.fetch_streams(&key, ranks[*index])?;
            channels[*index] = Some(Channel::Streams(sockets));
        }
        Ok(Channels::new(me, ranks, channels, pace))
    }

    fn stream(&self, key: &str, rank: u32, index: u32) -> Purpose {
        Purpose::Stream { world: self.core.id.clone(), channels: key.to_owned(), rank, index }
    }

    fn call_streams(&self, key: &str, rank: u32) -> Result<Streams, CommError> {
        let address = self.core.members[rank as usize].address(self.core.meeting);
        let mut sockets = Vec::new();
        for index in 0..self.core.options.streams {
            let purpose = self.stream(key, self.core.rank, index);
            let until = Instant::now() + CONNECTING;
            let mut check = || self.core.watch.check().map_err(io::Error::other);
            let socket = call(address, &self.core.secret, &purpose, until, &mut check)
                .map_err(|error| self.lost(rank, &error))?;
            sockets.push(socket);
        }
        Streams::new(sockets).map_err(|error| self.lost(rank, &error))
    }

    fn fetch_streams(&self, key: &str, rank: u32) -> Result<Streams, CommError> {
        let mut sockets = Vec::new();
        for index in 0..self.core.options.streams {
            let wanted = self.stream(key, rank, index);
            let visitor = loop {
                if let Some(visitor) = self.core.listener.fetch(|purpose| *purpose == wanted, LOOK) {
                    break visitor;
                }
                self.check()?;
            };
            sockets.push(visitor.stream);
        }
        Streams::new(sockets).map_err(|error| self.lost(rank, &error))
    }
}
