//! What limits, quotas and fair shares know of what runs and ran.
//!
//! A gang is counted when it starts, changes its size and ends, everywhere at once; nothing else changes
//! what is used. So limits and quotas hold exactly the gangs that run.

use std::collections::BTreeMap;

use bedplate_topology::Cluster;

use crate::borrow_order::BorrowOrder;
use crate::experience::{Bounds, Experience, RunRecord};
use crate::jobs::Jobs;
use crate::limits::Ledger;
use crate::priority::{Prospect, Rank, Scales, priority};
use crate::quota::{ANY_GPU, Asked};
use crate::{
    AccountId, FairShares, GangRequest, JobId, Never, Priority, PriorityWeights, Queues, Settings, Span,
    Time, Usage, UsageRecord, UserId, Wait,
};

#[derive(Debug, Clone)]
pub(crate) struct Accounting {
    ledger: Ledger,
    usage: Usage,
    experience: Experience,
    /// How long the oldest gang of the queue had waited when it was last put in order.
    longest_wait: Span,
    /// Which gangs were small then.
    bounds: Bounds,
    fair_shares: FairShares,
    scales: Scales,
    /// The queues of the site, with what running gangs use of their quotas.
    queues: Queues,
    /// Quota that gangs took back and have not used yet: no gang borrows it meanwhile.
    claims: BTreeMap<JobId, Asked>,
    /// Their sum by kind.
    claimed: BTreeMap<String, u64>,
    /// Waiting gangs that the last cycle put behind others because they would have to borrow, with the share
    /// that put them there.
    borrowers: BTreeMap<JobId, f64>,
    /// The accelerator of every kind of node.
    accelerators: Vec<Option<String>>,
}

impl Accounting {
    pub(crate) fn new(settings: &Settings, cluster: &Cluster) -> Self {
        Self {
            ledger: Ledger::default(),
            usage: Usage::default(),
            experience: Experience::default(),
            longest_wait: Span::ZERO,
            bounds: Bounds::default(),
            fair_shares: FairShares::default(),
            scales: Scales::new(settings, cluster.node_count()),
            queues: settings.queues.clone(),
            claims: BTreeMap::new(),
            claimed: BTreeMap::new(),
            borrowers: BTreeMap::new(),
            accelerators: cluster.kinds().iter().map(|kind| kind.accelerator.clone()).collect(),
        }
    }

    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    pub(crate) fn queues(&self) -> &Queues {
        &self.queues
    }

    pub(crate) fn start(&mut self, request: &GangRequest, gpus: u64) {
        self.ledger.start(request, gpus);
        self.take_quota(request, gpus);
    }

    pub(crate) fn end(&mut self, request: &GangRequest, gpus: u64) {
        self.ledger.end(request, gpus);
        self.give_quota(request, gpus);
    }

    /// A running gang has another number of GPUs than before.
    pub(crate) fn resize(&mut self, request: &GangRequest, before: u64, after: u64) {
        self.ledger.resize(request, before, after);
        self.give_quota(request, before);
        self.take_quota(request, after);
    }

    fn take_quota(&mut self, request: &GangRequest, gpus: u64) {
        if let Some(asked) = self.asked(request) {
            self.queues.take(asked.queue, &asked.kind, gpus);
        }
    }

    fn give_quota(&mut self, request: &GangRequest, gpus: u64) {
        if let Some(asked) = self.asked(request) {
            self.queues.give(asked.queue, &asked.kind, gpus);
        }
    }

    pub(crate) fn charge(&mut self, request: &GangRequest, gpu_ms: u128, settings: &Settings, now: Time) {
        self.usage.add(request.account, request.user, gpu_ms, now, settings.weights.half_life);
    }

    /// A gang that was never interrupted has ended after `ran`.
    pub(crate) fn learn(&mut self, request: &GangRequest, ran: Span, now: Time) {
        self.experience.learn(request, ran, now);
    }

    /// How long a gang will likely run.
    pub(crate) fn expected(&self, request: &GangRequest) -> Span {
        self.experience.expected(request)
    }

    /// With what share of borrowed quota the last cycle put a waiting gang behind others; below zero where it did not.
    pub(crate) fn borrowed_share(&self, job: JobId) -> f64 {
        self.borrowers.get(&job).copied().unwrap_or(-1.0)
    }

    pub(crate) fn learned(&self) -> impl Iterator<Item = RunRecord> + '_ {
        self.experience.records()
    }

    pub(crate) fn restore_learned(&mut self, record: RunRecord) {
        self.experience.restore(record);
    }

    pub(crate) fn restore(&mut self, record: UsageRecord, settings: &Settings) {
        self.usage.restore(record, settings.weights.half_life);
    }

    /// Works out the fair shares of all users that used GPUs or wait for them.
    pub(crate) fn rank_users(
        &mut self,
        waiting: impl Iterator<Item = (AccountId, UserId)>,
        settings: &Settings,
        now: Time,
    ) {
        let half_life = settings.weights.half_life;
        self.fair_shares = FairShares::rank(&settings.accounts, &self.usage, waiting, now, half_life);
    }

    /// Before the queue is put in order, whose oldest gang has waited this long.
    pub(crate) fn look_around(&mut self, longest_wait: Span, weights: &PriorityWeights) {
        self.longest_wait = longest_wait;
        self.bounds = self.experience.bounds(weights);
    }

    /// The priority of a job, and where that puts it in the queue.
    pub(crate) fn rank(
        &self,
        request: &GangRequest,
        submitted: Time,
        settings: &Settings,
        now: Time,
    ) -> (Priority, Rank) {
        let fair_share = self.fair_shares.factor(request.account, request.user);
        let priority = priority(request, settings, self.scales, fair_share, submitted, now);
        let run = self.experience.expected(request);
        let prospect = Prospect { run, longest_wait: self.longest_wait, bounds: self.bounds };
        (priority, Rank::new(request, settings, priority.total(), prospect, submitted, now))
    }

    /// Whether gangs come in another order than the queue's because some must borrow.
    pub(crate) fn reorders(&self) -> bool {
        !self.queues.is_empty()
    }

    /// The queue by priority, in one piece. Within a tier gangs that must borrow come after those that need not, and of them
    /// the queue that has borrowed the smallest share first.
    pub(crate) fn order(&mut self, jobs: &Jobs, settings: &Settings) -> Vec<JobId> {
        if self.queues.is_empty() {
            self.borrowers.clear();
            return jobs.queue().iter().collect();
        }
        let mut work = BorrowOrder::new(&self.queues);
        while !work.go_on(self, jobs, settings, usize::MAX) {}
        self.take_order(work)
    }

    /// An order that has been worked out counts from now on.
    pub(crate) fn take_order(&mut self, work: BorrowOrder) -> Vec<JobId> {
        let (order, borrowers) = work.end();
        self.borrowers = borrowers;
        order
    }

    /// What a job takes from a quota, where it has one.
    pub(crate) fn asked(&self, request: &GangRequest) -> Option<Asked> {
        let queue = request.queue?;
        Some(Asked { queue, kind: self.quota_kind(request).to_string(), gpus: request.gpus() })
    }

    /// The kind of GPU a job counts against: its accelerator where only one will do, else any.
    fn quota_kind(&self, request: &GangRequest) -> &str {
        let wanted =
            request.roles.iter().find(|role| role.per_node.gpus > 0).map_or(u64::MAX, |role| role.kinds);
        let mut names = (self.accelerators.iter().enumerate())
            .filter(|(at, _)| wanted & (1 << at.min(&63)) != 0)
            .filter_map(|(_, accelerator)| accelerator.as_deref());
        let first = names.next();
        match first.filter(|first| names.all(|name| name == *first)) {
            Some(accelerator) => self.queues.kind_of(accelerator),
            None => ANY_GPU,
        }
    }

    /// The limit or quota that a gang of `gpus` GPUs would break if it started now.
    pub(crate) fn broken_by(&self, request: &GangRequest, gpus: u64, settings: &Settings) -> Option<Wait> {
        self.ledger.broken_by(request, gpus, settings).or_else(|| self.over_quota(request, gpus))
    }

    /// Whether limits and quotas leave a running gang `more` GPUs.
    pub(crate) fn allows_more(&self, request: &GangRequest, more: u64, settings: &Settings) -> bool {
        self.ledger.allows_more(request, more, settings) && self.over_quota(request, more).is_none()
    }

    /// The quota that `gpus` more GPUs would break; what another gang takes back is not there to borrow.
    fn over_quota(&self, request: &GangRequest, gpus: u64) -> Option<Wait> {
        let Asked { queue, kind, .. } = self.asked(request)?;
        let mut available = self.queues.available(queue, &kind);
        if self.queues.borrows(queue, &kind, gpus) {
            let own = self.claims.get(&request.id).filter(|claim| claim.kind == kind);
            let claimed = self.claimed.get(&kind).copied().unwrap_or(0);
            available = available.saturating_sub(claimed - own.map_or(0, |claim| claim.gpus));
        }
        let name = || self.queues.name(queue).to_string();
        (gpus > available).then(|| Wait::Quota { queue: name(), kind, asked: gpus, available })
    }

    /// More GPUs than the queue of a gang could ever have.
    pub(crate) fn beyond_quota(&self, request: &GangRequest, gpus: u64) -> Option<Never> {
        let Asked { queue, kind, .. } = self.asked(request)?;
        let most = self.queues.most(queue, &kind);
        let name = || self.queues.name(queue).to_string();
        (gpus > most).then(|| Never::BeyondQuota { asked: gpus, most, queue: name(), kind })
    }

    /// What a gang may take back from queues that borrowed it, and how much of that is not there: nothing for a
    /// gang that would itself borrow, or that a limit keeps from starting.
    pub(crate) fn reclaimable(&self, request: &GangRequest, settings: &Settings) -> Option<(Asked, u64)> {
        let asked = self.asked(request)?;
        let is_limited = self.ledger.broken_by(request, asked.gpus, settings).is_some();
        let missing = asked.gpus.saturating_sub(self.queues.available(asked.queue, &asked.kind));
        (!asked.borrows(&self.queues) && !is_limited).then_some((asked, missing))
    }

    /// The kind of GPU that a running gang holds in a queue that borrows, and what share its queue has borrowed.
    pub(crate) fn borrowed(&self, running: &GangRequest) -> Option<(String, f64)> {
        let held = self.asked(running).map(|asked| Asked { gpus: 0, ..asked })?;
        held.borrows(&self.queues).then(|| held.share(&self.queues)).map(|share| (held.kind, share))
    }

    /// Whether a waiting gang comes before a running one as far as quotas go.
    pub(crate) fn borrows_less(&self, waiting: &GangRequest, running: &GangRequest) -> bool {
        if self.queues.is_empty() {
            return true;
        }
        // By the share that put it behind: gangs before it count there that have not started yet.
        let placed = self.borrowers.get(&waiting.id).copied();
        let asked = self.asked(waiting).filter(|asked| asked.borrows(&self.queues));
        let Some(share) = placed.or_else(|| Some(asked?.share(&self.queues))) else {
            return true;
        };
        self.borrowed(running).is_some_and(|(_, held)| share < held)
    }

    /// Keeps quota for a gang until it starts or leaves the queue.
    pub(crate) fn claim(&mut self, job: JobId, asked: Asked) {
        self.drop_claim(job);
        *self.claimed.entry(asked.kind.clone()).or_insert(0) += asked.gpus;
        self.claims.insert(job, asked);
    }

    pub(crate) fn drop_claim(&mut self, job: JobId) {
        if let Some(claim) = self.claims.remove(&job) {
            *self.claimed.get_mut(&claim.kind).expect("it was counted") -= claim.gpus;
        }
    }

    pub(crate) fn has_claim(&self, job: JobId) -> bool {
        self.claims.contains_key(&job)
    }

    pub(crate) fn has_claims(&self) -> bool {
        !self.claims.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    #[cfg(test)]
    pub(crate) fn claims(&self) -> &BTreeMap<JobId, Asked> {
        &self.claims
    }
}
