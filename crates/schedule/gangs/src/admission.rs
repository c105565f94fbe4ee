//! May a job wait in the queue at all, and does anything but resources keep it from starting?

use bedplate_job::DependencyKind;
use bedplate_topology::Level;

use crate::quota::ANY_GPU;
use crate::scheduler::Scheduler;
use crate::view::{Class, Rule};
use crate::{Closeness, Dependency, Elastic, JobId, Never, Outcome, Request, RoleRequest, Span, Time, Wait};

impl Scheduler {
    /// Why a job can never run here, whatever else happens.
    pub(crate) fn never(&mut self, request: &Request) -> Option<Never> {
        self.malformed(request)
            .map(|what| Never::Malformed { what: what.into() })
            .or_else(|| self.beyond_limits(request))
            .or_else(|| self.beyond_quota(request))
            .or_else(|| self.beyond_nodes(request))
    }

    /// What is wrong with a request whatever the cluster and its rules are.
    pub(crate) fn malformed(&self, request: &Request) -> Option<&'static str> {
        let settings = &self.settings;
        let bad_share = |role: &RoleRequest| {
            let is_one_gpu = role.nodes == 1 && role.per_node.gpus == 1 && role.elastic.is_none();
            role.gpu_share.is_some_and(|share| !(1..=1000).contains(&share) || !is_one_gpu)
        };
        let shares_alone = |role: &RoleRequest| role.gpu_share.is_some() && role.is_exclusive;
        let cuts_segment = |role: &RoleRequest| {
            let sizes = role.elastic.map_or([role.nodes; 2], |elastic| [elastic.min, elastic.step]);
            request.segment.is_some_and(|segment| sizes.iter().any(|size| !size.is_multiple_of(segment)))
        };
        let checks = [
            (request.roles.is_empty(), "the gang has no roles"),
            (request.roles.iter().any(|role| role.nodes == 0), "a role asks for no nodes"),
            (request.time_limit == Span::ZERO, "the time limit is zero"),
            (usize::from(request.partition.0) >= settings.partitions.len(), "there is no such partition"),
            (usize::from(request.qos.0) >= settings.qos.len(), "there is no such QOS"),
            (!settings.accounts.holds(request.account), "there is no such account"),
            (request.queue.is_some_and(|queue| !settings.queues.holds(queue)), "there is no such queue"),
            (
                request.roles.iter().any(bad_share),
                "a shared GPU is one GPU on one node, 1 to 1000 thousandths",
            ),
            (request.roles.iter().any(shares_alone), "who shares a GPU cannot have the node alone"),
            (request.segment == Some(0), "segments of no nodes"),
            (request.roles.iter().any(cuts_segment), "segments do not divide the nodes of a role"),
            (request.array.is_some_and(|task| task.at_once == Some(0)), "no task of the array may run"),
            (
                request.elastic().is_some_and(|elastic| elastic.min == 0),
                "the elastic range begins at no nodes",
            ),
            (
                request.roles.len() == 1
                    && request.elastic().is_some_and(|elastic| !elastic.allows(request.roles[0].nodes)),
                "the number of nodes is not in the elastic range",
            ),
        ];
        checks.into_iter().find(|(is_wrong, _)| *is_wrong).map(|(_, what)| what)
    }

    fn beyond_limits(&self, request: &Request) -> Option<Never> {
        let partition = &self.settings.partitions[usize::from(request.partition.0)];
        let qos = &self.settings.qos[usize::from(request.qos.0)];
        let by_partition = || format!("partition `{}`", partition.name);
        let by_qos = || format!("QOS `{}`", qos.name);
        let too_long = |allowed: Option<Span>, by: &dyn Fn() -> String| {
            let allowed = allowed.filter(|allowed| request.time_limit > *allowed)?;
            Some(Never::LongerThanAllowed { asked: request.time_limit, allowed, by: by() })
        };
        let too_many = |what, asked: u64, allowed: Option<u64>, by: &dyn Fn() -> String| {
            let allowed = allowed.filter(|allowed| asked > *allowed)?;
            Some(Never::MoreThanAllowed { asked, allowed, what, by: by() })
        };
        let gpus = self.smallest_gpus(request);
        too_long(partition.longest, &by_partition)
            .or_else(|| too_long(qos.longest, &by_qos))
            .or_else(|| {
                too_many("nodes", request.nodes().into(), partition.most_nodes.map(u64::from), &by_partition)
            })
            .or_else(|| too_many("GPUs", gpus, qos.most_gpus_per_job, &by_qos))
            .or_else(|| too_many("GPUs", gpus, qos.most_gpus_per_user, &by_qos))
            .or_else(|| too_many("GPUs", gpus, qos.most_gpus, &by_qos))
    }

    /// The sizes a gang may have, where the site lets gangs change theirs.
    pub(crate) fn elastic_range(&self, request: &Request) -> Option<Elastic> {
        request.elastic().filter(|_| self.settings.elastic.is_allowed)
    }

    /// GPUs at the smallest size the gang accepts.
    pub(crate) fn smallest_gpus(&self, request: &Request) -> u64 {
        match self.elastic_range(request) {
            Some(elastic) => u64::from(elastic.min) * u64::from(request.roles[0].per_node.gpus),
            None => request.gpus(),
        }
    }

    fn beyond_quota(&self, request: &Request) -> Option<Never> {
        let queue = request.queue?;
        let kind = self.quota_kind(request);
        let (asked, most) = (self.smallest_gpus(request), self.settings.queues.most(queue, &kind));
        let name = self.settings.queues.name(queue).to_string();
        (asked > most).then_some(Never::BeyondQuota { asked, most, queue: name, kind })
    }

    fn beyond_nodes(&mut self, request: &Request) -> Option<Never> {
        let smallest = self.elastic_range(request).map(|elastic| elastic.min);
        let classes = self.classes_of(request);
        for class in &classes {
            // How long it takes has nothing to do with it.
            let class = Class { nodes: smallest.unwrap_or(class.nodes), length: Span::ZERO, ..*class };
            if !self.possible.contains_key(&class) {
                let never = self.too_few_nodes(&class);
                self.possible.insert(class, never);
            }
            if let Some(never) = &self.possible[&class] {
                return Some(never.clone());
            }
        }
        let is_mixed = classes.len() > 1;
        (is_mixed && !self.fits_empty_cluster(&classes)).then_some(Never::RolesDoNotFit)
    }

    fn too_few_nodes(&self, class: &Class) -> Option<Never> {
        let eligible = self.eligible.get(class.eligible);
        let fits = |node: u32| eligible[node as usize] && class.need_on(self.fleet.capacity(node)).is_some();
        let matching = (0..self.fleet.count()).filter(|node| fits(*node)).count() as u32;
        if matching < class.nodes {
            return Some(Never::NoSuchNodes { needed: class.nodes, per_node: class.need, matching });
        }
        self.level_too_small(class, class.nodes, &fits)
    }

    fn level_too_small(&self, class: &Class, needed: u32, fits: &dyn Fn(u32) -> bool) -> Option<Never> {
        let (level, segment) = match class.rule {
            Rule::OneSet { level } => (level, None),
            Rule::Segments { level, segment } => (level, Some(segment)),
            Rule::Anywhere | Rule::Spread { .. } => return None,
        };
        let sets = &self.fleet.levels()[usize::from(level)];
        let level = sets.level;
        let counts = sets.sets.iter().map(|set| set.clone().filter(|node| fits(*node)).count() as u32);
        match segment {
            None => {
                let largest = counts.max().unwrap_or(0);
                (largest < needed).then_some(Never::LevelTooSmall { level, needed, largest })
            }
            Some(segment) => {
                let (needed, possible) = (needed / segment, counts.map(|count| count / segment).sum());
                (possible < needed).then_some(Never::TooFewSegments { level, segment, needed, possible })
            }
        }
    }

    /// One class per role, at the size asked for.
    pub(crate) fn classes_of(&mut self, request: &Request) -> Vec<Class> {
        let partition = (request.partition, &self.settings.partitions[usize::from(request.partition.0)]);
        let mut classes = Vec::with_capacity(request.roles.len());
        for role in &request.roles {
            let eligible = self.eligible.find_or_add(&self.fleet, partition, role.kinds, &request.filter);
            classes.push(Class {
                eligible,
                nodes: role.nodes,
                need: role.per_node,
                is_exclusive: role.is_exclusive,
                length: rounded(request.time_limit, self.settings.backfill.resolution),
                rule: self.rule_of(request),
            });
        }
        classes
    }

    fn rule_of(&self, request: &Request) -> Rule {
        let index = |level: Level| {
            let found = self.fleet.levels().iter().position(|sets| sets.level >= level);
            found.unwrap_or(self.fleet.levels().len() - 1) as u8
        };
        match (request.closeness, request.segment, request.spread) {
            (Closeness::Required(level) | Closeness::Preferred(level), Some(segment), _) => {
                Rule::Segments { level: index(level), segment }
            }
            (Closeness::Required(level), None, _) if request.nodes() > 1 => {
                Rule::OneSet { level: index(level) }
            }
            (_, _, Some(level)) => Rule::Spread { level: index(level) },
            _ => Rule::Anywhere,
        }
    }

    /// What keeps a job that is not running out of the queue.
    pub(crate) fn blocked_by(&self, job: JobId, now: Time) -> Result<Option<Wait>, Never> {
        let request = &self.jobs[&job].request;
        if request.is_held {
            return Ok(Some(Wait::Held));
        }
        let mut waits_for = Vec::new();
        for dependency in &request.dependencies {
            match self.unmet(job, dependency)? {
                Unmet::Nothing => {}
                Unmet::Jobs(jobs) => waits_for.extend(jobs),
                Unmet::Namesake(behind) => return Ok(Some(Wait::Singleton { behind })),
            }
        }
        if !waits_for.is_empty() {
            return Ok(Some(Wait::Dependency { on: waits_for }));
        }
        Ok((request.begin > now).then_some(Wait::NotBefore { begin: request.begin }))
    }

    fn unmet(&self, job: JobId, dependency: &Dependency) -> Result<Unmet, Never> {
        if dependency.kind == DependencyKind::Singleton {
            let request = &self.jobs[&job].request;
            let first =
                self.namesakes.get(&(request.user, request.name.clone())).and_then(|jobs| jobs.first());
            return Ok(first
                .filter(|first| **first < job)
                .map_or(Unmet::Nothing, |first| Unmet::Namesake(*first)));
        }
        let mut waits_for = Vec::new();
        for on in &dependency.jobs {
            match (self.finished.get(on), dependency.kind) {
                (None, _) => waits_for.push(*on),
                (Some(Outcome::Succeeded), DependencyKind::AfterNotOk) => {
                    return Err(Never::DependencyFailed { on: *on });
                }
                (Some(Outcome::Succeeded), _)
                | (Some(_), DependencyKind::AfterAny | DependencyKind::AfterNotOk) => {}
                (Some(_), _) => return Err(Never::DependencyFailed { on: *on }),
            }
        }
        Ok(if waits_for.is_empty() { Unmet::Nothing } else { Unmet::Jobs(waits_for) })
    }

    /// What but resources keeps a queued gang of so many GPUs from starting now.
    pub(crate) fn limited_by(&self, job: JobId, gpus: u64) -> Option<Wait> {
        let request = &self.jobs[&job].request;
        let partition = &self.settings.partitions[usize::from(request.partition.0)];
        if !partition.is_up {
            return Some(Wait::PartitionDown { partition: partition.name.clone() });
        }
        self.ledger.broken_by(request, gpus, &self.settings).or_else(|| self.over_quota(request, gpus))
    }

    /// The quota that so many more GPUs would break; what another gang takes back is not there to borrow.
    pub(crate) fn over_quota(&self, request: &Request, asked: u64) -> Option<Wait> {
        let queue = request.queue?;
        let kind = self.quota_kind(request);
        let mut available = self.settings.queues.available(queue, &kind);
        if self.settings.queues.borrows(queue, &kind, asked) {
            let claims = self.claims.iter().filter(|(job, claim)| **job != request.id && claim.kind == kind);
            available = available.saturating_sub(claims.map(|(_, claim)| claim.gpus).sum());
        }
        let name = self.settings.queues.name(queue).to_string();
        (asked > available).then_some(Wait::Quota { queue: name, kind, asked, available })
    }

    pub(crate) fn take_quota(&mut self, job: JobId, gpus: u64) {
        let request = &self.jobs[&job].request;
        if let Some(queue) = request.queue {
            let kind = self.quota_kind(request);
            self.settings.queues.take(queue, &kind, gpus);
        }
    }

    pub(crate) fn give_quota(&mut self, job: JobId, gpus: u64) {
        let request = &self.jobs[&job].request;
        if let Some(queue) = request.queue {
            let kind = self.quota_kind(request);
            self.settings.queues.give(queue, &kind, gpus);
        }
    }

    /// The kind of GPU a job counts against: its accelerator where only one will do, else any.
    pub(crate) fn quota_kind(&self, request: &Request) -> String {
        let wanted =
            request.roles.iter().find(|role| role.per_node.gpus > 0).map_or(u64::MAX, |role| role.kinds);
        let kinds = self.fleet.cluster.kinds().iter().enumerate();
        let mut names = kinds
            .filter(|(at, _)| wanted & (1 << at.min(&63)) != 0)
            .filter_map(|(_, kind)| kind.accelerator.as_deref());
        let first = names.next();
        match first.filter(|first| names.all(|name| name == *first)) {
            Some(accelerator) => self.settings.queues.kind_of(accelerator).to_string(),
            None => ANY_GPU.to_string(),
        }
    }
}

enum Unmet {
    Nothing,
    Jobs(Vec<JobId>),
    Namesake(JobId),
}

/// Run times rounded up so that few different ones remain: to the resolution, and coarser the longer they
/// are. Usual limits (30 minutes, 4 hours, 7 days) stay what they are.
pub(crate) fn rounded(length: Span, resolution: Span) -> Span {
    if resolution == Span::ZERO || length >= Span::FOREVER {
        return length;
    }
    let unit = match length {
        short if short <= Span::hours(1) => Span::minutes(1),
        hours if hours <= Span::hours(6) => Span::minutes(5),
        days if days <= Span::days(2) => Span::minutes(30),
        _ => Span::hours(2),
    };
    length.round_up(unit.max(resolution))
}
