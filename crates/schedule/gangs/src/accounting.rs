//! What limits, quotas and fair shares know of what runs and ran.
//!
//! A gang is counted when it starts, changes its size and ends, everywhere at once; nothing else changes
//! what is used. So limits and quotas hold exactly the gangs that run.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bedplate_topology::Cluster;

use crate::experience::{Bounds, Experience, RunRecord};
use crate::jobs::Jobs;
use crate::limits::Ledger;
use crate::priority::{Prospect, Rank, Scales, priority};
use crate::quota::{ANY_GPU, Asked};
use crate::{
    AccountId, FairShares, GangRequest, JobId, Never, Priority, PriorityWeights, QueueId, Queues, Settings,
    Span, Time, Usage, UsageRecord, UserId, Wait,
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

    /// The queue by priority. Within a tier gangs that must borrow come after those that need not, and of them
    /// the queue that has borrowed the smallest share first.
    pub(crate) fn order(&mut self, jobs: &Jobs, settings: &Settings) -> Vec<JobId> {
        let waiting: Vec<JobId> = jobs.queue().iter().collect();
        self.borrowers.clear();
        if self.queues.is_empty() {
            return waiting;
        }
        let mut queues = self.queues.clone();
        let mut order = Vec::with_capacity(waiting.len());
        let tier = |job: &JobId| settings.partition(&jobs[*job].request).tier;
        for of_tier in waiting.chunk_by(|a, b| tier(a) == tier(b)) {
            let mut borrowers = Vec::new();
            for job in of_tier {
                match self.asked(&jobs[*job].request) {
                    Some(asked) if asked.borrows(&queues) => borrowers.push((*job, asked)),
                    Some(asked) => {
                        queues.take(asked.queue, &asked.kind, asked.gpus);
                        order.push(*job);
                    }
                    None => order.push(*job),
                }
            }
            let mut borrowers = Borrowers::new(borrowers, &queues);
            while let Some((job, share)) = borrowers.next(&mut queues) {
                self.borrowers.insert(job, share);
                order.push(job);
            }
        }
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

/// Gangs that must borrow, from the smallest share on. A gang's share follows from its size and from what its own queue
/// uses, so only the smallest gang of each queue and kind can be next, and only its own queue changes by it.
struct Borrowers {
    /// By queue and kind: gangs from the smallest on, in the order of the queue.
    groups: BTreeMap<(QueueId, String), VecDeque<(JobId, u64)>>,
    /// The first gang of each group by the share it would have, and its place in the queue.
    next: BTreeSet<(Share, usize, QueueId, String)>,
    places: BTreeMap<JobId, usize>,
}

/// A share that can be ordered.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Share(f64);

impl Eq for Share {}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Borrowers {
    fn new(waiting: Vec<(JobId, Asked)>, queues: &Queues) -> Self {
        let places = waiting.iter().enumerate().map(|(place, (job, _))| (*job, place)).collect();
        let mut groups: BTreeMap<_, VecDeque<(JobId, u64)>> = BTreeMap::new();
        for (job, asked) in waiting {
            groups.entry((asked.queue, asked.kind)).or_default().push_back((job, asked.gpus));
        }
        // Stable: of equal sizes the one that comes first in the queue stays first.
        groups.values_mut().for_each(|group| group.make_contiguous().sort_by_key(|(_, gpus)| *gpus));
        let mut borrowers = Self { groups, next: BTreeSet::new(), places };
        let keys: Vec<(QueueId, String)> = borrowers.groups.keys().cloned().collect();
        keys.into_iter().for_each(|(queue, kind)| borrowers.enter(queue, &kind, queues));
        borrowers
    }

    /// The gang with the smallest share, which takes what it asks for.
    fn next(&mut self, queues: &mut Queues) -> Option<(JobId, f64)> {
        let (share, _, queue, kind) = self.next.first()?.clone();
        // Usage changes in the queue and, past what it keeps, above it.
        let changed: Vec<(QueueId, String)> =
            queues.path(queue).flat_map(|queue| self.kinds_of(queue)).collect();
        changed.iter().for_each(|(queue, kind)| self.leave(*queue, kind, queues));
        let group = self.groups.get_mut(&(queue, kind.clone())).expect("a gang that is next has a group");
        let (job, gpus) = group.pop_front().expect("a gang that is next is the first of its group");
        queues.take(queue, &kind, gpus);
        changed.iter().for_each(|(queue, kind)| self.enter(*queue, kind, queues));
        Some((job, share.0))
    }

    fn kinds_of(&self, queue: QueueId) -> Vec<(QueueId, String)> {
        let of_queue = self.groups.range((queue, String::new())..);
        of_queue.take_while(|((of, _), _)| *of == queue).map(|(key, _)| key.clone()).collect()
    }

    fn enter(&mut self, queue: QueueId, kind: &str, queues: &Queues) {
        self.next.extend(self.first(queue, kind, queues));
    }

    fn leave(&mut self, queue: QueueId, kind: &str, queues: &Queues) {
        if let Some(first) = self.first(queue, kind, queues) {
            self.next.remove(&first);
        }
    }

    fn first(&self, queue: QueueId, kind: &str, queues: &Queues) -> Option<(Share, usize, QueueId, String)> {
        let (job, gpus) = self.groups.get(&(queue, kind.to_owned()))?.front()?;
        let share = Share(queues.dominant_share(queue, kind, *gpus));
        Some((share, self.places[job], queue, kind.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Grant;
    use proptest::prelude::*;

    /// The gang with the least share again and again, all of them looked at each time.
    fn one_by_one(mut waiting: Vec<(JobId, Asked)>, queues: &mut Queues) -> Vec<(JobId, f64)> {
        let mut order = Vec::new();
        while !waiting.is_empty() {
            let shares: Vec<f64> = waiting.iter().map(|(_, asked)| asked.share(queues)).collect();
            let least =
                (0..shares.len()).min_by(|a, b| shares[*a].total_cmp(&shares[*b])).expect("not empty");
            let (job, asked) = waiting.remove(least);
            order.push((job, shares[least]));
            queues.take(asked.queue, &asked.kind, asked.gpus);
        }
        order
    }

    proptest! {
        #[test]
        fn borrowers_come_in_the_order_of_their_shares(
            used in prop::collection::vec((0u16..6, 0u64..20), 0..10),
            asked in prop::collection::vec((0u16..6, 1u64..9), 0..40),
        ) {
            let mut queues = Queues::default();
            let root = queues.add("root", None, 1.0);
            for number in 1..6 {
                let parent = if number > 3 { QueueId(number - 2) } else { root };
                let queue = queues.add(format!("q{number}"), Some(parent), f64::from(number));
                let grant = Grant { nominal: u64::from(number) * 4, borrowing: None, lending: (number == 2).then_some(3) };
                queues.grant(queue, ANY_GPU, grant);
            }
            used.into_iter().for_each(|(queue, gpus)| queues.take(QueueId(queue), ANY_GPU, gpus));
            let asked = asked.into_iter().enumerate().map(|(job, (queue, gpus))| {
                (JobId(job as u64), Asked { queue: QueueId(queue), kind: ANY_GPU.to_owned(), gpus })
            });
            let waiting: Vec<_> = asked.filter(|(_, asked)| asked.borrows(&queues)).collect();
            let expected = one_by_one(waiting.clone(), &mut queues.clone());
            let mut borrowers = Borrowers::new(waiting, &queues);
            let order: Vec<_> = std::iter::from_fn(|| borrowers.next(&mut queues)).collect();
            prop_assert_eq!(order, expected);
        }
    }
}
