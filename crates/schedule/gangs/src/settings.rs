//! The site's rules: partitions, qualities of service, weights, depth of backfill, preemption.
//!
//! Every default is what a small cluster without an administrator wants.

use bedplate_topology::NodeId;

use crate::{Accounts, GangRequest, QosId, Queues, Span};

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Orders gangs that are equal in everything else.
    pub seed: u64,
    pub order: QueueOrder,
    pub weights: PriorityWeights,
    /// The first is the default.
    pub partitions: Vec<Partition>,
    /// The first is the default.
    pub qos: Vec<Qos>,
    pub accounts: Accounts,
    /// What queues are entitled to; the scheduler counts what they use by itself.
    pub queues: Queues,
    pub backfill: Backfill,
    pub packing: Packing,
    pub preemption: PreemptionRules,
    pub elastic: ElasticRules,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 0,
            order: QueueOrder::SmallestFirst,
            weights: PriorityWeights::default(),
            partitions: vec![Partition::named("main")],
            qos: vec![Qos::named("normal")],
            accounts: Accounts::default(),
            queues: Queues::default(),
            backfill: Backfill::default(),
            packing: Packing::Topology,
            preemption: PreemptionRules::default(),
            elastic: ElasticRules::default(),
        }
    }
}

impl Settings {
    /// Gangs go by arrival, of which short ones rise faster, and nearly every waiting gang holds a reservation. Starts are as predictable as they can be, and
    /// waits longer than with the default.
    pub fn by_arrival() -> Self {
        Self {
            order: QueueOrder::Arrival,
            weights: PriorityWeights { age: 1_000, expansion: 10_000, ..PriorityWeights::default() },
            backfill: Backfill::conservative(),
            ..Self::default()
        }
    }

    pub(crate) fn partition(&self, request: &GangRequest) -> &Partition {
        &self.partitions[usize::from(request.partition.0)]
    }

    pub(crate) fn qos(&self, request: &GangRequest) -> &Qos {
        &self.qos[usize::from(request.qos.0)]
    }
}

/// How waiting gangs of a tier are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueOrder {
    /// By the sum of [`PriorityWeights`], then by arrival.
    Arrival,
    /// By the sum of [`PriorityWeights`], then the smallest product of GPUs and the time that such gangs of the user took lately, or the limit where none
    /// has ended yet. Products shrink while gangs wait, so that large gangs have their turn: see [`PriorityWeights::ageing`]. Reservations go to the small ones
    /// ([`PriorityWeights::small_share`]), and of the others to the one whose turn came first: see [`Backfill::turn_within`].
    SmallestFirst,
    /// By a score that others have published, to compare with. Such an order knows neither QOS nor fair shares.
    Published(Score),
}

/// Orders from the literature, all by the limit that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// The shortest first (SJF).
    Shortest,
    /// The smallest product of limit and GPUs first (SAF).
    SmallestArea,
    /// By GPUs times the cube of the time waited over the limit (WFP3; Tang et al., 2009).
    WaitCubed,
    /// By GPUs times the logarithm of the limit and 870 times that of the time of submission (F1; Carastan-Santos and de Camargo, 2017).
    Fitted,
}

/// What each factor, a number from 0 to 1, is worth in points of priority. As Slurm's multifactor plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct PriorityWeights {
    pub age: i64,
    /// For the time waited over the time waited and asked for: short gangs rise fast, long ones slowly, and
    /// no gang waits a large multiple of what it asked for.
    pub expansion: i64,
    pub fair_share: i64,
    pub qos: i64,
    pub job_size: i64,
    pub partition: i64,
    /// The age at which the age factor reaches 1.
    pub oldest: Span,
    /// [`QueueOrder::SmallestFirst`]: the gang that waits longest counts as this many times smaller than it is; one that has waited half as long, the
    /// eighth root of it.
    pub ageing: u32,
    /// [`QueueOrder::SmallestFirst`]: the smallest gangs that together take this share of GPU time come first of their points, whatever waits how long.
    pub small_share: f64,
    /// … and those that take this share come before gangs of any points.
    pub tiny_share: f64,
    /// While no gang has waited this long, gangs age as if one had.
    pub patience: Span,
    /// A gang that has waited this long is passed by none of its points.
    pub longest_wait: Span,
    /// Usage counts half after this long.
    pub half_life: Span,
    /// Small gangs get the size points instead of large ones.
    pub favours_small: bool,
}

impl Default for PriorityWeights {
    fn default() -> Self {
        Self {
            age: 0,
            expansion: 0,
            fair_share: 0,
            qos: 10_000,
            job_size: 0,
            partition: 1_000,
            oldest: Span::days(7),
            ageing: 1_000,
            small_share: 0.2,
            tiny_share: 0.05,
            patience: Span::hours(8),
            longest_wait: Span::days(30),
            half_life: Span::days(7),
            favours_small: false,
        }
    }
}

/// A named part of the cluster with its own limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    pub name: String,
    /// Its nodes; all when absent.
    pub nodes: Option<Vec<NodeId>>,
    pub longest: Option<Span>,
    pub most_nodes: Option<u32>,
    /// For the partition factor, relative to the largest of all partitions.
    pub priority: u32,
    /// Gangs of a higher tier may preempt those of a lower one, and are considered first.
    pub tier: u16,
    pub is_up: bool,
}

impl Partition {
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            nodes: None,
            longest: None,
            most_nodes: None,
            priority: 1,
            tier: 1,
            is_up: true,
        }
    }
}

/// A quality of service: points of priority, and limits on what runs at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qos {
    pub name: String,
    /// For the QOS factor, relative to the largest of all.
    pub priority: u32,
    pub longest: Option<Span>,
    pub most_gpus_per_job: Option<u64>,
    pub most_gpus_per_user: Option<u64>,
    pub most_jobs_per_user: Option<u32>,
    /// Of all gangs of this QOS together.
    pub most_gpus: Option<u64>,
    /// Whose gangs it may preempt.
    pub preempts: Vec<QosId>,
}

impl Qos {
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            priority: 0,
            longest: None,
            most_gpus_per_job: None,
            most_gpus_per_user: None,
            most_jobs_per_user: None,
            most_gpus: None,
            preempts: Vec::new(),
        }
    }
}

/// How far gangs may start out of order without delaying others.
#[derive(Debug, Clone, PartialEq)]
pub struct Backfill {
    /// How many gangs hold reservations, in order of priority: 1 is EASY, all is conservative. With [`QueueOrder::SmallestFirst`] only small ones
    /// and the guarded one do.
    pub reserved: usize,
    /// [`QueueOrder::SmallestFirst`]: a gang's turn to be guarded comes once it has waited as long as it asks for, and at the latest after this long. Others may run
    /// for as long beside a guarded one of a shorter limit …
    pub turn_within: Span,
    /// … small gangs may move the start of a guarded one by this part of the wait that it had before it when its turn came …
    pub slack: f64,
    /// … and by this share of the cluster's GPU time in all.
    pub passing_share: f64,
    /// Whether gangs may start before earlier ones at all.
    pub overtakes: bool,
    /// Future reservations take whole nodes, as Slurm's do, instead of GPUs.
    pub whole_nodes: bool,
    /// Run times are rounded up to multiples of this when the future is planned.
    pub resolution: Span,
    /// Reservations are made anew once this many events have come for 100 waiting gangs …
    pub replan_percent: u32,
    /// … and at the latest after this long.
    pub replan_after: Span,
    /// Waiting gangs that a cycle looks at before it lets other events pass; the first ones, to whom reservations are due, are looked at together.
    pub cycle_slice: usize,
}

impl Default for Backfill {
    fn default() -> Self {
        Self {
            reserved: 16,
            turn_within: Span::hours(12),
            slack: 0.2,
            passing_share: 0.02,
            overtakes: true,
            whole_nodes: false,
            resolution: Span::minutes(1),
            replan_percent: 25,
            replan_after: Span::minutes(10),
            cycle_slice: usize::MAX,
        }
    }
}

impl Backfill {
    /// Strict order: no gang passes one that waits for resources.
    pub fn fifo() -> Self {
        Self { reserved: 1, overtakes: false, ..Self::default() }
    }

    /// All but those at the end of a very long queue are protected.
    pub fn conservative() -> Self {
        Self { reserved: 2_000, ..Self::default() }
    }

    /// Only the first waiting gang is protected.
    pub fn easy() -> Self {
        Self { reserved: 1, ..Self::default() }
    }
}

/// How nodes are chosen among those that will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// The closest set that fits, and of those the one that leaves large sets whole.
    Topology,
    /// The first nodes in order.
    FirstFit,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PreemptionRules {
    pub is_allowed: bool,
    /// Victims may hold at most this many times the GPUs that the gang needs.
    pub most_waste: f64,
    /// At most this many gangs are stopped for one.
    pub most_victims: usize,
    /// After its n-th restart a gang may not preempt for 2ⁿ times this.
    pub damping: Span,
    /// What a restart costs besides the work since the last checkpoint.
    pub restart_cost: Span,
}

impl Default for PreemptionRules {
    fn default() -> Self {
        Self {
            is_allowed: true,
            most_waste: 2.0,
            most_victims: 64,
            damping: Span::minutes(5),
            restart_cost: Span::minutes(10),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct ElasticRules {
    /// Whether elastic gangs change their size at all.
    pub is_allowed: bool,
    pub by: SizesBy,
    /// Another node must bring at least this share of what a node brings at the size asked for.
    pub least_gain: f64,
    /// Time an elastic gang gets to leave the nodes it grew into.
    pub leave_within: Span,
    /// A gang that changed its size keeps it this long.
    pub settle: Span,
    /// [`SizesBy::Goodput`]: how long a gang stands still when its size changes.
    pub pause: Span,
    /// [`SizesBy::Goodput`]: sizes maximise the sum of speeds to this power, or minimise it where it is negative. The smaller it is, the more slow
    /// gangs count; at 1 only the sum does.
    pub power: f64,
}

/// What decides on the sizes of elastic gangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizesBy {
    /// The request: gangs have the size they asked for, start smaller only where that ends earlier than waiting, and grow step by step
    /// while nodes idle.
    Request,
    /// Predicted throughput, shared out among all that run and wait.
    Goodput,
}

impl Default for ElasticRules {
    fn default() -> Self {
        Self {
            is_allowed: true,
            by: SizesBy::Request,
            least_gain: 0.5,
            leave_within: Span::seconds(30),
            settle: Span::minutes(10),
            pause: Span::minutes(1),
            power: -0.5,
        }
    }
}
