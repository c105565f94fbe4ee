//! The replicas of a router, and the choice among them.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bedplate_batching::{ReplicaCandidate, Router};
use bedplate_host::read_regular_text;
use bedplate_http::HeaderValue;
use serde_json::Value;
use tokio::runtime::Handle;

use super::asked::AskedRequest;
use super::checks;
use super::member::{ReplicaHealth, RouterMember, Trip};
use super::options::{Checks, RouteOptions};
use super::url::{ReplicaUrl, UrlFlaw};
use crate::error::GatewayError;
use crate::refusal::ApiError;

/// Who may be asked. Clones are the same set; replicas are added and removed while requests run.
#[derive(Clone)]
pub struct Members(Arc<Shared>);

struct Shared {
    set: Mutex<Set>,
    checks: Checks,
    remembered_tokens: u32,
    key: Option<HeaderValue>,
    runtime: Handle,
}

struct Set {
    list: Vec<Arc<RouterMember>>,
    router: Router,
}

impl Members {
    pub(super) fn new(options: &RouteOptions, key: Option<HeaderValue>, runtime: Handle) -> Self {
        Self(Arc::new(Shared {
            set: Mutex::new(Set { list: Vec::new(), router: Router::new(options.policy) }),
            checks: options.checks.clone(),
            remembered_tokens: options.remembered_tokens,
            key,
            runtime,
        }))
    }

    fn set(&self) -> MutexGuard<'_, Set> {
        self.0.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn list(&self) -> Vec<Arc<RouterMember>> {
        self.set().list.clone()
    }

    /// A replica that gets requests from its first passed check on. One that is here already stays as it is.
    pub fn add(&self, url: &ReplicaUrl) {
        let mut set = self.set();
        if set.list.iter().any(|member| member.url == *url) {
            return;
        }
        let Shared { checks, remembered_tokens, key, runtime, .. } = &*self.0;
        let member = Arc::new(RouterMember::new(url.clone(), *remembered_tokens, checks.failures.max(1)));
        set.list.push(member.clone());
        runtime.spawn(checks::watch(member, checks.clone(), key.clone()));
    }

    /// A replica that gets no more requests; those that it has go on.
    pub fn remove(&self, url: &ReplicaUrl) -> Option<Departure> {
        let mut set = self.set();
        let at = set.list.iter().position(|member| member.url == *url)?;
        let member = set.list.remove(at);
        member.retire();
        Some(Departure(member))
    }

    /// These and no others.
    pub fn replace(&self, urls: &[ReplicaUrl]) {
        self.keep(|member| urls.contains(&member.url));
        urls.iter().for_each(|url| self.add(url));
    }

    fn keep(&self, stays: impl Fn(&RouterMember) -> bool) {
        self.set().list.retain(|member| {
            let stays = stays(member);
            if !stays {
                member.retire();
            }
            stays
        });
    }

    /// Whether a replica gets requests; nothing for one that is not here.
    pub fn replica_health(&self, url: &ReplicaUrl) -> Option<ReplicaHealth> {
        self.set().list.iter().find(|member| member.url == *url).map(|member| member.replica_health())
    }

    /// Sequences under way on all replicas.
    pub fn sequences(&self) -> u32 {
        self.set().list.iter().map(|member| member.load().sequences).sum()
    }

    /// Sequences under way on one.
    pub fn sequences_of(&self, url: &ReplicaUrl) -> u32 {
        let set = self.set();
        set.list.iter().find(|member| member.url == *url).map_or(0, |member| member.load().sequences)
    }

    /// The replica for a request, among those that it was not tried on.
    pub(super) fn choose(
        &self,
        asked: &AskedRequest,
        tried: &[ReplicaUrl],
    ) -> Result<Option<Trip>, ApiError> {
        let mut set = self.set();
        if let Some(model) = &asked.model {
            self.require(model, &set.list)?;
        }
        let may = |member: &RouterMember| {
            !tried.contains(&member.url) && asked.model.as_ref().is_none_or(|model| member.may_have(model))
        };
        let candidates: Vec<ReplicaCandidate> =
            set.list.iter().map(|member| member.candidate(asked, may(member))).collect();
        let route = set.router.route(asked.prompt_tokens, &candidates);
        Ok(route.map(|route| {
            let cached_tokens = candidates[route.replica].cached_tokens;
            set.list[route.replica].take(asked, cached_tokens, route.reason)
        }))
    }

    /// Refuses a model that no replica has.
    fn require(&self, model: &str, list: &[Arc<RouterMember>]) -> Result<(), ApiError> {
        let is_in = |member: &&Arc<RouterMember>| member.replica_health() == ReplicaHealth::In;
        if !list.iter().any(|member| is_in(&member)) || list.iter().any(|member| member.may_have(model)) {
            return Ok(());
        }
        let mut served: Vec<String> = list
            .iter()
            .flat_map(|member| member.models().unwrap_or_default())
            .filter_map(|entry| entry["id"].as_str().map(str::to_owned))
            .collect();
        served.sort_unstable();
        served.dedup();
        Err(ApiError::NoSuchModel { model: model.to_owned(), served })
    }

    /// The models of replicas that are in service, each once.
    pub(super) fn models(&self) -> Vec<Value> {
        let mut all: Vec<Value> = Vec::new();
        for member in self.list().iter().filter(|member| member.replica_health() == ReplicaHealth::In) {
            for entry in member.models().unwrap_or_default() {
                if all.iter().all(|known| known["id"] != entry["id"]) {
                    all.push(entry);
                }
            }
        }
        all
    }

    /// Whether any replica gets requests.
    pub fn has_one_in(&self) -> bool {
        self.set().list.iter().any(|member| member.replica_health() == ReplicaHealth::In)
    }
}

/// A replica that was removed.
pub struct Departure(Arc<RouterMember>);

impl Departure {
    /// Sequences that it still has; no more come.
    pub fn sequences(&self) -> u32 {
        self.0.load().sequences
    }
}

/// How often a file of replicas is looked at.
pub(super) const LOOK: Duration = Duration::from_secs(1);
const MOST_BYTES: u64 = 1 << 20;

/// The replicas that a file names, a URL on a line; lines that begin with `#` are remarks.
pub(super) fn read_file(path: &Path) -> Result<Vec<ReplicaUrl>, GatewayError> {
    let cannot = |source| GatewayError::ReplicasFile { path: path.to_owned(), source };
    let text = read_regular_text(path, MOST_BYTES).map_err(cannot)?;
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let read = |(line, text): (usize, &str)| {
        text.parse().map_err(|flaw: UrlFlaw| GatewayError::ReplicaLine { path: path.to_owned(), line, flaw })
    };
    lines.map(read).collect()
}
