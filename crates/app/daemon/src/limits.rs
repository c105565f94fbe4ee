//! How much each client has under way and asks for per second.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::options::ApiLimits;

/// Clients that are remembered; the idle ones are forgotten beyond.
const REMEMBERED: usize = 10_000;

/// Who is counted: a token, or an address where none was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Client {
    Token(u64),
    Address(IpAddr),
    /// Wrong tokens from an address.
    Refused(IpAddr),
}

#[derive(Debug)]
pub(crate) struct Clients {
    at_once: u32,
    per_second: f64,
    refusals_per_second: f64,
    known: Mutex<BTreeMap<Client, Account>>,
}

/// A bucket that fills with one second's requests.
#[derive(Debug, Clone, Copy)]
struct Account {
    under_way: u32,
    left: f64,
    at: Instant,
}

impl Account {
    fn take(&mut self, per_second: f64, now: Instant) -> bool {
        let refilled = now.duration_since(self.at).as_secs_f64() * per_second;
        self.left = (self.left + refilled).min(per_second.max(1.0));
        self.at = now;
        let is_there = self.left >= 1.0;
        if is_there {
            self.left -= 1.0;
        }
        is_there
    }
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum TooMany {
    AtOnce(u32),
    PerSecond(f64),
}

impl Clients {
    pub(crate) fn new(limits: &ApiLimits) -> Arc<Self> {
        Arc::new(Self {
            at_once: limits.requests_at_once_per_client,
            per_second: limits.requests_per_second_per_client,
            refusals_per_second: limits.refusals_per_second,
            known: Mutex::default(),
        })
    }

    /// Counts a request until the result is dropped.
    pub(crate) fn enter(self: &Arc<Self>, client: Client, now: Instant) -> Result<UnderWay, TooMany> {
        let mut known = self.known();
        if known.len() > REMEMBERED {
            known.retain(|_, account| account.under_way > 0 || now.duration_since(account.at).as_secs() < 60);
        }
        let per_second = match client {
            Client::Refused(_) => self.refusals_per_second,
            Client::Token(_) | Client::Address(_) => self.per_second,
        };
        let full = Account { under_way: 0, left: per_second.max(1.0), at: now };
        let account = known.entry(client).or_insert(full);
        if account.under_way >= self.at_once {
            return Err(TooMany::AtOnce(self.at_once));
        }
        if !account.take(per_second, now) {
            return Err(TooMany::PerSecond(per_second));
        }
        account.under_way += 1;
        drop(known);
        Ok(UnderWay { clients: self.clone(), client })
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Client, Account>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that counts.
#[derive(Debug)]
pub(crate) struct UnderWay {
    clients: Arc<Clients>,
    client: Client,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(account) = self.clients.known().get_mut(&self.client) {
            account.under_way -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_client_has_so_many_at_once_and_so_many_a_second() {
        let limits = ApiLimits {
            requests_at_once_per_client: 2,
            requests_per_second_per_client: 4.0,
            ..ApiLimits::default()
        };
        let clients = Clients::new(&limits);
        let start = Instant::now();
        let enter =
            |client, after_ms| clients.enter(client, start + Duration::from_millis(after_ms)).map(drop);
        let held: Vec<_> = (0..2).map(|_| clients.enter(Client::Token(1), start)).collect();
        assert_eq!(enter(Client::Token(1), 0), Err(TooMany::AtOnce(2)));
        assert_eq!(enter(Client::Token(2), 0), Ok(()), "another client is not concerned");
        drop(held);
        assert_eq!(enter(Client::Token(1), 0), Ok(()));
        assert_eq!(enter(Client::Token(1), 0), Ok(()));
        assert_eq!(enter(Client::Token(1), 0), Err(TooMany::PerSecond(4.0)));
        assert_eq!(enter(Client::Token(1), 250), Ok(()), "a quarter of a second is worth one");
        assert_eq!(enter(Client::Token(1), 250), Err(TooMany::PerSecond(4.0)));
    }
}
