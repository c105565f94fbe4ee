//! The next world, made by the ranks that are left.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{AGAIN, Gap, MeetingPoint, Numbering, World, arrival};
use crate::core::Core;
use crate::handshake::HandshakeError;
use crate::meeting::{Guests, MeetingHost, attend, knock};
use crate::rendezvous::{Rendezvous, WorldOptions};
use crate::wire::Purpose;
use crate::{Fault, JoinError};

impl World {
    /// Where newcomers find the world that [`rebuild`](Self::rebuild) makes: the survivor with the lowest rank gathers it.
    pub fn next_meeting_point(&self) -> MeetingPoint {
        let host = (0..self.size()).find(|rank| !self.core.is_gone(*rank)).unwrap_or(self.rank());
        MeetingPoint { address: self.address_of(host), epoch: self.epoch() + 1 }
    }

    /// The same where this rank gathers the others.
    pub fn own_meeting_point(&self) -> MeetingPoint {
        MeetingPoint { address: self.address_of(self.rank()), epoch: self.epoch() + 1 }
    }

    /// What this process needs to come back as a newcomer, once it has left.
    pub fn as_newcomer(&self) -> (Rendezvous, WorldOptions) {
        let Core { secret, options, epoch, .. } = &*self.core;
        let (address, port) = (self.core.meeting.to_string(), 0);
        let rendezvous =
            Rendezvous { rank: u32::MAX, world: 0, address, port, secret: secret.clone(), epoch: *epoch };
        (rendezvous, options.clone())
    }

    fn address_of(&self, rank: u32) -> SocketAddr {
        let member = &self.core.members[rank as usize];
        if rank == self.rank() && member.address.is_none() {
            return SocketAddr::new(self.core.listener.ip(), member.port);
        }
        member.address(self.core.meeting)
    }

    /// Makes the next world with the ranks that are left; all of them call it. Groups and shared memory of this world end
    /// with it.
    pub fn rebuild(self, numbering: Numbering, at_most: Duration) -> Result<World, JoinError> {
        self.rebuild_with(&|_| numbering, at_most)
    }

    /// The same with newcomers as the rank that gathers the others wants them at each moment, which may depend on how many are
    /// left by then. The numbering of the other ranks is not asked for.
    pub fn rebuild_with(
        self,
        numbering: &dyn Fn(Gap) -> Numbering,
        at_most: Duration,
    ) -> Result<World, JoinError> {
        let core = Arc::clone(&self.core);
        // Who is still in a call leaves it.
        self.core.fail(Fault::Rebuilt { rank: core.rank });
        let began = Instant::now();
        let options = WorldOptions { join: at_most, ..core.options.clone() };
        let own = arrival(Some(core.rank), None, core.epoch + 1, core.listener.port(), &options);
        let mut refused = Vec::new();
        let (welcome, meeting) = loop {
            let is_lost = |rank: u32| core.is_gone(rank) || refused.contains(&rank);
            let host =
                (0..self.size()).find(|rank| *rank == core.rank || !is_lost(*rank)).unwrap_or(core.rank);
            if host == core.rank {
                let guests = Guests::Survivors { ranks: self.size(), is_gone: &is_lost, numbering };
                let left = at_most.saturating_sub(began.elapsed());
                let host = MeetingHost {
                    listener: &core.listener,
                    own: own.clone(),
                    guests,
                    options: &options,
                    table: core.table.clone(),
                    at_most: left,
                };
                break (host.gather()?, core.listener.ip());
            }
            let address = self.address_of(host);
            let left = at_most.saturating_sub(began.elapsed());
            match knock(
                address,
                &core.secret,
                &Purpose::Arrive(own.clone()),
                left.min(Duration::from_secs(2)),
            ) {
                Ok(mut stream) => match attend(&mut stream, self.who(host), left, &|| core.is_gone(host)) {
                    Err(JoinError::Connection { .. }) if began.elapsed() < at_most => refused.push(host),
                    other => break (other?, address.ip()),
                },
                // It lives, as far as this rank knows, and is slow. Who gave up on it now would gather others in its place.
                Err(HandshakeError::Io(error))
                    if error.kind() != io::ErrorKind::ConnectionRefused && began.elapsed() < at_most =>
                {
                    thread::sleep(AGAIN);
                }
                // The rank that would gather the others is gone too.
                Err(_) if began.elapsed() < at_most => refused.push(host),
                Err(HandshakeError::Io(source)) => {
                    return Err(JoinError::Connection { who: self.who(host).to_owned(), source });
                }
                Err(_) => return Err(JoinError::WrongSecret { who: self.who(host).to_owned() }),
            }
        };
        let (listener, secret) = (Arc::clone(&core.listener), core.secret.clone());
        drop(self);
        let options = WorldOptions { join: core.options.join, ..options };
        Self::made_again(welcome, meeting, listener, secret, options)
    }
}
