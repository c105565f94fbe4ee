//! One replica: whether it is in service, what it probably has cached, and what it was given to do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bedplate_batching::{Load, PrefixMirror, ReplicaCandidate, RouteReason};
use bedplate_http::client::ClientError;
use bedplate_record::Counter;
use serde_json::Value;
use tokio::sync::watch;

use super::asked::{AskedRequest, BLOCK_TOKENS};

use super::url::ReplicaUrl;

/// Whether a replica gets requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaHealth {
    /// It has not passed a check yet.
    Starting,
    In,
    /// It failed too often; it is back after a check that it passes.
    Out,
    /// It gets no more requests and finishes those that it has.
    Retired,
}

impl ReplicaHealth {
    pub(super) fn name(self) -> &'static str {
        match self {
            ReplicaHealth::Starting => "starting",
            ReplicaHealth::In => "in",
            ReplicaHealth::Out => "out",
            ReplicaHealth::Retired => "retired",
        }
    }
}

pub(super) struct RouterMember {
    pub(super) url: ReplicaUrl,
    replica_health: watch::Sender<ReplicaHealth>,
    /// It is out and answers nothing at all: what it was given will not come either. One that refuses connections may be finishing.
    is_silent: watch::Sender<bool>,
    inner: Mutex<Inner>,
    most_failures: u32,
    pub(super) counts: MemberCounts,
}

#[derive(Default)]
pub(super) struct MemberCounts {
    pub(super) requests: Counter,
    /// Attempts that ended without a whole answer.
    pub(super) failures: Counter,
    /// Attempts that it refused or lost before an answer began.
    pub(super) given_up: Counter,
    pub(super) failed_checks: Counter,
}

struct Inner {
    load: Load,
    mirror: PrefixMirror,
    /// Blocks that the replica can remember.
    blocks: u32,
    failures: u32,
    /// Entries of its list of models; none where it does not tell.
    models: Option<Vec<Value>>,
    reasons: BTreeMap<&'static str, u64>,
    work: Work,
}

/// Whether what it was given gets anywhere: a replica may pass its checks and compute nothing.
struct Work {
    /// Requests that it has.
    trips: u32,
    /// When any of them last went on, or the first of them came.
    went_on: Instant,
    /// Tokens that it says to have computed.
    tokens: Option<f64>,
    /// It computed nothing for too long, and has not answered a request since.
    is_hung: bool,
}

impl RouterMember {
    pub(super) fn new(url: ReplicaUrl, remembered_tokens: u32, most_failures: u32) -> Self {
        let blocks = remembered_tokens / BLOCK_TOKENS;
        let inner = Inner {
            load: Load::default(),
            mirror: PrefixMirror::new(blocks),
            blocks,
            failures: 0,
            models: None,
            reasons: REASONS.iter().map(|reason| (*reason, 0)).collect(),
            work: Work { trips: 0, went_on: Instant::now(), tokens: None, is_hung: false },
        };
        let (replica_health, _) = watch::channel(ReplicaHealth::Starting);
        let (is_silent, _) = watch::channel(false);
        Self {
            url,
            replica_health,
            is_silent,
            inner: Mutex::new(inner),
            most_failures,
            counts: MemberCounts::default(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn replica_health(&self) -> ReplicaHealth {
        *self.replica_health.borrow()
    }

    /// Returns once it is in one of these.
    pub(super) async fn becomes(&self, wanted: &[ReplicaHealth]) {
        // The sender is in this very value.
        let _ =
            self.replica_health.subscribe().wait_for(|replica_health| wanted.contains(replica_health)).await;
    }

    /// Returns once nothing more is to be expected of it.
    pub(super) async fn falls_silent(&self) {
        // The sender is in this very value.
        let _ = self.is_silent.subscribe().wait_for(|is_silent| *is_silent).await;
    }

    pub(super) fn candidate(&self, asked: &AskedRequest, is_allowed: bool) -> ReplicaCandidate {
        let inner = self.inner();
        let cached_tokens = inner.mirror.cached_blocks(&asked.keys).saturating_mul(BLOCK_TOKENS);
        ReplicaCandidate {
            load: inner.load,
            cached_tokens: cached_tokens.min(asked.prompt_tokens),
            is_open: is_allowed && self.replica_health() == ReplicaHealth::In,
        }
    }

    pub(super) fn load(&self) -> Load {
        self.inner().load
    }

    pub(super) fn reasons(&self) -> BTreeMap<&'static str, u64> {
        self.inner().reasons.clone()
    }

    pub(super) fn models(&self) -> Option<Vec<Value>> {
        self.inner().models.clone()
    }

    /// Whether it has a model, as far as it tells.
    pub(super) fn may_have(&self, model: &str) -> bool {
        self.inner().models.as_ref().is_none_or(|models| models.iter().any(|entry| entry["id"] == *model))
    }

    /// A check was passed. True where that brings it into service.
    pub(super) fn passes(&self, models: Option<Vec<Value>>) -> bool {
        let mut inner = self.inner();
        inner.failures = 0;
        inner.models = models;
        self.is_silent.send_replace(false);
        let is_back = self.change(ReplicaHealth::In, |replica_health| {
            matches!(replica_health, ReplicaHealth::Starting | ReplicaHealth::Out)
        });
        if is_back {
            // It may be another process than before, with nothing cached.
            inner.mirror = PrefixMirror::new(inner.blocks);
        }
        is_back
    }

    /// One of its requests went on.
    pub(super) fn goes_on(&self) {
        let mut inner = self.inner();
        inner.work.went_on = Instant::now();
    }

    /// Whether it has requests of which none has gone on for so long.
    pub(super) fn stands_still(&self, since: Duration) -> bool {
        let work = &self.inner().work;
        work.trips > 0 && work.went_on.elapsed() >= since
    }

    /// Takes down how many tokens it says to have computed; true where they have become more.
    pub(super) fn has_computed(&self, tokens: f64) -> bool {
        self.inner().work.tokens.replace(tokens).is_none_or(|before| before != tokens)
    }

    pub(super) fn is_hung(&self) -> bool {
        self.inner().work.is_hung
    }

    /// It passes its checks and computes nothing: out of service until it answers a request, and what it was given is given up. True
    /// where that is news.
    pub(super) fn hangs(&self) -> bool {
        let mut inner = self.inner();
        inner.work.is_hung = true;
        self.is_silent.send_replace(true);
        self.change(ReplicaHealth::Out, |replica_health| replica_health == ReplicaHealth::In)
    }

    /// It answered a request.
    pub(super) fn recovers(&self) {
        self.inner().work.is_hung = false;
    }

    /// How many tokens of prompts the replica can remember; what it was sent before is forgotten.
    pub(super) fn remembers(&self, tokens: u32) {
        let mut inner = self.inner();
        inner.blocks = tokens / BLOCK_TOKENS;
        inner.mirror = PrefixMirror::new(inner.blocks);
    }

    /// A check or a request failed. True where that takes it out of service.
    pub(super) fn fails(&self, error: &ClientError) -> bool {
        let mut inner = self.inner();
        inner.failures = inner.failures.saturating_add(1);
        let is_out = inner.failures >= self.most_failures;
        if is_out && matches!(error, ClientError::Silent { .. }) {
            self.is_silent.send_replace(true);
        }
        is_out && self.change(ReplicaHealth::Out, |replica_health| replica_health == ReplicaHealth::In)
    }

    pub(super) fn retire(&self) {
        self.change(ReplicaHealth::Retired, |replica_health| replica_health != ReplicaHealth::Retired);
    }

    fn change(&self, to: ReplicaHealth, from: impl FnOnce(ReplicaHealth) -> bool) -> bool {
        self.replica_health.send_if_modified(|replica_health| {
            let changes = from(*replica_health);
            if changes {
                *replica_health = to;
            }
            changes
        })
    }

    /// Counts a request that is sent here, until the result is dropped.
    pub(super) fn take(
        self: &Arc<Self>,
        asked: &AskedRequest,
        cached_tokens: u32,
        reason: RouteReason,
    ) -> Trip {
        let mut inner = self.inner();
        let pending = u64::from(asked.prompt_tokens.saturating_sub(cached_tokens));
        if inner.work.trips == 0 {
            inner.work.went_on = Instant::now();
        }
        inner.work.trips += 1;
        inner.load.pending_tokens += pending;
        inner.load.held_tokens += u64::from(asked.prompt_tokens);
        inner.load.sequences = inner.load.sequences.saturating_add(asked.sequences);
        inner.mirror.observe(&asked.keys);
        *inner.reasons.entry(reason_name(reason)).or_default() += 1;
        self.counts.requests.add(1);
        Trip {
            member: self.clone(),
            pending,
            held: u64::from(asked.prompt_tokens),
            sequences: asked.sequences,
        }
    }
}

/// A request that a replica works on.
pub(super) struct Trip {
    pub(super) member: Arc<RouterMember>,
    pending: u64,
    held: u64,
    sequences: u32,
}

impl Trip {
    /// Its first token is there: the prompt has been computed.
    pub(super) fn begins(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        self.member.inner().load.pending_tokens -= pending;
    }
}

impl Drop for Trip {
    fn drop(&mut self) {
        self.begins();
        let mut inner = self.member.inner();
        inner.work.trips = inner.work.trips.saturating_sub(1);
        inner.load.held_tokens -= self.held;
        inner.load.sequences = inner.load.sequences.saturating_sub(self.sequences);
    }
}

const REASONS: [&str; 5] = ["least_work", "prefix", "prefix_outweighed", "holder_overloaded", "turn"];

fn reason_name(reason: RouteReason) -> &'static str {
    match reason {
        RouteReason::LeastWork { .. } => REASONS[0],
        RouteReason::Prefix { .. } => REASONS[1],
        RouteReason::PrefixOutweighed { .. } => REASONS[2],
        RouteReason::HolderOverloaded { .. } => REASONS[3],
        RouteReason::Turn => REASONS[4],
    }
}
