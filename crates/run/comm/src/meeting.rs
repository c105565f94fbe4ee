//! How ranks become a world: one of them gathers the arrivals and tells everybody who the others are.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::JoinError;
use crate::choice::AlgorithmTable;
use crate::core::FAREWELL;
use crate::handshake::{self, HandshakeError, Secret, random_text};
use crate::listener::{Listener, Visitor, is_within_host};
use crate::rendezvous::WorldOptions;
use crate::sealed::SealedStream;
use crate::wire::{Arrival, Purpose, RankMember, Refusal, Reply, Timed, Welcome, read_frame, write_frame};
use crate::world::{Gap, Numbering};

/// How often a rank that waits looks up.
const LOOK: Duration = Duration::from_millis(20);

/// How long an answer takes that has begun.
const ANSWER: Duration = Duration::from_secs(10);

/// Who is waited for, and how the ranks of the new world are numbered.
pub(crate) enum Guests<'a> {
    /// A new world of this size.
    World(u32),
    /// A world after this one: its ranks, unless they are gone, and newcomers. `numbering` is asked again and again, because more
    /// ranks may be lost while the others gather.
    Survivors { ranks: u32, is_gone: &'a dyn Fn(u32) -> bool, numbering: &'a dyn Fn(Gap) -> Numbering },
}

pub(crate) struct MeetingHost<'a> {
    pub(crate) listener: &'a Listener,
    pub(crate) own: Arrival,
    pub(crate) guests: Guests<'a>,
    /// Of these, streams and deadline become those of all.
    pub(crate) options: &'a WorldOptions,
    pub(crate) table: AlgorithmTable,
    pub(crate) at_most: Duration,
}

/// A rank that has arrived; none is the host's own.
struct Guest {
    arrival: Arrival,
    address: Option<IpAddr>,
    stream: Option<SealedStream>,
}

impl MeetingHost<'_> {
    /// Waits for all and makes the world; on failure everybody who came is told why.
    pub(crate) fn gather(self) -> Result<Welcome, JoinError> {
        let began = Instant::now();
        let mut guests = vec![Guest { arrival: self.own.clone(), address: None, stream: None }];
        while !self.is_complete(&mut guests) {
            let has_place = !self.is_rebuilt() || self.newcomers_missing(&guests) > 0;
            // Newcomers beyond those that are wanted wait at the listener until the world has begun without them.
            let is_guest = |purpose: &Purpose| match purpose {
                Purpose::Arrive(arrival) => {
                    arrival.epoch == self.own.epoch && (arrival.rank.is_some() || has_place)
                }
                _ => false,
            };
            if let Some(visitor) = self.listener.fetch(is_guest, LOOK)
                && let Err(refusal) = self.admit(&mut guests, visitor)
            {
                return Err(turn_away(guests, refusal));
            }
            if began.elapsed() > self.at_most {
                let refusal = self.missing(&guests);
                return Err(turn_away(guests, refusal));
            }
        }
        self.welcome(guests)
    }

    /// Whether all are here, and still are.
    fn is_complete(&self, guests: &mut Vec<Guest>) -> bool {
        self.has_all(guests) && {
            guests.retain(|guest| !guest.has_hung_up());
            self.has_all(guests)
        }
    }

    fn has_all(&self, guests: &[Guest]) -> bool {
        match &self.guests {
            Guests::World(size) => guests.len() == *size as usize,
            Guests::Survivors { .. } => self.absent(guests).is_empty() && self.newcomers_missing(guests) == 0,
        }
    }

    fn is_rebuilt(&self) -> bool {
        matches!(self.guests, Guests::Survivors { .. })
    }

    fn is_given_up(&self, rank: Option<u32>) -> bool {
        matches!(&self.guests, Guests::Survivors { is_gone, .. } if rank.is_some_and(is_gone))
    }

    /// How the next world is numbered, and the newcomers that it takes.
    fn wanted(&self) -> (Numbering, usize) {
        let Guests::Survivors { ranks, is_gone, numbering } = &self.guests else {
            return (Numbering::Kept, 0);
        };
        let gone = (0..*ranks).filter(|rank| is_gone(*rank)).count() as u32;
        match numbering(Gap { left: *ranks - gone, gone }) {
            Numbering::Kept => (Numbering::Kept, gone as usize),
            compact @ Numbering::Compact { newcomers } => (compact, newcomers as usize),
        }
    }

    fn newcomers_missing(&self, guests: &[Guest]) -> usize {
        let (_, wanted) = self.wanted();
        wanted.saturating_sub(guests.iter().filter(|guest| guest.arrival.rank.is_none()).count())
    }

    /// Ranks that should come and have not.
    fn absent(&self, guests: &[Guest]) -> Vec<u32> {
        let has_come = |rank: &u32| guests.iter().any(|guest| guest.arrival.rank == Some(*rank));
        match &self.guests {
            Guests::World(size) => (0..*size).filter(|rank| !has_come(rank)).collect(),
            Guests::Survivors { ranks, is_gone, .. } => {
                (0..*ranks).filter(|rank| !has_come(rank) && !is_gone(*rank)).collect()
            }
        }
    }

    fn missing(&self, guests: &[Guest]) -> Refusal {
        let world = self.own.world.unwrap_or(guests.len() as u32);
        let (seconds, turned_away) = (self.at_most.as_secs(), self.listener.turned_away());
        Refusal::Missing { world, missing: self.absent(guests), seconds, turned_away }
    }

    /// Takes an arrival in, unless it contradicts the others.
    fn admit(&self, guests: &mut Vec<Guest>, visitor: Visitor) -> Result<(), Refusal> {
        let Visitor { purpose: Purpose::Arrive(arrival), mut stream } = visitor else { return Ok(()) };
        if self.is_given_up(arrival.rank) {
            let why = format!("{} had lost contact with it", self.own.who);
            let _ = write_frame(&mut stream, &Reply::Refused(Refusal::LeftOut { why }));
            return Ok(());
        }
        // One that comes by loopback is on this host: others reach it by the address at which they reach this rank.
        let address = stream.peer_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback());
        let guest = Guest { arrival, address, stream: Some(stream) };
        if let Err(refusal) = self.compare(&guest.arrival) {
            guests.push(guest);
            return Err(refusal);
        }
        let same = guests
            .iter()
            .position(|other| guest.arrival.rank.is_some() && other.arrival.rank == guest.arrival.rank);
        match same {
            None => guests.push(guest),
            // Its first process ended before the world was made, and it was started again.
            Some(at) if guests[at].has_hung_up() => guests[at] = guest,
            Some(at) => {
                let (first, second) = (guests[at].arrival.who.clone(), guest.arrival.who.clone());
                let rank = guest.arrival.rank.unwrap_or(0);
                guests.push(guest);
                return Err(Refusal::Twice { rank, first, second });
            }
        }
        Ok(())
    }

    fn compare(&self, arrival: &Arrival) -> Result<(), Refusal> {
        let own = &self.own;
        let differs = |what: String| {
            Err(Refusal::Differs { first: own.who.clone(), second: arrival.who.clone(), what })
        };
        if arrival.version != own.version {
            return differs(format!("programs of version {} and {}", own.version, arrival.version));
        }
        if let (Some(rank), Some(world)) = (arrival.rank, own.world)
            && rank >= world
        {
            return differs(format!("a world of {world} ranks has no rank {rank}"));
        }
        if arrival.world != own.world {
            let size =
                |world: Option<u32>| world.map_or("as many as come".to_owned(), |size| size.to_string());
            return differs(format!("worlds of {} and {} ranks", size(own.world), size(arrival.world)));
        }
        Ok(())
    }

    /// Numbers the ranks and tells each its own.
    fn welcome(&self, mut guests: Vec<Guest>) -> Result<Welcome, JoinError> {
        guests.sort_by_key(|guest| guest.arrival.rank.unwrap_or(u32::MAX));
        if let Guests::Survivors { ranks, .. } = &self.guests {
            let taken: Vec<u32> = guests.iter().filter_map(|guest| guest.arrival.rank).collect();
            let (numbering, wanted) = self.wanted();
            // Those for whom there is no place any more look for another world.
            guests.truncate(taken.len() + wanted);
            // Newcomers fill the gaps that the lost ranks left, if they are as many.
            let gaps: Vec<u32> = (0..*ranks).filter(|rank| !taken.contains(rank)).collect();
            if numbering == Numbering::Kept && guests.len() == *ranks as usize {
                let newcomers = guests.iter_mut().filter(|guest| guest.arrival.rank.is_none());
                newcomers.zip(gaps).for_each(|(guest, gap)| guest.arrival.rank = Some(gap));
                guests.sort_by_key(|guest| guest.arrival.rank.unwrap_or(u32::MAX));
            }
        }
        let members: Vec<RankMember> = guests.iter().map(Guest::member).collect();
        let id = random_text().map_err(|source| JoinError::Connection { who: "this rank".into(), source })?;
        let mut own = None;
        for (rank, guest) in guests.iter_mut().enumerate() {
            let welcome = Welcome {
                rank: rank as u32,
                epoch: self.own.epoch,
                id: id.clone(),
                members: members.clone(),
                table: self.table.clone(),
                streams: self.options.streams,
                deadline: self.options.deadline,
            };
            match &mut guest.stream {
                None => own = Some(welcome),
                // One that is gone already will be missed when links are made.
                Some(stream) => drop(write_frame(stream, &Reply::Welcome(welcome))),
            }
        }
        Ok(own.expect("the host is one of the guests"))
    }
}

impl Guest {
    fn member(&self) -> RankMember {
        let Arrival { host, port, who, .. } = self.arrival.clone();
        RankMember { host, address: self.address, port, who }
    }

    fn has_hung_up(&self) -> bool {
        let Some(stream) = self.stream.as_ref().map(SealedStream::socket) else { return false };
        let _ = stream.set_nonblocking(true);
        let mut byte = [0];
        let has_ended = match stream.peek(&mut byte) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        let _ = stream.set_nonblocking(false);
        has_ended
    }
}

fn turn_away(mut guests: Vec<Guest>, refusal: Refusal) -> JoinError {
    for stream in guests.iter_mut().filter_map(|guest| guest.stream.as_mut()) {
        let _ = write_frame(stream, &Reply::Refused(refusal.clone()));
    }
    refusal.into()
}

impl From<Refusal> for JoinError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Twice { rank, first, second } => JoinError::Twice { rank, first, second },
            Refusal::Differs { first, second, what } => JoinError::Differs { first, second, what },
            Refusal::Missing { world, missing, seconds, turned_away } => {
                JoinError::Missing { world, missing, seconds, turned_away }
            }
            Refusal::LeftOut { why } => JoinError::LeftOut { why },
        }
    }
}

/// Connects to a rank's listener and says what for.
pub(crate) fn knock(
    address: SocketAddr,
    secret: &Secret,
    purpose: &Purpose,
    at_most: Duration,
) -> Result<SealedStream, HandshakeError> {
    let at_most = at_most.max(Duration::from_millis(1));
    let stream = TcpStream::connect_timeout(&address, at_most)?;
    introduce(stream, secret, purpose, at_most)
}

/// Proves that this side knows the secret, and says what the connection is for.
pub(crate) fn introduce(
    stream: TcpStream,
    secret: &Secret,
    purpose: &Purpose,
    at_most: Duration,
) -> Result<SealedStream, HandshakeError> {
    stream.set_nodelay(true)?;
    let keys = handshake::connect(&mut Timed::new(&stream, at_most), secret, is_within_host(&stream))?;
    stream.set_write_timeout(Some(at_most))?;
    let mut stream = SealedStream::new(stream, keys);
    write_frame(&mut stream, purpose)?;
    Ok(stream)
}

/// Waits to be told the world by the rank that gathers it, unless that is gone.
pub(crate) fn attend(
    stream: &mut SealedStream,
    who: &str,
    at_most: Duration,
    is_gone: &dyn Fn() -> bool,
) -> Result<Welcome, JoinError> {
    let lost = |source| JoinError::Connection { who: who.to_owned(), source };
    // The host gives up first, and says why.
    let mut until = Instant::now() + at_most + Duration::from_secs(5);
    stream.set_read_timeout(Some(LOOK)).map_err(lost)?;
    while let Err(error) = stream.socket().peek(&mut [0]) {
        let is_early = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
        if !is_early || Instant::now() > until {
            return Err(lost(error));
        }
        if is_gone() {
            // Its answer may still be on its way: a host that has answered everybody leaves the old world.
            until = until.min(Instant::now() + FAREWELL);
        }
    }
    stream.set_read_timeout(Some(ANSWER)).map_err(lost)?;
    match read_frame(stream).map_err(lost)? {
        Reply::Welcome(welcome) => Ok(welcome),
        Reply::Refused(refusal) => Err(refusal.into()),
    }
}
