//! From a trace to the scheduler's input: the site's rules, and a request for every job.

use bedplate_gangs::{
    AccountId, Accounts, Amount, Expected, GangRequest, JobId, NodeShare, Partition, PartitionId, Qos, QosId,
    QueueId, Rates, RoleRequest, Scheduler, Settings, Span, UserId,
};
use bedplate_random::Random;
use bedplate_topology::{Cluster, NodeId};

use super::live::GangPace;
use super::{Estimates, Replay, ReplayPolicy, Trace, TraceJob, TraceNames};

/// Separates these draws from others of the same seed.
const PREDICTION_STREAM: u64 = 0x7072_6564_6963_7465;

/// What all requests of a replay share.
#[derive(Debug)]
pub(crate) struct ReplayWorkload<'a> {
    trace: &'a Trace,
    cluster: &'a Cluster,
    /// The scheduler's number of each account, queue, partition and QOS that the trace names.
    names: Resolved,
    /// GPUs of the most common node.
    per_node: u16,
    /// The factor by which the furthest nodes have less bandwidth than neighbours.
    worst: f64,
    policy: ReplayPolicy,
    estimates: Estimates,
    prediction_error: f64,
    seed: u64,
}

#[derive(Debug)]
struct Resolved {
    accounts: Vec<AccountId>,
    queues: Vec<Option<QueueId>>,
    partitions: Vec<PartitionId>,
    qos: Vec<QosId>,
}

impl<'a> ReplayWorkload<'a> {
    /// The scheduler under the policy or the site's rules, and the workload for it.
    pub(crate) fn new(trace: &'a Trace, cluster: &'a Cluster, replay: &Replay) -> (Scheduler, Self) {
        let (settings, names) = match &replay.site {
            None => of_trace(trace, replay.policy.settings()),
            Some(site) => of_site(trace, site.clone()),
        };
        let scheduler = Scheduler::new(cluster.clone(), Settings { seed: replay.seed, ..settings });
        let worst = worst_slowdown(&scheduler);
        let per_node = usual_gpus(cluster);
        let Replay { policy, estimates, prediction_error, seed, .. } = *replay;
        let workload =
            Self { trace, cluster, names, per_node, worst, policy, estimates, prediction_error, seed };
        (scheduler, workload)
    }

    /// The request of the job at `index`.
    pub(crate) fn request(&self, index: usize, id: JobId) -> GangRequest {
        let job = &self.trace.jobs[index];
        let (nodes, gpus) = job.size.shape(self.per_node);
        let role = RoleRequest {
            per_node: Amount { gpus, cpus: job.cpus_per_node, memory_mib: job.memory_mib_per_node },
            gpu_share: job.gpu_share,
            kinds: self.kinds(&job.accelerators),
            is_exclusive: job.is_exclusive,
            elastic: job.elastic,
            ..RoleRequest::new(nodes, gpus)
        };
        GangRequest {
            user: UserId(job.user),
            account: self.names.accounts[job.account as usize],
            queue: self.names.queues[job.account as usize],
            partition: self.names.partitions[job.partition as usize],
            qos: self.names.qos[job.qos as usize],
            nice: job.nice,
            time_limit: self.limit(index),
            closeness: job.closeness,
            preemption: job.preemption,
            minimum_run_time: job.minimum_run_time,
            expected: self.policy.told(self.expected(job, nodes)),
            rates: self.policy.told_rates(self.predicted_rates(index)),
            ..GangRequest::new(id, role)
        }
    }

    /// The pace of a job on this many nodes, of which the furthest have `slower` times less bandwidth than
    /// neighbours.
    pub(crate) fn pace(&self, index: usize, nodes: u32, slower: f64) -> GangPace {
        let job = &self.trace.jobs[index];
        let (asked, _) = job.size.shape(self.per_node);
        let size = f64::from(nodes) / f64::from(asked.max(1));
        let expected = self.expected(job, asked);
        let by_share = || expected.map_or(size, |expected| expected.speed(nodes, asked));
        let speed = job.rates.as_ref().map_or_else(by_share, |rates| rates.speed(nodes, asked));
        let stretch = expected.filter(|_| nodes > 1).map_or(1.0, |expected| expected.stretch(slower));
        GangPace { rate: speed / stretch, worth: job.gpus() * (size / speed).min(1.0) }
    }

    fn expected(&self, job: &TraceJob, nodes: u32) -> Option<Expected> {
        let matters = job.scale_out_share > 0.0 || job.fixed_share > 0.0;
        (nodes > 1 && matters)
            .then_some(Expected { scale_out_share: job.scale_out_share, fixed_share: job.fixed_share })
    }

    /// What the scheduler takes a job's throughput to be. Each point of the curve is off by a factor of its own, log-normal
    /// and the same for every policy.
    fn predicted_rates(&self, index: usize) -> Option<Rates> {
        let rates = self.trace.jobs[index].rates.clone()?;
        if self.prediction_error == 0.0 {
            return Some(rates);
        }
        let mut random = Random::stream(self.seed ^ PREDICTION_STREAM, index as u64);
        Some(rates.off_by(|| (self.prediction_error * random.normal()).exp()))
    }

    /// What the scheduler is told: the limit of the user, that of an earlier replay, or one assigned here.
    pub(crate) fn limit(&self, index: usize) -> Span {
        let job = &self.trace.jobs[index];
        job.time_limit.or(job.assigned_limit).unwrap_or_else(|| self.prescribed(job, index))
    }

    /// The limit assigned to a job without one. An elastic gang pays for changes of its size, which
    /// even an exact estimate must leave room for.
    fn prescribed(&self, job: &TraceJob, index: usize) -> Span {
        let (nodes, _) = job.size.shape(self.per_node);
        let stretch = self.expected(job, nodes).map_or(1.0, |expected| expected.stretch(self.worst));
        let resizing = if job.elastic.is_some() { Span::minutes(30) } else { Span::ZERO };
        self.estimates.limit(job.duration.times(stretch) + resizing, self.seed, index)
    }

    /// Kinds of nodes that have one of the named GPUs, or have that name themselves.
    fn kinds(&self, accelerators: &[String]) -> u64 {
        if accelerators.is_empty() {
            return u64::MAX;
        }
        let is_named = |name: &str, kind: &str| {
            kind.eq_ignore_ascii_case(name)
                || kind.len() > name.len() + 1
                    && kind.is_char_boundary(name.len())
                    && kind[..name.len()].eq_ignore_ascii_case(name)
                    && kind[name.len()..].starts_with("-x")
        };
        let mut mask = 0;
        for (place, kind) in self.cluster.kinds().iter().enumerate() {
            let names = [Some(kind.name.as_str()), kind.accelerator.as_deref()];
            let will_do = |name: &String| names.iter().flatten().any(|kind| is_named(name, kind));
            if accelerators.iter().any(will_do) {
                mask |= 1 << place.min(63);
            }
        }
        mask
    }
}

/// GPU milliseconds of the jobs that a cluster can run.
pub(crate) fn possible_work(trace: &Trace, cluster: &Cluster) -> f64 {
    let (mut scheduler, workload) = ReplayWorkload::new(trace, cluster, &Replay::new(ReplayPolicy::EASY));
    let can_run = |index: usize| scheduler.never(&workload.request(index, JobId(index as u64))).is_none();
    let possible: Vec<bool> = (0..trace.jobs.len()).map(can_run).collect();
    trace.jobs.iter().zip(possible).filter(|(_, can_run)| *can_run).map(|(job, _)| job.gpu_time()).sum()
}

/// The trace with a limit for every job, so that another replay of it plans with the same.
pub fn with_limits(trace: &Trace, cluster: &Cluster, estimates: Estimates, seed: u64) -> Trace {
    let replay = Replay { estimates, seed, ..Replay::new(ReplayPolicy::EASY) };
    let (_, workload) = ReplayWorkload::new(trace, cluster, &replay);
    let mut limited = trace.clone();
    for (index, job) in limited.jobs.iter_mut().enumerate().filter(|(_, job)| job.time_limit.is_none()) {
        job.assigned_limit = Some(workload.limit(index));
    }
    limited
}

/// A policy's rules with the names of the trace.
fn of_trace(trace: &Trace, settings: Settings) -> (Settings, Resolved) {
    let mut tree = Accounts::default();
    let accounts: Vec<AccountId> =
        trace.accounts.iter().map(|name| tree.add(or(name, "nobody"), Accounts::ROOT, 1)).collect();
    let names = Resolved {
        queues: vec![None; accounts.len()],
        accounts,
        partitions: (0..trace.partitions.iter().len()).map(|place| PartitionId(place as u16)).collect(),
        qos: (0..trace.qos.iter().len()).map(|place| QosId(place as u16)).collect(),
    };
    let settings = Settings {
        partitions: trace.partitions.iter().map(|name| Partition::named(or(name, "main"))).collect(),
        qos: qos_table(&trace.qos),
        accounts: tree,
        ..settings
    };
    (settings, names)
}

/// A site's own rules. Partitions and QOS of the trace that it does not have are its first ones; accounts that it does not have are put below the
/// root, so that users are still told apart.
fn of_site(trace: &Trace, mut site: Settings) -> (Settings, Resolved) {
    let place =
        |names: Vec<&str>, name: &str| names.iter().position(|each| *each == name).unwrap_or(0) as u16;
    let partitions = || site.partitions.iter().map(|each| &each.name[..]).collect();
    let qos = || site.qos.iter().map(|each| &each.name[..]).collect();
    let partition_ids = trace.partitions.iter().map(|name| PartitionId(place(partitions(), name))).collect();
    let qos_ids = trace.qos.iter().map(|name| QosId(place(qos(), name))).collect();
    let mut accounts = Vec::new();
    for name in trace.accounts.iter() {
        let known = if name.is_empty() { Some(Accounts::ROOT) } else { site.accounts.find(name) };
        accounts.push(known.unwrap_or_else(|| site.accounts.add(name, Accounts::ROOT, 1)));
    }
    let queues = accounts.iter().map(|account| site.queues.find(site.accounts.name(*account))).collect();
    let names = Resolved { accounts, queues, partitions: partition_ids, qos: qos_ids };
    (site, names)
}

fn or<'a>(name: &'a str, otherwise: &'a str) -> &'a str {
    if name.is_empty() { otherwise } else { name }
}

/// QOS `high` comes before all others and may preempt `low`, which comes last.
fn qos_table(names: &TraceNames) -> Vec<Qos> {
    let low: Vec<QosId> = places(names, "low").collect();
    let row = |name: &str| {
        let (priority, preempts) = match name {
            "high" => (2, low.clone()),
            "low" => (0, Vec::new()),
            _ => (1, Vec::new()),
        };
        Qos { priority, preempts, ..Qos::named(or(name, "normal")) }
    };
    names.iter().map(row).collect()
}

fn places<'a>(names: &'a TraceNames, wanted: &'a str) -> impl Iterator<Item = QosId> + 'a {
    names.iter().zip(0..).filter(move |(name, _)| *name == wanted).map(|(_, place)| QosId(place))
}

fn worst_slowdown(scheduler: &Scheduler) -> f64 {
    let share = |node| NodeShare { node: NodeId(node), role: 0, devices: 0 };
    let last = scheduler.cluster().node_count().saturating_sub(1);
    scheduler.slowdown_across(&[share(0), share(last)])
}

/// The number of GPUs that most nodes with GPUs have.
fn usual_gpus(cluster: &Cluster) -> u16 {
    let mut counts = std::collections::BTreeMap::new();
    for node in cluster.nodes().iter() {
        *counts.entry(cluster.node(node).kind().accelerators).or_insert(0u32) += 1;
    }
    counts.remove(&0);
    let usual = counts.into_iter().max_by_key(|(gpus, count)| (*count, *gpus));
    usual.map_or(1, |(gpus, _)| gpus.min(64) as u16)
}
