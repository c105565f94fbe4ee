//! Who may do what: tokens with a user and a role.
//!
//! Only the SHA-256 of a secret is kept. An agent's token works once: the first node that joins with it makes it its
//! own. What stays valid for that node's later links is the secret together with the node's name, so that a
//! token that leaks afterwards lets nobody join as another node.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use bedplate_gangs::{Span, Time};
use bedplate_journal::{JournalError, NewToken, Reader, Token, TokenHash, Writer};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::clock::Clock;

/// Every secret begins with it, so that scanners find those that leak.
const PREFIX: &str = "bp_";

/// Ordered: each role may do everything that the ones before it may. An agent may only join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AccessRole {
    Agent,
    Reader,
    User,
    Operator,
    Admin,
}

impl AccessRole {
    pub(crate) const ALL: [AccessRole; 5] =
        [AccessRole::Agent, AccessRole::Reader, AccessRole::User, AccessRole::Operator, AccessRole::Admin];

    pub(crate) fn name(self) -> &'static str {
        match self {
            AccessRole::Agent => "agent",
            AccessRole::Reader => "reader",
            AccessRole::User => "user",
            AccessRole::Operator => "operator",
            AccessRole::Admin => "admin",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Whether this role is enough where `needed` is asked for.
    pub(crate) fn may(self, needed: AccessRole) -> bool {
        match needed {
            AccessRole::Agent => self == AccessRole::Agent,
            _ => self >= needed,
        }
    }
}

/// Who speaks.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) token: u64,
    pub(crate) user: String,
    pub(crate) role: AccessRole,
    hash: TokenHash,
}

impl Identity {
    /// Whether they may touch what belongs to `owner`.
    pub(crate) fn owns(&self, owner: &str) -> bool {
        self.role >= AccessRole::Operator || (self.role == AccessRole::User && self.user == owner)
    }
}

/// A secret that was just made; it is shown once.
pub(crate) struct Made {
    pub(crate) id: u64,
    pub(crate) secret: String,
}

/// What a new token is for.
#[derive(Debug, Clone)]
pub(crate) struct WantedToken {
    pub(crate) user: String,
    pub(crate) role: AccessRole,
    pub(crate) label: String,
    pub(crate) expires: Option<Span>,
}

pub(crate) struct TokenStore {
    known: RwLock<BTreeMap<TokenHash, Token>>,
    writer: Arc<Writer>,
    clock: Arc<Clock>,
    /// Told of every revocation.
    revoked: watch::Sender<()>,
}

impl TokenStore {
    pub(crate) fn load(
        reader: &Reader,
        writer: Arc<Writer>,
        clock: Arc<Clock>,
    ) -> Result<Self, JournalError> {
        let tokens = reader.tokens()?;
        // A clock that was set back since must not give them a longer life.
        let latest = tokens.iter().flat_map(|token| [Some(token.token.created), token.used]).flatten().max();
        clock.go_on_from(latest.unwrap_or_default());
        let known = tokens.into_iter().map(|token| (token.token.hash, token)).collect();
        Ok(Self { known: RwLock::new(known), writer, clock, revoked: watch::Sender::new(()) })
    }

    /// Whose secret it is. A join token that was used is known too: its node may come back.
    pub(crate) fn identify(&self, secret: &str) -> Option<Identity> {
        if !secret.starts_with(PREFIX) {
            return None;
        }
        let hash = hash(secret.as_bytes());
        let known = self.known();
        let token = known.get(&hash).filter(|token| is_equal(&token.token.hash, &hash))?;
        let role = AccessRole::named(&token.token.role)?;
        let is_spent_join = role == AccessRole::Agent && token.used.is_some();
        (is_spent_join || token.is_valid(self.clock.now())).then(|| Identity {
            token: token.id,
            user: token.token.user.clone(),
            role,
            hash,
        })
    }

    pub(crate) fn list(&self) -> Vec<Token> {
        let mut tokens: Vec<Token> = self.known().values().cloned().collect();
        tokens.sort_by_key(|token| token.id);
        tokens
    }

    pub(crate) async fn make(self: &Arc<Self>, wanted: WantedToken) -> Result<Made, JournalError> {
        let tokens = self.clone();
        blocking(move || tokens.make_now(wanted)).await
    }

    pub(crate) fn make_now(&self, wanted: WantedToken) -> Result<Made, JournalError> {
        let secret = new_secret();
        let now = self.clock.now();
        let token = NewToken {
            hash: hash(secret.as_bytes()),
            role: wanted.role.name().into(),
            user: wanted.user,
            label: wanted.label,
            created: now,
            expires: wanted.expires.map(|span| now + span),
            is_one_time: wanted.role == AccessRole::Agent,
        };
        let id = self.add(token)?;
        Ok(Made { id, secret })
    }

    fn add(&self, token: NewToken) -> Result<u64, JournalError> {
        let kept = token.clone();
        let id = self.writer.perform(move |journal| journal.add_token(&token))??;
        self.known_mut().insert(kept.hash, Token { id, token: kept, used: None });
        Ok(id)
    }

    /// Without it nobody could make another one.
    pub(crate) fn is_last_admin(&self, id: u64) -> bool {
        let (known, now) = (self.known(), self.clock.now());
        let is_admin = |token: &&Token| token.token.role == AccessRole::Admin.name() && token.is_valid(now);
        let mut admins = known.values().filter(is_admin);
        admins.next().is_some_and(|first| first.id == id) && admins.next().is_none()
    }

    /// Whether there was such a token.
    pub(crate) async fn revoke(self: &Arc<Self>, id: u64) -> Result<bool, JournalError> {
        let tokens = self.clone();
        blocking(move || {
            let was_there = tokens.writer.perform(move |journal| journal.revoke_token(id))??;
            tokens.known_mut().retain(|_, token| token.id != id);
            tokens.revoked.send_replace(());
            Ok(was_there)
        })
        .await
    }

    /// Waits until what this token opened must end: it was revoked, or has expired.
    pub(crate) async fn lapses(&self, identity: &Identity) {
        self.while_so(|| self.is_valid(&identity.hash)).await;
    }

    /// The same for the link of a node that was admitted with this token: it needs the token, though that is spent, and
    /// what it was given for it.
    pub(crate) async fn node_lapses(&self, identity: &Identity, node: &str) {
        let own = node_hash(&identity.hash, node);
        self.while_so(|| self.known().contains_key(&identity.hash) && self.is_valid(&own)).await;
    }

    fn is_valid(&self, hash: &TokenHash) -> bool {
        self.known().get(hash).is_some_and(|token| token.is_valid(self.clock.now()))
    }

    async fn while_so(&self, is_so: impl Fn() -> bool) {
        // Expiry follows the wall clock, which may be set; so it is looked at again now and then.
        const LOOK: Duration = Duration::from_secs(5);
        let mut revoked = self.revoked.subscribe();
        while is_so() {
            // The sender is in this very value.
            let _ = timeout(LOOK, revoked.changed()).await;
        }
    }

    /// Lets a node in, or says why not. A token that names a node is for that node alone.
    pub(crate) async fn admit_node(&self, identity: &Identity, node: &str) -> Result<(), String> {
        let own = node_hash(&identity.hash, node);
        if self.known().get(&own).is_some_and(|token| token.is_valid(self.clock.now())) {
            return Ok(());
        }
        if !identity.user.is_empty() && identity.user != node {
            return Err(format!("the token is for node `{}`", identity.user));
        }
        let (id, now) = (identity.token, self.clock.now());
        let writer = self.writer.clone();
        let redeemed = blocking(move || writer.perform(move |journal| journal.redeem_token(id, now))?).await;
        if !redeemed.map_err(|error| error.to_string())? {
            return Err("the token has been used by another node, or has expired".into());
        }
        self.spend(&identity.hash, now);
        let credential = NewToken {
            hash: own,
            role: AccessRole::Agent.name().into(),
            user: node.to_owned(),
            label: format!("node {node}"),
            created: now,
            expires: None,
            is_one_time: false,
        };
        let kept = credential.clone();
        let writer = self.writer.clone();
        let added = blocking(move || writer.perform(move |journal| journal.add_token(&credential))?).await;
        let id = added.map_err(|error| error.to_string())?;
        self.known_mut().insert(own, Token { id, token: kept, used: None });
        Ok(())
    }

    fn spend(&self, hash: &TokenHash, now: Time) {
        if let Some(token) = self.known_mut().get_mut(hash) {
            token.used = Some(now);
        }
    }

    fn known(&self) -> RwLockReadGuard<'_, BTreeMap<TokenHash, Token>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<TokenHash, Token>> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, JournalError> + Send + 'static,
) -> Result<T, JournalError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(JournalError::Stopped))
}

/// Tokens are found by their hash; comparing it once more takes the same time whatever differs.
fn is_equal(left: &TokenHash, right: &TokenHash) -> bool {
    left.iter().zip(right).fold(0, |difference, (left, right)| difference | (left ^ right)) == 0
}

pub(crate) fn hash(bytes: &[u8]) -> TokenHash {
    digest(&SHA256, bytes).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// What a node is known by once it has joined: from what was kept of the secret, and the node's name.
fn node_hash(token: &TokenHash, node: &str) -> TokenHash {
    hash(&[&token[..], b"/", node.as_bytes()].concat())
}

fn new_secret() -> String {
    format!("{PREFIX}{}", hexadecimal(&random_bytes::<32>()))
}

pub(crate) fn random_bytes<const COUNT: usize>() -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    SystemRandom::new().fill(&mut bytes).expect("the system gives random bytes");
    bytes
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_ordered_and_agents_stand_apart() {
        let may = |role: AccessRole| -> Vec<&str> {
            AccessRole::ALL.into_iter().filter(|needed| role.may(*needed)).map(AccessRole::name).collect()
        };
        assert_eq!(may(AccessRole::Agent), ["agent"]);
        assert_eq!(may(AccessRole::Reader), ["reader"]);
        assert_eq!(may(AccessRole::User), ["reader", "user"]);
        assert_eq!(may(AccessRole::Operator), ["reader", "user", "operator"]);
        assert_eq!(may(AccessRole::Admin), ["reader", "user", "operator", "admin"]);
        for role in AccessRole::ALL {
            assert_eq!(AccessRole::named(role.name()), Some(role));
        }
    }

    /// Tokens as they are after a start, where the daemon's clock has come this far.
    fn started(path: &std::path::Path, at: Option<Time>) -> TokenStore {
        let writer = Arc::new(Writer::start(bedplate_journal::Journal::open(path).unwrap()).unwrap());
        let clock = Arc::new(Clock::start());
        at.into_iter().for_each(|at| clock.go_on_from(at));
        TokenStore::load(&Reader::open(path).unwrap(), writer, clock).unwrap()
    }

    #[test]
    fn a_clock_that_jumps_gives_no_token_a_longer_life() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.sqlite");
        let wanted = |seconds| WantedToken {
            role: AccessRole::User,
            user: "ada".into(),
            label: String::new(),
            expires: Some(Span::seconds(seconds)),
        };
        let tomorrow = Clock::start().now() + Span::hours(24);
        // The wall clock was a day fast when they were made, and right when the daemon starts again.
        let store = started(&path, Some(tomorrow));
        let [short, long] = [0, 3_600].map(|seconds| store.make_now(wanted(seconds)).unwrap().secret);
        assert!(store.identify(&short).is_none() && store.identify(&long).is_some());
        drop(store);
        let store = started(&path, None);
        assert!(store.clock.now() >= tomorrow);
        assert!(store.identify(&short).is_none(), "it has not come back");
        assert!(store.identify(&long).is_some());
        drop(store);
        let later = started(&path, Some(tomorrow + Span::hours(2)));
        assert!(later.identify(&long).is_none());
        drop(later);
    }

    #[test]
    fn secrets_differ_and_the_hash_is_that_of_the_standard() {
        assert_ne!(new_secret(), new_secret());
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(hexadecimal(&hash(b"")), empty);
    }
}
