//! What the gang scheduler is told: requests by the rules of the site, and what is held on nodes already.

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_gangs::{
    AccountId, Adopted, AdoptedState, Backfill, Closeness, Event, GangOutcome, GangRequest, History, JobId,
    NodeShare, PartitionId, Preemption, Qos, QosId, QueueId, QueueOrder, RoleRequest, Settings, Span, Then,
    Time, UsageRecord, UserId,
};

use crate::shape::RoleSplit;
use crate::{GangPolicy, Waiting};

/// How long plans think that a gang runs that names no limit and has none by its partition.
const USUAL: Span = Span::days(1);
/// A gang that has run longer than plans thought runs for this much longer.
const LONGER: Span = Span::hours(1);
/// How long plans think that a pod still holds its node after it was told to go.
const FAREWELL: Span = Span::seconds(35);
/// Above every priority: the rest of a gang that stands on nodes already.
const COMPLETES: i64 = 1 << 50;
/// What others hold, and what nodes never give, in numbers that no gang has.
const OTHERS: JobId = JobId(u64::MAX - 2);
const NEVER_FREE: JobId = JobId(u64::MAX - 1);

/// The site's rules with the names that gangs use.
pub(crate) struct PodRules {
    settings: Settings,
    /// Classes of priority, where the site has no qualities of service of its own.
    priorities: Vec<i32>,
    users: BTreeMap<String, UserId>,
}

impl PodRules {
    /// Without a site file gangs go by the priority of their class and then by arrival, so that nothing overtakes a large gang for
    /// ever; and every priority is a quality of service that preempts the lower ones.
    pub(crate) fn new(site: Option<Settings>, mut priorities: Vec<i32>) -> Self {
        priorities.sort_unstable();
        priorities.dedup();
        let has_site = site.is_some();
        let mut settings = site.unwrap_or_default();
        if has_site {
            priorities.clear();
        } else {
            settings.order = QueueOrder::Arrival;
            settings.backfill = Backfill::conservative();
        }
        if !priorities.is_empty() {
            settings.qos =
                priorities.iter().enumerate().map(|(at, priority)| of_priority(at, *priority)).collect();
        }
        settings.qos.push(Qos::named("(others)"));
        Self { settings, priorities, users: BTreeMap::new() }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    fn others(&self) -> QosId {
        QosId(self.settings.qos.len() as u16 - 1)
    }

    pub(crate) fn user(&mut self, name: &str) -> UserId {
        let next = UserId(self.users.len() as u32);
        *self.users.entry(name.to_owned()).or_insert(next)
    }

    pub(crate) fn account(&self, policy: &GangPolicy) -> Option<AccountId> {
        policy.account.as_deref().map_or(Some(AccountId::default()), |name| self.settings.accounts.find(name))
    }

    /// A record of usage under the numbers that account and user have now.
    pub(crate) fn usage_of(
        &mut self,
        (account, user): &(String, String),
        record: UsageRecord,
    ) -> UsageRecord {
        let account = self.settings.accounts.find(account).unwrap_or_default();
        UsageRecord { account, user: self.user(user), ..record }
    }

    /// A request without its roles, or which name the site does not have.
    fn request(&mut self, id: JobId, name: &str, policy: &GangPolicy) -> Result<GangRequest, Waiting> {
        let unknown = |what: &str, name: &Option<String>| Waiting {
            reason: "UnknownName",
            message: format!("the site has no {what} `{}`", name.as_deref().unwrap_or_default()),
        };
        let names = |wanted: &Option<String>, names: Vec<&str>| match wanted {
            None => Some(0),
            Some(wanted) => names.into_iter().position(|name| name == wanted),
        };
        let partitions = self.settings.partitions.iter().map(|each| each.name.as_str()).collect();
        let partition =
            names(&policy.partition, partitions).ok_or_else(|| unknown("partition", &policy.partition))?;
        let qos = match self.priorities.binary_search(&policy.priority) {
            Ok(at) if policy.qos.is_none() => at,
            _ => {
                let qualities = self.settings.qos.iter().map(|each| each.name.as_str()).collect();
                names(&policy.qos, qualities).ok_or_else(|| unknown("quality of service", &policy.qos))?
            }
        };
        let account = self.account(policy).ok_or_else(|| unknown("account", &policy.account))?;
        let queue: Option<QueueId> = self.settings.queues.find(self.settings.accounts.name(account));
        let user = self.user(&policy.user);
        Ok(GangRequest {
            name: Arc::from(name),
            user,
            account,
            partition: PartitionId(partition as u16),
            qos: QosId(qos as u16),
            queue,
            site_priority: policy.priority.into(),
            time_limit: self.length(policy, partition),
            grace: policy.grace,
            closeness: policy.closeness,
            is_requeued: true,
            preemption: if policy.is_preemptible { Preemption::Requeue } else { Preemption::Never },
            ..GangRequest::new(id, RoleRequest::new(1, 0))
        })
    }

    /// How long plans count on.
    fn length(&self, policy: &GangPolicy, partition: usize) -> Span {
        let by_site = self.settings.partitions[partition].longest;
        policy.time_limit.or(by_site).unwrap_or(USUAL)
    }
}

fn of_priority(at: usize, priority: i32) -> Qos {
    let preempts = (0..at).map(|lower| QosId(lower as u16)).collect();
    Qos { preempts, ..Qos::named(format!("priority {priority}")) }
}

/// Everything that the scheduler is told at once, in the order that it wants.
pub(crate) struct Brief<'r> {
    rules: &'r mut PodRules,
    now: Time,
    adopted: Vec<Event>,
    submitted: Vec<Event>,
}

impl<'r> Brief<'r> {
    pub(crate) fn new(rules: &'r mut PodRules, now: Time) -> Self {
        Self { rules, now, adopted: Vec::new(), submitted: Vec::new() }
    }

    pub(crate) fn used(&mut self, records: impl Iterator<Item = UsageRecord>) {
        self.adopted.extend(records.map(Event::Used));
    }

    /// A gang stands on nodes since a time.
    pub(crate) fn holds(
        &mut self,
        id: JobId,
        (name, policy): (&str, &GangPolicy),
        (roles, shares): (Vec<RoleRequest>, Vec<NodeShare>),
        started: Time,
    ) {
        let Ok(request) = self.rules.request(id, name, policy) else { return };
        let planned = started + request.time_limit;
        let ends = if policy.time_limit.is_some() { planned } else { planned.max(self.now + LONGER) };
        let request = GangRequest { roles, closeness: Closeness::Any, ..request };
        let adopted =
            Adopted { ends: Some(ends), charged: Some(self.now), ..Adopted::new(request, shares, started) };
        self.adopt(adopted);
    }

    /// Pods of a gang that were told to go.
    pub(crate) fn goes(
        &mut self,
        id: JobId,
        (name, policy): (&str, &GangPolicy),
        (roles, shares): (Vec<RoleRequest>, Vec<NodeShare>),
    ) {
        let Ok(request) = self.rules.request(id, name, policy) else { return };
        let request = GangRequest { roles, closeness: Closeness::Any, ..request };
        let state = AdoptedState::Stops(Then::End(GangOutcome::Cancelled));
        let (ends, charged) = (Some(self.now + FAREWELL), Some(self.now));
        self.adopt(Adopted { state, ends, charged, ..Adopted::new(request, shares, self.now) });
    }

    /// What pods of other schedulers hold; nobody knows until when.
    pub(crate) fn others_hold(&mut self, held: (Vec<RoleRequest>, Vec<NodeShare>)) {
        self.stranger(OTHERS, held, self.now + USUAL);
    }

    /// What nodes have and never give.
    pub(crate) fn never_free(&mut self, held: (Vec<RoleRequest>, Vec<NodeShare>)) {
        self.stranger(NEVER_FREE, held, Time::NEVER);
    }

    fn stranger(&mut self, id: JobId, (roles, shares): (Vec<RoleRequest>, Vec<NodeShare>), until: Time) {
        let request = GangRequest {
            roles,
            qos: self.rules.others(),
            user: UserId(u32::MAX),
            preemption: Preemption::Never,
            is_requeued: false,
            time_limit: Span::FOREVER,
            ..GangRequest::new(id, RoleRequest::new(1, 0))
        };
        self.adopt(Adopted {
            ends: Some(until),
            charged: Some(self.now),
            ..Adopted::new(request, shares, self.now)
        });
    }

    fn adopt(&mut self, adopted: Adopted) {
        if !adopted.shares.is_empty() {
            self.adopted.push(Event::Adopt(Box::new(adopted)));
        }
    }

    /// A gang waits since a time for the gangs that stop for it, if any.
    pub(crate) fn waits(
        &mut self,
        id: JobId,
        (name, policy): (&str, &GangPolicy),
        split: &RoleSplit,
        since: Time,
        victims: &[JobId],
    ) -> Result<(), Waiting> {
        let request = self.rules.request(id, name, policy)?;
        let history = History { victims: victims.to_vec(), ..History::since(since.min(self.now)) };
        let (roles, filter) = (split.roles.clone(), split.filter.clone());
        self.submit(GangRequest { roles, filter, history: Some(history), ..request });
        Ok(())
    }

    /// The rest of a gang that stands on nodes already; it comes before everything else.
    pub(crate) fn completes(
        &mut self,
        id: JobId,
        (name, policy): (&str, &GangPolicy),
        split: &RoleSplit,
    ) -> Result<(), Waiting> {
        let request = self.rules.request(id, name, policy)?;
        let (roles, filter) = (split.roles.clone(), split.filter.clone());
        self.submit(GangRequest {
            roles,
            filter,
            closeness: Closeness::Any,
            site_priority: COMPLETES,
            ..request
        });
        Ok(())
    }

    fn submit(&mut self, request: GangRequest) {
        self.submitted.push(Event::Submit(Box::new(request)));
    }

    pub(crate) fn events(self) -> impl Iterator<Item = Event> {
        self.adopted.into_iter().chain(self.submitted)
    }
}
