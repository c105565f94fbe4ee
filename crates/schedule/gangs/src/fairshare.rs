//! Who has had more than their share: accounts as a tree, usage that fades, and the Fair Tree ranking.
//!
//! Siblings are compared by shares over usage, each as a fraction of the siblings' total (Slurm's
//! `Level_FS`); the tree is walked from the best off to the worst, and a user's factor is their place in
//! that walk. So no user of an account that overdrew can stand before one of an account that did not.

use std::collections::BTreeMap;

use crate::{AccountId, Span, Time, UserId};

/// The tree of accounts. The root always exists and is the default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accounts {
    accounts: Vec<Account>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Account {
    name: String,
    /// Smaller than the account's own number; the root's is its own.
    parent: u32,
    shares: u32,
}

impl Default for Accounts {
    fn default() -> Self {
        Self { accounts: vec![Account { name: "root".into(), parent: 0, shares: 1 }] }
    }
}

impl Accounts {
    pub const ROOT: AccountId = AccountId(0);

    /// Adds an account below another. Shares count among the children of the same parent.
    pub fn add(&mut self, name: impl Into<String>, parent: AccountId, shares: u32) -> AccountId {
        let id = AccountId(self.accounts.len() as u32);
        assert!(parent < id, "the parent account exists");
        self.accounts.push(Account { name: name.into(), parent: parent.0, shares: shares.max(1) });
        id
    }

    pub fn find(&self, name: &str) -> Option<AccountId> {
        self.accounts.iter().position(|account| account.name == name).map(|at| AccountId(at as u32))
    }

    pub fn name(&self, id: AccountId) -> &str {
        &self.accounts[id.0 as usize].name
    }

    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.accounts.iter().map(|account| account.name.as_str())
    }

    pub(crate) fn holds(&self, id: AccountId) -> bool {
        (id.0 as usize) < self.accounts.len()
    }
}

/// GPU time used, by account and user: exactly, and with a half-life.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Usage {
    entries: BTreeMap<(AccountId, UserId), Entry>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Entry {
    gpu_ms: u128,
    faded: f64,
    at: Time,
}

impl Entry {
    fn faded_at(&self, now: Time, half_life: Span) -> f64 {
        if half_life >= Span::FOREVER {
            return self.faded;
        }
        self.faded * 0.5_f64.powf(now.since(self.at).0 as f64 / half_life.0.max(1) as f64)
    }
}

impl Usage {
    /// Books GPU time that ended at `now`.
    pub fn add(&mut self, account: AccountId, user: UserId, gpu_ms: u128, now: Time, half_life: Span) {
        let entry = self.entries.entry((account, user)).or_default();
        entry.faded = entry.faded_at(now, half_life) + gpu_ms as f64;
        entry.gpu_ms += gpu_ms;
        entry.at = now;
    }

    /// GPU milliseconds of one user of an account, not faded.
    pub fn of(&self, account: AccountId, user: UserId) -> u128 {
        self.entries.get(&(account, user)).map_or(0, |entry| entry.gpu_ms)
    }

    /// GPU milliseconds of all users, not faded.
    pub fn total(&self) -> u128 {
        self.entries.values().map(|entry| entry.gpu_ms).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = (AccountId, UserId, u128)> {
        self.entries.iter().map(|((account, user), entry)| (*account, *user, entry.gpu_ms))
    }

    /// All there is, to be kept and restored.
    pub fn records(&self) -> impl Iterator<Item = UsageRecord> {
        self.entries.keys().filter_map(|(account, user)| self.record(*account, *user))
    }

    /// What there is of one user of an account.
    pub fn record(&self, account: AccountId, user: UserId) -> Option<UsageRecord> {
        let Entry { gpu_ms, faded, at } = *self.entries.get(&(account, user))?;
        Some(UsageRecord { account, user, gpu_ms, faded, at })
    }

    /// Adds what was used before. What was recorded is restored to the last bit where nothing has been booked yet.
    pub fn restore(&mut self, record: UsageRecord, half_life: Span) {
        let before = Entry { gpu_ms: record.gpu_ms, faded: record.faded, at: record.at };
        let entry = self
            .entries
            .entry((record.account, record.user))
            .or_insert(Entry { at: before.at, ..Entry::default() });
        let at = entry.at.max(before.at);
        entry.faded = entry.faded_at(at, half_life) + before.faded_at(at, half_life);
        entry.gpu_ms += before.gpu_ms;
        entry.at = at;
    }
}

/// GPU time of one user of an account, up to a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UsageRecord {
    pub account: AccountId,
    pub user: UserId,
    /// GPU milliseconds.
    pub gpu_ms: u128,
    /// What was left of them at that time, after their half-life.
    pub faded: f64,
    pub at: Time,
}

/// The fair-share factor of every user of every account, between 0 and 1.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FairShares {
    factors: BTreeMap<(AccountId, UserId), f64>,
}

impl FairShares {
    /// A user who never ran anything and is not in the ledger has the whole factor.
    pub fn factor(&self, account: AccountId, user: UserId) -> f64 {
        self.factors.get(&(account, user)).copied().unwrap_or(1.0)
    }

    /// Ranks the users that are in the ledger or among `waiting`.
    pub fn rank(
        accounts: &Accounts,
        usage: &Usage,
        waiting: impl Iterator<Item = (AccountId, UserId)>,
        now: Time,
        half_life: Span,
    ) -> Self {
        let mut leaves: BTreeMap<(AccountId, UserId), f64> =
            usage.entries.iter().map(|(key, entry)| (*key, entry.faded_at(now, half_life))).collect();
        for key in waiting {
            leaves.entry(key).or_insert(0.0);
        }
        let tree = Tree::new(accounts, &leaves);
        let mut walk = Vec::with_capacity(leaves.len());
        tree.walk(&[0], &mut walk);
        Self { factors: factors_of(&walk) }
    }
}

/// Place in the walk over number of users; users of the same group share the best place of the group.
fn factors_of(walk: &[Ranked]) -> BTreeMap<(AccountId, UserId), f64> {
    let users = walk.len() as f64;
    let mut factors = BTreeMap::new();
    let mut rank = walk.len();
    for (index, ranked) in walk.iter().enumerate() {
        if index == 0 || walk[index - 1].group != ranked.group {
            rank = walk.len() - index;
        }
        factors.insert(ranked.user, rank as f64 / users);
    }
    factors
}

/// A user with the number of the group of equals it came in.
struct Ranked {
    user: (AccountId, UserId),
    group: usize,
}

struct Tree<'a> {
    accounts: &'a Accounts,
    /// Usage of the account with everything below it.
    used: Vec<f64>,
    children: Vec<Vec<Child>>,
}

#[derive(Clone, Copy)]
enum Child {
    Account(u32),
    User(UserId, f64),
}

impl<'a> Tree<'a> {
    fn new(accounts: &'a Accounts, leaves: &BTreeMap<(AccountId, UserId), f64>) -> Self {
        let count = accounts.accounts.len();
        let (mut used, mut children) = (vec![0.0; count], vec![Vec::new(); count]);
        for ((account, user), usage) in leaves {
            used[account.0 as usize] += usage;
            children[account.0 as usize].push(Child::User(*user, *usage));
        }
        for index in (1..count).rev() {
            let parent = accounts.accounts[index].parent as usize;
            used[parent] += used[index];
            children[parent].push(Child::Account(index as u32));
        }
        Self { accounts, used, children }
    }

    fn shares(&self, child: Child) -> f64 {
        match child {
            Child::Account(account) => f64::from(self.accounts.accounts[account as usize].shares),
            Child::User(..) => 1.0,
        }
    }

    fn usage(&self, child: Child) -> f64 {
        match child {
            Child::Account(account) => self.used[account as usize],
            Child::User(_, usage) => usage,
        }
    }

    /// Shares over usage, each as a fraction of all siblings together.
    fn level(&self, account: u32, child: Child) -> f64 {
        let siblings = &self.children[account as usize];
        let shares: f64 = siblings.iter().map(|sibling| self.shares(*sibling)).sum();
        let own = self.usage(child) / self.used[account as usize].max(f64::MIN_POSITIVE);
        if own > 0.0 { self.shares(child) / shares / own } else { f64::INFINITY }
    }

    /// Appends the users below these accounts, the best off first. Accounts that tie are walked as one,
    /// and so are not set against each other by their names.
    fn walk(&self, accounts: &[u32], walk: &mut Vec<Ranked>) {
        let children_of = |account: &u32| {
            let account = *account;
            self.children[account as usize].iter().map(move |child| (account, *child))
        };
        let mut order: Vec<(f64, u32, Child)> = accounts
            .iter()
            .flat_map(children_of)
            .map(|(account, child)| (self.level(account, child), account, child))
            .collect();
        order.sort_by(|a, b| b.0.total_cmp(&a.0));
        for equals in order.chunk_by(|a, b| a.0 == b.0) {
            let group = walk.len();
            let mut below = Vec::new();
            for (_, account, child) in equals {
                match child {
                    Child::Account(id) => below.push(*id),
                    Child::User(user, _) => walk.push(Ranked { user: (AccountId(*account), *user), group }),
                }
            }
            if !below.is_empty() {
                self.walk(&below, walk);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Span = Span::days(1);

    fn key(account: AccountId, user: u32) -> (AccountId, UserId) {
        (account, UserId(user))
    }

    #[test]
    fn no_user_of_an_overdrawn_account_passes_one_of_a_thrifty_account() {
        let mut accounts = Accounts::default();
        let rich = accounts.add("rich", Accounts::ROOT, 1);
        let poor = accounts.add("poor", Accounts::ROOT, 1);
        let mut usage = Usage::default();
        usage.add(rich, UserId(1), 900, Time::ZERO, DAY);
        usage.add(rich, UserId(2), 1, Time::ZERO, DAY);
        usage.add(poor, UserId(3), 300, Time::ZERO, DAY);
        usage.add(poor, UserId(4), 90, Time::ZERO, DAY);
        let ranks = FairShares::rank(&accounts, &usage, std::iter::empty(), Time::ZERO, DAY);
        let factor = |account, user| ranks.factor(account, UserId(user));
        assert_eq!(factor(poor, 4), 1.0);
        assert_eq!(factor(poor, 3), 0.75);
        assert_eq!(factor(rich, 2), 0.5);
        assert_eq!(factor(rich, 1), 0.25);
    }

    #[test]
    fn shares_weigh_usage() {
        let mut accounts = Accounts::default();
        let small = accounts.add("small", Accounts::ROOT, 10);
        let large = accounts.add("large", Accounts::ROOT, 30);
        let mut usage = Usage::default();
        usage.add(small, UserId(1), 200, Time::ZERO, DAY);
        usage.add(large, UserId(2), 500, Time::ZERO, DAY);
        let ranks = FairShares::rank(&accounts, &usage, std::iter::empty(), Time::ZERO, DAY);
        assert!(ranks.factor(large, UserId(2)) > ranks.factor(small, UserId(1)));
    }

    #[test]
    fn equals_share_a_rank() {
        let accounts = Accounts::default();
        let waiting = [key(Accounts::ROOT, 1), key(Accounts::ROOT, 2)];
        let ranks = FairShares::rank(&accounts, &Usage::default(), waiting.into_iter(), Time::ZERO, DAY);
        assert_eq!(ranks.factor(Accounts::ROOT, UserId(1)), 1.0);
        assert_eq!(ranks.factor(Accounts::ROOT, UserId(2)), 1.0);
    }

    #[test]
    fn usage_counts_half_after_a_half_life_and_the_ledger_stays_exact() {
        let mut usage = Usage::default();
        usage.add(Accounts::ROOT, UserId(1), 1000, Time::ZERO, DAY);
        usage.add(Accounts::ROOT, UserId(1), 100, Time::ZERO + DAY, DAY);
        let entry = usage.entries[&key(Accounts::ROOT, 1)];
        assert!((entry.faded - 600.0).abs() < 1e-9);
        assert_eq!(usage.total(), 1100);
    }
}
