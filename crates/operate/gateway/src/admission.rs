//! Who may have how much at once: slots of requests, bytes of bodies, and turns at reading them.
//!
//! Each is divided by who asks: an API key, or where there is one key or none, an address. Who is alone may have all slots; a quarter more of them, and the
//! last quarter of the bytes, is for those who have less than an equal share. Turns go round. So however much one asks for, another is served.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bedplate_batching::TenantId;
use bedplate_host::FairQueue;
use bedplate_http::{ClientPeer, HeaderMap, Limits, Request, declared};
use tokio::sync::oneshot;

use crate::keys::ApiKeys;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Key(TenantId),
    /// A network in which one customer has all addresses.
    Address(IpAddr),
}

impl Owner {
    /// The client behind a request: its key, or where that tells nobody apart, its address.
    pub(crate) fn of(keys: &ApiKeys, tenant: TenantId, request: &Request) -> Self {
        match request.extensions().get::<ClientPeer>() {
            Some(ClientPeer(address)) if keys.len() < 2 => Self::of_address(*address),
            _ => Owner::Key(tenant),
        }
    }

    fn of_address(address: IpAddr) -> Self {
        Owner::Address(match address {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            address => address,
        })
    }
}

/// A number of things of which everybody may have some.
pub(crate) struct Shares {
    limit: u64,
    /// Kept for those who have less than an equal share.
    kept: u64,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: u64,
    of: BTreeMap<Owner, u64>,
}

/// What was taken; given back when it is dropped.
pub(crate) struct Share {
    shares: Arc<Shares>,
    owner: Owner,
    count: u64,
}

impl Shares {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, kept: limit / 4, taken: Mutex::default() })
    }

    /// Of which one owner may have all: a quarter more is kept for others.
    pub(crate) fn with_room_for_others(most_of_one: u64) -> Arc<Self> {
        let kept = (most_of_one / 4).max(1);
        Arc::new(Self { limit: most_of_one.saturating_add(kept), kept, taken: Mutex::default() })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes some, where there is as much for this owner.
    pub(crate) fn take(self: &Arc<Self>, owner: Owner, count: u64) -> Option<Share> {
        let mut taken = self.taken();
        let own = taken.of.get(&owner).copied().unwrap_or_default();
        let owners = taken.of.len() as u64 + u64::from(own == 0);
        let is_scarce = taken.all + count > self.limit - self.kept;
        // Somebody who comes later is to find something too.
        let has_its_share = own + count > (self.limit / (owners + 1)).max(1);
        if taken.all + count > self.limit || is_scarce && has_its_share {
            return None;
        }
        taken.all += count;
        *taken.of.entry(owner).or_default() += count;
        Some(Share { shares: self.clone(), owner, count })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.shares.taken();
        taken.all -= self.count;
        if let Some(own) = taken.of.get_mut(&self.owner) {
            *own -= self.count;
            if *own == 0 {
                taken.of.remove(&self.owner);
            }
        }
    }
}

/// A body that is smaller is nothing that anybody must wait for.
const SMALL: u64 = 64 << 10;

/// Bytes to be set aside before a body is read: those that it is said to have, or the most that it may.
pub(crate) fn room_for_body(headers: &HeaderMap, limits: &Limits) -> u64 {
    let most = limits.body_bytes as u64;
    let bytes = declared(headers).unwrap_or(most).min(most);
    if bytes <= SMALL { 0 } else { bytes }
}

/// Whether reading a body is much work.
pub(crate) fn is_large(body: &[u8]) -> bool {
    body.len() as u64 > SMALL * 4
}

/// Work of which a few pieces are done at once.
pub(crate) struct ReadingTurns(Mutex<Waiting>);

struct Waiting {
    free: usize,
    waiting: FairQueue<Owner, oneshot::Sender<ReadingTurn>>,
}

/// A piece of work that is done now. It may end on another thread than it began, after those who asked for it have gone.
pub(crate) struct ReadingTurn(Arc<ReadingTurns>);

impl ReadingTurns {
    pub(crate) fn new(at_once: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Waiting { free: at_once.max(1), waiting: FairQueue::default() })))
    }

    fn inner(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn. Who stops waiting has none.
    pub(crate) async fn wait(self: &Arc<Self>, owner: Owner) -> ReadingTurn {
        loop {
            let coming = {
                let mut inner = self.inner();
                if inner.free > 0 {
                    inner.free -= 1;
                    return ReadingTurn(self.clone());
                }
                let (sender, coming) = oneshot::channel();
                inner.waiting.push(owner, sender);
                coming
            };
            // A turn that its giver lost is waited for anew.
            if let Ok(turn) = coming.await {
                return turn;
            }
        }
    }
}

impl Drop for ReadingTurn {
    fn drop(&mut self) {
        let mut inner = self.0.inner();
        inner.free += 1;
        while let Some(waiting) = inner.waiting.pop() {
            if waiting.is_closed() {
                continue;
            }
            inner.free -= 1;
            drop(inner);
            // Dropped here where nobody waits any more, it goes to the next one.
            let _ = waiting.send(ReadingTurn(self.0.clone()));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Owner {
        Owner::Key(TenantId(number))
    }

    #[test]
    fn one_owner_cannot_take_what_others_need() {
        let shares = Shares::new(100);
        let greedy: Vec<Share> = std::iter::from_fn(|| shares.take(key(1), 1)).collect();
        assert_eq!(greedy.len(), 75);
        let others: Vec<Share> = (2..30).filter_map(|number| shares.take(key(number), 1)).collect();
        assert_eq!(others.len(), 25, "everybody else finds a slot until all are taken");
        assert!(shares.take(key(40), 1).is_none());
        drop(others);
        assert!(shares.take(key(1), 1).is_none() && shares.take(key(40), 1).is_some());
        drop(greedy);
        assert!(shares.taken().of.is_empty() && shares.taken().all == 0);
        assert!(shares.take(key(1), 75).is_some() && shares.take(key(1), 101).is_none());
        assert!(Shares::new(1).take(key(1), 1).is_some());
    }

    #[test]
    fn who_is_alone_has_all_slots_and_others_find_more() {
        for (most, more) in [(1, 1), (3, 1), (8, 2), (100, 25)] {
            let slots = Shares::with_room_for_others(most);
            let all = |owner| std::iter::from_fn(|| slots.take(key(owner), 1)).collect::<Vec<Share>>();
            let alone = all(1);
            assert_eq!(alone.len() as u64, most);
            let others: Vec<Share> = (2..100).filter_map(|owner| slots.take(key(owner), 1)).collect();
            assert_eq!(others.len() as u64, more);
            assert!(slots.take(key(1), 1).is_none());
            drop((alone, others));
            assert_eq!(all(2).len() as u64, most, "nothing is kept for who is not there");
        }
    }

    #[test]
    fn addresses_of_one_network_are_one_owner() {
        let of = |text: &str| Owner::of_address(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }

    #[test]
    fn turns_go_round_and_pass_over_those_who_have_gone() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let turns = ReadingTurns::new(1);
            let first = turns.wait(key(1)).await;
            let order = Arc::new(Mutex::new(Vec::new()));
            let wait = |number| {
                let (turns, order) = (turns.clone(), order.clone());
                tokio::spawn(async move {
                    let _turn = turns.wait(key(number)).await;
                    order.lock().unwrap().push(number);
                })
            };
            let mut tasks = Vec::new();
            for number in [1, 1, 1, 2, 3] {
                tasks.push(wait(number));
                tokio::task::yield_now().await;
            }
            tasks.remove(3).abort();
            tokio::task::yield_now().await;
            drop(first);
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(*order.lock().unwrap(), [1, 3, 1, 1]);
            assert_eq!(turns.inner().free, 1);
        });
    }
}
