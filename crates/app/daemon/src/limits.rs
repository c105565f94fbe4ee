//! How much each user has under way, asks for and costs per second.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::options::ApiLimits;

/// Clients that are remembered; the idle ones are forgotten beyond.
const REMEMBERED: usize = 10_000;

/// Who is counted: a user, however many tokens they have, or an address where no token was shown.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Client {
    User(Arc<str>),
    /// Agents have one user between them.
    Agent(u64),
    Address(IpAddr),
    /// Wrong tokens from an address.
    Refused(IpAddr),
}

#[derive(Debug)]
pub(crate) struct Clients {
    at_once: u32,
    per_second: f64,
    refusals_per_second: f64,
    jobs_per_second: f64,
    most_jobs: f64,
    known: Mutex<BTreeMap<Client, Account>>,
}

/// Buckets that fill with one second's requests, and with the jobs that these may touch.
#[derive(Debug, Clone, Copy)]
struct Account {
    under_way: u32,
    left: f64,
    at: Instant,
    /// Below zero where more has been touched than was left.
    jobs: f64,
    paid: Instant,
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

    /// Takes `jobs`, and says how long until what was taken before is there again.
    fn pay(&mut self, jobs: f64, per_second: f64, most: f64, now: Instant) -> Duration {
        let refilled = now.saturating_duration_since(self.paid).as_secs_f64() * per_second;
        self.jobs = (self.jobs + refilled).min(most);
        self.paid = now;
        let debt = (-self.jobs).max(0.0);
        self.jobs -= jobs;
        Duration::from_secs_f64(debt / per_second)
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
            jobs_per_second: limits.jobs_per_second_per_user.max(1.0),
            most_jobs: limits.jobs_per_second_per_user.max(limits.array_tasks as f64),
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
            Client::User(_) | Client::Agent(_) | Client::Address(_) => self.per_second,
        };
        let left = per_second.max(1.0);
        let full = Account { under_way: 0, left, at: now, jobs: self.most_jobs, paid: now };
        let account = known.entry(client.clone()).or_insert(full);
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

    /// What a request of a user touches is on their account; says how long the request has to wait for its turn.
    pub(crate) fn pay(&self, user: &str, jobs: usize, now: Instant) -> Duration {
        let mut known = self.known();
        let account = known.get_mut(&Client::User(user.into()));
        account.map_or(Duration::ZERO, |account| {
            account.pay(jobs as f64, self.jobs_per_second, self.most_jobs, now)
        })
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
        let (ada, bob) = (|| Client::User("ada".into()), Client::User("bob".into()));
        let held: Vec<_> = (0..2).map(|_| clients.enter(ada(), start)).collect();
        assert_eq!(enter(ada(), 0), Err(TooMany::AtOnce(2)));
        assert_eq!(enter(bob, 0), Ok(()), "another client is not concerned");
        drop(held);
        assert_eq!(enter(ada(), 0), Ok(()));
        assert_eq!(enter(ada(), 0), Ok(()));
        assert_eq!(enter(ada(), 0), Err(TooMany::PerSecond(4.0)));
        assert_eq!(enter(ada(), 250), Ok(()), "a quarter of a second is worth one");
        assert_eq!(enter(ada(), 250), Err(TooMany::PerSecond(4.0)));
    }

    #[test]
    fn who_touches_many_jobs_waits_and_others_do_not() {
        let limits =
            ApiLimits { jobs_per_second_per_user: 100.0, array_tasks: 1_000, ..ApiLimits::default() };
        let clients = Clients::new(&limits);
        let start = Instant::now();
        let _held: Vec<_> = ["ada", "bob"].map(|user| clients.enter(Client::User(user.into()), start)).into();
        let pay = |user, jobs, after| clients.pay(user, jobs, start + Duration::from_secs(after));
        assert_eq!(pay("ada", 1_000, 0), Duration::ZERO, "an array of the largest size");
        assert_eq!(pay("ada", 1_000, 0), Duration::ZERO);
        assert_eq!(pay("ada", 10, 0), Duration::from_secs(10));
        assert_eq!(pay("bob", 10, 0), Duration::ZERO);
        assert_eq!(pay("ada", 10, 20), Duration::ZERO);
    }
}
