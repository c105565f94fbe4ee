//! From a trace to the scheduler's input: the site's rules, and a request for every job.

use bedplate_gangs::{
    AccountId, Accounts, Amount, Expected, JobId, NodeShare, Partition, PartitionId, Qos, QosId, Request,
    RoleRequest, Scheduler, Settings, Span, UserId,
};
use bedplate_topology::{Cluster, NodeId};

use super::live::Pace;
use super::{Estimates, Names, Policy, Trace, TraceJob};

/// What all requests of a replay share.
#[derive(Debug)]
pub(crate) struct Workload<'a> {
    trace: &'a Trace,
    cluster: &'a Cluster,
    accounts: Vec<AccountId>,
    /// GPUs of the most common node.
    per_node: u16,
    /// The factor by which the furthest nodes have less bandwidth than neighbours.
    worst: f64,
    policy: Policy,
    estimates: Estimates,
    seed: u64,
}

impl<'a> Workload<'a> {
    /// The rules of the site under a policy, and the workload under them.
    pub(crate) fn new(
        trace: &'a Trace,
        cluster: &'a Cluster,
        policy: &Policy,
        estimates: Estimates,
        seed: u64,
    ) -> (Scheduler, Self) {
        let mut settings = Settings {
            seed,
            partitions: trace.partitions.iter().map(|name| Partition::named(or(name, "main"))).collect(),
            qos: qos_table(&trace.qos),
            ..policy.settings()
        };
        let mut tree = Accounts::default();
        let accounts =
            trace.accounts.iter().map(|name| tree.add(or(name, "nobody"), Accounts::ROOT, 1)).collect();
        settings.accounts = tree;
        let scheduler = Scheduler::new(cluster.clone(), settings);
        let worst = worst_slowdown(&scheduler);
        let per_node = usual_gpus(cluster);
        (scheduler, Self { trace, cluster, accounts, per_node, worst, policy: *policy, estimates, seed })
    }

    /// The request of the job at `index`.
    pub(crate) fn request(&self, index: usize, id: JobId) -> Request {
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
        Request {
            user: UserId(job.user),
            account: self.accounts[job.account as usize],
            partition: PartitionId(job.partition as u16),
            qos: QosId(job.qos as u16),
            nice: job.nice,
            time_limit: job.time_limit.unwrap_or_else(|| self.prescribed(job, index)),
            closeness: job.closeness,
            preemption: job.preemption,
            minimum_run_time: job.minimum_run_time,
            expected: self.policy.told(self.expected(job, nodes)),
            ..Request::new(id, role)
        }
    }

    /// The pace of a job on this many nodes, of which the furthest have `slower` times less bandwidth than
    /// neighbours.
    pub(crate) fn pace(&self, index: usize, nodes: u32, slower: f64) -> Pace {
        let job = &self.trace.jobs[index];
        let (asked, _) = job.size.shape(self.per_node);
        let size = f64::from(nodes) / f64::from(asked.max(1));
        let expected = self.expected(job, asked);
        let speed = expected.map_or(size, |expected| expected.speed(nodes, asked));
        let stretch = expected.filter(|_| nodes > 1).map_or(1.0, |expected| expected.stretch(slower));
        Pace { rate: speed / stretch, worth: job.gpus() * (size / speed).min(1.0) }
    }

    fn expected(&self, job: &TraceJob, nodes: u32) -> Option<Expected> {
        let matters = job.scale_out_share > 0.0 || job.fixed_share > 0.0;
        (nodes > 1 && matters)
            .then_some(Expected { scale_out_share: job.scale_out_share, fixed_share: job.fixed_share })
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

fn or<'a>(name: &'a str, otherwise: &'a str) -> &'a str {
    if name.is_empty() { otherwise } else { name }
}

/// QOS `high` comes before all others and may preempt `low`, which comes last.
fn qos_table(names: &Names) -> Vec<Qos> {
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

fn places<'a>(names: &'a Names, wanted: &'a str) -> impl Iterator<Item = QosId> + 'a {
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
