//! From the job format to a request: every name looked up, with the nearest one when it is not there.

use std::sync::Arc;

use bedplate_job::{Job, Role, Workload};
use bedplate_topology::{Cluster, NodeId};

use crate::{
    AccountId, Amount, Expected, GangDependency, GangRequest, JobId, Never, NodeFilter, PartitionId, QosId,
    RoleRequest, Settings, Span, UserId,
};

/// What a job without a time limit gets.
const DEFAULT_LIMIT: Span = Span::days(1);

impl GangRequest {
    /// What a job asks for on this cluster under these rules.
    ///
    /// Its dependencies must name jobs by number. Arrays are the caller's: one request for each task. So is
    /// `begin`: what a job says about its start needs the caller's clock.
    pub fn from_job(
        id: JobId,
        job: &Job,
        user: UserId,
        cluster: &Cluster,
        settings: &Settings,
    ) -> Result<Self, Never> {
        if let Some(flaw) = job.flaws().first() {
            return Err(Never::Malformed { what: flaw.to_string() });
        }
        let policy = &job.policy;
        let placement = &job.placement;
        let partition = find(
            "partition",
            policy.partition.as_deref(),
            settings.partitions.iter().map(|each| &each.name[..]),
        )?;
        let qos = find("QOS", policy.qos.as_deref(), settings.qos.iter().map(|each| &each.name[..]))?;
        let account = find("account", policy.account.as_deref(), settings.accounts.names())?;
        let roles: Result<Vec<RoleRequest>, Never> =
            job.gang.roles.iter().map(|role| role_request(role, cluster)).collect();
        let mut dependencies = Vec::new();
        for dependency in &policy.dependencies {
            let jobs: Result<Vec<JobId>, Never> =
                dependency.jobs.iter().map(|name| job_number(name)).collect();
            dependencies.push(GangDependency { kind: dependency.kind, jobs: jobs? });
        }
        Ok(Self {
            name: Arc::from(job.name.as_str()),
            user,
            account: AccountId(account as u32),
            partition: PartitionId(partition as u16),
            qos: QosId(qos as u16),
            queue: settings.queues.find(settings.accounts.name(AccountId(account as u32))),
            site_priority: policy.priority,
            nice: policy.nice.into(),
            roles: roles?,
            time_limit: policy.time_limit.map_or(DEFAULT_LIMIT, Span::from),
            grace: policy.grace.into(),
            closeness: placement.closeness,
            segment: placement.segment,
            spread: placement.spread,
            filter: NodeFilter {
                only: node_ids(&placement.only_nodes, cluster)?,
                avoid: node_ids(&placement.avoid_nodes, cluster)?,
                features: placement.features.clone(),
            },
            is_held: policy.is_held,
            is_requeued: policy.is_requeued,
            survives: policy.survives && !matches!(job.workload, Workload::Script { .. }),
            retries: policy.retries,
            dependencies,
            preemption: policy.preemption,
            minimum_run_time: policy.minimum_run_time.into(),
            expected: job.expected.as_ref().map(Expected::from_breakdown),
            ..Self::new(id, RoleRequest::new(1, 0))
        })
    }
}

fn role_request(role: &Role, cluster: &Cluster) -> Result<RoleRequest, Never> {
    let kinds = match &role.accelerator {
        None => u64::MAX,
        Some(name) => kinds_with(name, cluster)?,
    };
    let cpus = role.cpus_per_task.saturating_mul(role.tasks_per_node).min(u32::from(u16::MAX));
    let memory = role.memory_per_node.map_or(0.0, |bytes| (bytes.get() / 1_048_576.0).ceil());
    let gpus = u16::try_from(role.gpus_per_node)
        .map_err(|_| Never::Malformed { what: format!("{} GPUs per node", role.gpus_per_node) })?;
    Ok(RoleRequest {
        nodes: role.nodes,
        per_node: Amount { gpus, cpus: cpus as u16, memory_mib: memory.min(f64::from(u32::MAX)) as u32 },
        gpu_share: role.gpu_share.filter(|share| *share < 1000),
        kinds,
        is_exclusive: role.is_exclusive,
        elastic: role.elastic,
    })
}

/// The kinds of nodes with this accelerator, as bits.
fn kinds_with(accelerator: &str, cluster: &Cluster) -> Result<u64, Never> {
    let names = || cluster.kinds().iter().filter_map(|kind| kind.accelerator.as_deref());
    let is_it = |name: Option<&str>| name.is_some_and(|name| name.eq_ignore_ascii_case(accelerator));
    let kinds = cluster.kinds().iter().enumerate().filter(|(_, kind)| is_it(kind.accelerator.as_deref()));
    let mask = kinds.fold(0, |mask, (at, _)| mask | 1 << at.min(63));
    if mask == 0 { Err(unknown("accelerator", accelerator, names())) } else { Ok(mask) }
}

fn node_ids(names: &[String], cluster: &Cluster) -> Result<Vec<NodeId>, Never> {
    let id = |name: &String| {
        let all = || cluster.nodes().iter().map(|id| cluster.node(id).name());
        cluster.find_node(name).ok_or_else(|| unknown("node", name, all()))
    };
    names.iter().map(id).collect()
}

fn job_number(name: &str) -> Result<JobId, Never> {
    name.parse().map(JobId).map_err(|_| Never::UnknownName { what: "job", name: name.into(), nearest: None })
}

/// The place of a name in a list; the first where none is given.
fn find<'a>(
    what: &'static str,
    name: Option<&str>,
    mut names: impl Iterator<Item = &'a str> + Clone,
) -> Result<usize, Never> {
    let Some(name) = name else {
        return Ok(0);
    };
    let all = names.clone();
    names.position(|each| each == name).ok_or_else(|| unknown(what, name, all))
}

fn unknown<'a>(what: &'static str, name: &str, names: impl Iterator<Item = &'a str>) -> Never {
    let nearest = bedplate_diag::nearest(name, names).map(str::to_string);
    Never::UnknownName { what, name: name.to_string(), nearest }
}
