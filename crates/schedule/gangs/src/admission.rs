//! May a job wait in the queue at all, and does anything but resources keep it from starting?

use bedplate_topology::Level;

use crate::scheduler::Scheduler;
use crate::view::{NodeSetRule, RequestClass};
use crate::{Closeness, Elastic, GangRequest, JobId, Never, RoleRequest, Span, Time, Wait};

impl Scheduler {
    /// Why a job can never run here, whatever else happens.
    pub fn never(&mut self, request: &GangRequest) -> Option<Never> {
        self.malformed(request)
            .map(|what| Never::Malformed { what: what.into() })
            .or_else(|| self.beyond_limits(request))
            .or_else(|| self.accounting.beyond_quota(request, self.smallest_gpus(request)))
            .or_else(|| self.beyond_nodes(request))
    }

    /// What is wrong with a request whatever the cluster and its rules are.
    pub(crate) fn malformed(&self, request: &GangRequest) -> Option<&'static str> {
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

    fn beyond_limits(&self, request: &GangRequest) -> Option<Never> {
        let partition = self.settings.partition(request);
        let qos = self.settings.qos(request);
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
    pub(crate) fn elastic_range(&self, request: &GangRequest) -> Option<Elastic> {
        request.elastic().filter(|_| self.settings.elastic.is_allowed)
    }

    /// GPUs at the smallest size the gang accepts.
    pub(crate) fn smallest_gpus(&self, request: &GangRequest) -> u64 {
        match self.elastic_range(request) {
            Some(elastic) => u64::from(elastic.min) * u64::from(request.roles[0].per_node.gpus),
            None => request.gpus(),
        }
    }

    pub(crate) fn beyond_nodes(&mut self, request: &GangRequest) -> Option<Never> {
        let smallest = self.elastic_range(request).map(|elastic| elastic.min);
        let classes = self.classes_of(request);
        for class in &classes {
            // How long it takes has nothing to do with it.
            let class = RequestClass { nodes: smallest.unwrap_or(class.nodes), length: Span::ZERO, ..*class };
            if let Some(never) = self.views.eligible.too_few_nodes(class, &self.fleet) {
                return Some(never);
            }
        }
        if classes.len() == 1 {
            return None;
        }
        let found = self.fleet.while_empty(|fleet| self.views.find_roles(&classes, fleet, Time::ZERO));
        found.is_err().then_some(Never::RolesDoNotFit)
    }

    /// One class per role, at the size asked for.
    pub(crate) fn classes_of(&mut self, request: &GangRequest) -> Vec<RequestClass> {
        let partition = (request.partition, self.settings.partition(request));
        let mut classes = Vec::with_capacity(request.roles.len());
        for role in &request.roles {
            let eligible =
                self.views.eligible.find_or_add(&self.fleet, partition, role.kinds, &request.filter);
            classes.push(RequestClass {
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

    fn rule_of(&self, request: &GangRequest) -> NodeSetRule {
        let index = |level: Level| {
            let found = self.fleet.levels().iter().position(|sets| sets.level >= level);
            found.unwrap_or(self.fleet.levels().len() - 1) as u8
        };
        // One that asks for a node may start with more.
        let most = request.elastic().map_or(request.nodes(), |elastic| elastic.max);
        match (request.closeness, request.segment, request.spread) {
            (Closeness::Required(level) | Closeness::Preferred(level), Some(segment), _) => {
                NodeSetRule::Segments { level: index(level), segment }
            }
            (Closeness::Required(level), None, _) if most > 1 => NodeSetRule::OneSet { level: index(level) },
            (_, _, Some(level)) => NodeSetRule::Spread { level: index(level) },
            _ => NodeSetRule::Anywhere,
        }
    }

    /// What keeps a job that is not running out of the queue.
    pub(crate) fn blocked_by(&self, job: JobId, now: Time) -> Result<Option<Wait>, Never> {
        let request = &self.jobs[job].request;
        if request.is_held {
            return Ok(Some(Wait::Held));
        }
        let too_early = (request.begin > now).then_some(Wait::NotBefore { begin: request.begin });
        Ok(self.dependencies.unmet(request)?.or(too_early))
    }

    /// What other than resources keeps a queued gang of `gpus` GPUs from starting now.
    pub(crate) fn limited_by(&self, job: JobId, gpus: u64) -> Option<Wait> {
        let request = &self.jobs[job].request;
        let partition = self.settings.partition(request);
        if !partition.is_up {
            return Some(Wait::PartitionDown { partition: partition.name.clone() });
        }
        self.accounting.broken_by(request, gpus, &self.settings)
    }
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
