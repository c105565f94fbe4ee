//! What all groups of a world share on one rank.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use nix::sys::eventfd::EventFd;

use crate::Fault;
use crate::choice::AlgorithmTable;
use crate::handshake::Secret;
use crate::links::{LinkState, RankLink};
use crate::listener::Listener;
use crate::recorder::{self, Recorder};
use crate::rendezvous::WorldOptions;
use crate::shared::windows::MemoryWindows;
use crate::watch::FaultWatch;
use crate::wire::{Message, RankMember};

pub(crate) struct Core {
    pub(crate) rank: u32,
    pub(crate) epoch: u64,
    /// Known to members alone.
    pub(crate) id: String,
    pub(crate) members: Vec<RankMember>,
    /// Where this rank met the others.
    pub(crate) meeting: IpAddr,
    pub(crate) secret: Secret,
    pub(crate) options: WorldOptions,
    pub(crate) table: AlgorithmTable,
    pub(crate) listener: Arc<Listener>,
    /// None for this rank itself.
    pub(crate) links: Vec<Option<RankLink>>,
    pub(crate) watch: FaultWatch,
    pub(crate) windows: Arc<MemoryWindows>,
    pub(crate) recorder: Recorder,
    pub(crate) segments: Mutex<Vec<SegmentSent>>,
    pub(crate) segment_came: Condvar,
    pub(crate) is_closing: AtomicBool,
    pub(crate) wake: EventFd,
    /// How many ranks have left in good order, and when each did.
    pub(crate) left: AtomicU32,
    pub(crate) left_at: Mutex<BTreeMap<u32, Instant>>,
}

/// A shared segment that a peer made for a group.
pub(crate) struct SegmentSent {
    pub(crate) group: String,
    pub(crate) members: u32,
    pub(crate) descriptor: OwnedFd,
}

/// What a rank sent before it left may still be on its way; after this, with nothing coming, it is not.
pub(crate) const FAREWELL: Duration = Duration::from_millis(500);

impl Core {
    /// Makes a fault known here and to all ranks; returns the first one that is known here.
    pub(crate) fn fail(&self, fault: Fault) -> Fault {
        if self.watch.raise(fault.clone()) {
            self.tell_all(&Message::Fault(fault.clone()));
        }
        self.watch.fault().unwrap_or(fault)
    }

    pub(crate) fn tell_all(&self, message: &Message) {
        for link in self.links.iter().flatten().filter(|link| link.state() == LinkState::Alive) {
            // A peer that cannot be told finds out by itself.
            let _ = link.send(message, None);
        }
    }

    /// Tells some of the ranks.
    pub(crate) fn tell(&self, ranks: &[u32], message: &Message) {
        let links = ranks.iter().filter_map(|rank| self.links[*rank as usize].as_ref());
        for link in links.filter(|link| link.state() == LinkState::Alive) {
            let _ = link.send(message, None);
        }
    }

    /// Sends a message with a descriptor to all ranks of this host, also when one of them cannot be told.
    pub(crate) fn tell_host(
        &self,
        message: &Message,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> std::io::Result<()> {
        let local =
            self.links.iter().flatten().filter(|link| link.is_local() && link.state() == LinkState::Alive);
        let outcomes: Vec<std::io::Result<()>> = local.map(|link| link.send(message, descriptor)).collect();
        outcomes.into_iter().collect()
    }

    /// The fault that explains why a connection has ended; it may still be on its way to this rank.
    pub(crate) fn explained(&self) -> Option<Fault> {
        for _ in 0..20 {
            if let Some(fault) = self.watch.fault() {
                return Some(fault);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.watch.fault()
    }

    pub(crate) fn is_gone(&self, rank: u32) -> bool {
        self.links[rank as usize].as_ref().is_some_and(|link| link.state() != LinkState::Alive)
    }

    pub(crate) fn note_left(&self, rank: u32) {
        if let Some(link) = &self.links[rank as usize] {
            link.set_state(LinkState::Left);
        }
        let mut left_at = self.left_at.lock().expect("no holder of this lock panics");
        left_at.entry(rank).or_insert_with(Instant::now);
        self.left.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn has_leavers(&self) -> bool {
        self.left.load(Ordering::Acquire) > 0
    }

    /// A fault when one of the ranks that are waited for has left for good.
    pub(crate) fn check_left(&self, awaited: &[u32]) -> Result<(), Fault> {
        if !self.has_leavers() {
            return Ok(());
        }
        let left_at = self.left_at.lock().expect("no holder of this lock panics");
        let has_left = |rank: &&u32| left_at.get(*rank).is_some_and(|since| since.elapsed() > FAREWELL);
        match awaited.iter().find(has_left) {
            Some(rank) => Err(Fault::Lost { rank: *rank, why: "it has left the world".to_owned() }),
            None => Ok(()),
        }
    }

    pub(crate) fn write_flight(&self) {
        let Some(folder) = &self.options.flight else { return };
        let world = self.members.len() as u32;
        let record = self.recorder.record(self.rank, world, self.epoch, self.watch.fault());
        // A record that cannot be written must not disturb the run.
        let _ = recorder::write(&record, folder);
    }
}
