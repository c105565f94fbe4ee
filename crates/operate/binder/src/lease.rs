//! One scheduler of several acts: the one that holds the Lease.
//!
//! A Lease is taken when it has not changed for as long as it lasts, by our own clock, so clocks need not agree. The holder renews it,
//! and its *fence* falls before the Lease can have run out for anybody: every request that changes something looks at the fence first and
//! is given up when it would outlast it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bedplate_kubernetes::k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use bedplate_kubernetes::k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use bedplate_kubernetes::k8s_openapi::jiff::Timestamp;
use bedplate_kubernetes::kube::api::PostParams;
use bedplate_kubernetes::kube::{self, Api, Client};

/// Where the Lease is, who we are, how long it lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRules {
    pub namespace: String,
    pub name: String,
    /// Different for every process.
    pub holder: String,
    pub lasts: Duration,
}

/// Until when what we do cannot meet what another holder does.
#[derive(Clone)]
pub(crate) struct Fence {
    until: Arc<Mutex<Option<Instant>>>,
    /// Without a Lease it always stands.
    is_needed: bool,
}

/// How long a request may take where no fence ends it.
const PATIENCE: Duration = Duration::from_secs(30);

impl Fence {
    pub(crate) fn new(is_needed: bool) -> Self {
        Self { until: Arc::new(Mutex::new(None)), is_needed }
    }

    pub(crate) fn stands(&self) -> bool {
        !self.is_needed || self.patience() > Duration::ZERO
    }

    /// How long a request that begins now may take.
    pub(crate) fn patience(&self) -> Duration {
        if !self.is_needed {
            return PATIENCE;
        }
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now())).min(PATIENCE)
    }

    /// Nothing more is begun.
    pub(crate) fn fall(&self) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn stand_until(&self, until: Instant) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }
}

/// What one look at the Lease found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LeaseLook {
    ByUs,
    ByOther { holder: String },
}

/// The Lease as we last saw it.
pub(crate) struct Holder {
    leases: Api<Lease>,
    rules: LeaseRules,
    fence: Fence,
    seen: Option<Seen>,
}

/// What another holder wrote, and when we first saw it.
struct Seen {
    holder: String,
    renewed: Option<MicroTime>,
    since: Instant,
}

impl Holder {
    pub(crate) fn new(client: Client, rules: LeaseRules, fence: Fence) -> Self {
        Self { leases: Api::namespaced(client, &rules.namespace), rules, fence, seen: None }
    }

    /// How often to look.
    pub(crate) fn rhythm(&self) -> Duration {
        self.rules.lasts / 6
    }

    /// Takes or renews the Lease if it is ours to take.
    pub(crate) async fn hold(&mut self) -> kube::Result<LeaseLook> {
        let asked = Instant::now();
        let Some(found) = self.leases.get_opt(&self.rules.name).await? else {
            let made = self.leases.create(&PostParams::default(), &self.lease(None)).await;
            return self.took(made, asked);
        };
        let spec = found.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder == self.rules.holder || holder.is_empty() || self.has_run_out(&holder, &spec) {
            let replaced = self
                .leases
                .replace(&self.rules.name, &PostParams::default(), &self.lease(Some(&found)))
                .await;
            return self.took(replaced, asked);
        }
        Ok(LeaseLook::ByOther { holder })
    }

    /// Gives it back, so that the next holder need not wait.
    pub(crate) async fn release(&self) {
        let Ok(Some(found)) = self.leases.get_opt(&self.rules.name).await else { return };
        let spec = found.spec.clone().unwrap_or_default();
        if spec.holder_identity.as_deref() == Some(&self.rules.holder) {
            let spec = LeaseSpec { holder_identity: Some(String::new()), ..spec };
            let free = Lease { spec: Some(spec), ..found };
            let _ = self.leases.replace(&self.rules.name, &PostParams::default(), &free).await;
        }
    }

    fn took(&mut self, result: kube::Result<Lease>, asked: Instant) -> kube::Result<LeaseLook> {
        match result {
            Ok(_) => {
                self.seen = None;
                // Two thirds: what is under way then has a third to end in.
                self.fence.stand_until(asked + self.rules.lasts * 2 / 3);
                Ok(LeaseLook::ByUs)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                Ok(LeaseLook::ByOther { holder: "another scheduler that was faster".to_owned() })
            }
            Err(error) => Err(error),
        }
    }

    fn has_run_out(&mut self, holder: &str, spec: &LeaseSpec) -> bool {
        let is_known = |seen: &Seen| seen.holder == holder && seen.renewed == spec.renew_time;
        if !self.seen.as_ref().is_some_and(is_known) {
            let (holder, renewed) = (holder.to_owned(), spec.renew_time.clone());
            self.seen = Some(Seen { holder, renewed, since: Instant::now() });
        }
        let by_them = spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map(Duration::from_secs);
        let lasts = by_them.unwrap_or(self.rules.lasts);
        self.seen.as_ref().is_some_and(|seen| seen.since.elapsed() >= lasts)
    }

    fn lease(&self, found: Option<&Lease>) -> Lease {
        let before = found.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let is_ours = before.holder_identity.as_deref() == Some(&self.rules.holder);
        let now = Some(MicroTime(Timestamp::now()));
        let metadata = found.map_or_else(
            || ObjectMeta { name: Some(self.rules.name.clone()), ..ObjectMeta::default() },
            |lease| lease.metadata.clone(),
        );
        let changes = before.lease_transitions.unwrap_or(0) + i32::from(!is_ours && found.is_some());
        let spec = LeaseSpec {
            holder_identity: Some(self.rules.holder.clone()),
            lease_duration_seconds: Some(self.rules.lasts.as_secs().max(1) as i32),
            acquire_time: if is_ours { before.acquire_time } else { now.clone() },
            renew_time: now,
            lease_transitions: Some(changes),
            ..before
        };
        Lease { metadata, spec: Some(spec) }
    }
}
