//! What a job asks of the scheduler: the job format with every name resolved to a number.
//!
//! `intake` makes requests from jobs; the replay of traces makes them directly.

use std::sync::Arc;

use bedplate_breakdown::{Breakdown, Part, Predicted};
use bedplate_topology::{Level, NodeId};

pub use bedplate_job::{Closeness, DependencyKind, Elastic, Preemption};

use crate::{Amount, Rates, Span, Time};

macro_rules! number {
    ($($(#[$doc:meta])* $name:ident($inner:ty)),*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);
    )*};
}

number! {
    /// Given by the caller, never used twice.
    JobId(u64),
    UserId(u32),
    /// A place in [`Accounts`](crate::Accounts).
    AccountId(u32),
    /// A place in [`Settings::partitions`](crate::Settings).
    PartitionId(u16),
    /// A place in [`Settings::qos`](crate::Settings).
    QosId(u16),
    /// A place in [`Queues`](crate::Queues).
    QueueId(u16)
}

/// Reasons name jobs as people and programs do: by texts, of which an array's `12_3` is one.
impl serde::Serialize for JobId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl std::fmt::Display for JobId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "job {}", self.0)
    }
}

/// One gang as the scheduler sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct GangRequest {
    pub id: JobId,
    pub name: Arc<str>,
    pub user: UserId,
    pub account: AccountId,
    pub partition: PartitionId,
    pub qos: QosId,
    /// The quota it counts against; none where the site has no quotas.
    pub queue: Option<QueueId>,
    /// Added to the priority as it is.
    pub site_priority: i64,
    pub nice: i64,
    pub roles: Vec<RoleRequest>,
    pub time_limit: Span,
    /// Between the signal to stop and the kill.
    pub grace: Span,
    pub closeness: Closeness,
    /// Nodes per block that must share the closeness level.
    pub segment: Option<u32>,
    /// Put the nodes in different sets of this level instead.
    pub spread: Option<Level>,
    pub filter: NodeFilter,
    /// Not before this.
    pub begin: Time,
    pub is_held: bool,
    /// Whether it comes back after the loss of a node.
    pub is_requeued: bool,
    /// Whether its ranks go on by themselves without a node that is lost.
    pub survives: bool,
    /// How often it comes back after a failure of its own.
    pub retries: u32,
    pub dependencies: Vec<GangDependency>,
    pub array: Option<ArrayTask>,
    pub preemption: Preemption,
    pub minimum_run_time: Span,
    /// What the plan says about its communication; placements are compared by it.
    pub expected: Option<Expected>,
    /// Predicted throughput by size; where absent it follows from `expected`.
    pub rates: Option<Rates>,
    /// What became of it before this scheduler heard of it; it is new when absent.
    pub history: Option<History>,
}

impl GangRequest {
    /// One role, on defaults: the first partition and account, no quota, one day.
    pub fn new(id: JobId, role: RoleRequest) -> Self {
        Self {
            id,
            name: Arc::from(""),
            user: UserId::default(),
            account: AccountId::default(),
            partition: PartitionId::default(),
            qos: QosId::default(),
            queue: None,
            site_priority: 0,
            nice: 0,
            roles: vec![role],
            time_limit: Span::days(1),
            grace: Span::seconds(30),
            closeness: Closeness::Any,
            segment: None,
            spread: None,
            filter: NodeFilter::default(),
            begin: Time::ZERO,
            is_held: false,
            is_requeued: true,
            survives: false,
            retries: 0,
            dependencies: Vec::new(),
            array: None,
            preemption: Preemption::Requeue,
            minimum_run_time: Span::ZERO,
            expected: None,
            rates: None,
            history: None,
        }
    }

    pub fn nodes(&self) -> u32 {
        self.roles.iter().fold(0, |sum, role| sum.saturating_add(role.nodes))
    }

    /// GPUs at the size asked for; a shared GPU counts as one.
    pub fn gpus(&self) -> u64 {
        self.roles.iter().map(RoleRequest::gpus).sum()
    }

    /// Throughput with `nodes` nodes over that with the number asked for; proportional without a prediction.
    pub fn speed(&self, nodes: u32) -> f64 {
        let asked = self.nodes();
        match (&self.rates, &self.expected) {
            (Some(rates), _) => rates.speed(nodes, asked),
            (None, Some(expected)) => expected.speed(nodes, asked),
            (None, None) => f64::from(nodes) / f64::from(asked.max(1)),
        }
    }

    /// The speed by which its time limit runs: at most in proportion to the nodes, and not below 1 with as many as asked for or above 1 with
    /// fewer. So a prediction that is wrong takes no time from a gang that asked for it.
    pub(crate) fn limit_speed(&self, nodes: u32) -> f64 {
        let scale = f64::from(nodes) / f64::from(self.nodes().max(1));
        let speed = self.speed(nodes);
        if scale < 1.0 { speed.min(1.0) } else { speed.clamp(1.0, scale) }
    }

    /// The elastic range, which only a gang of a single role can have.
    pub fn elastic(&self) -> Option<Elastic> {
        match &self.roles[..] {
            [role] => role.elastic,
            _ => None,
        }
    }
}

/// What an earlier scheduler knew of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// Its age counts from here.
    pub submitted: Time,
    /// When it last came back to the queue.
    pub returned: Time,
    /// Restarts after failures and losses, not after preemption.
    pub restarts: u32,
    /// Gangs that stop for it.
    pub victims: Vec<JobId>,
    /// Whether quota is kept for it that its queue took back.
    pub has_claim: bool,
}

impl History {
    /// A job that has done nothing but wait.
    pub fn since(submitted: Time) -> Self {
        Self { submitted, returned: submitted, restarts: 0, victims: Vec::new(), has_claim: false }
    }
}

/// A number of equal nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleRequest {
    pub nodes: u32,
    pub per_node: Amount,
    /// Thousandths of one GPU, for a role of one node and one GPU that shares it with others.
    pub gpu_share: Option<u16>,
    /// One bit for every kind of node in the cluster that will do.
    pub kinds: u64,
    /// Nothing else may run on its nodes.
    pub is_exclusive: bool,
    pub elastic: Option<Elastic>,
}

impl RoleRequest {
    /// `nodes` nodes of any kind with `gpus` GPUs each.
    pub fn new(nodes: u32, gpus: u16) -> Self {
        Self {
            nodes,
            per_node: Amount::gpus(gpus),
            gpu_share: None,
            kinds: u64::MAX,
            is_exclusive: false,
            elastic: None,
        }
    }

    pub fn gpus(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.per_node.gpus)
    }
}

/// Which nodes are out of the question whatever they hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeFilter {
    /// All nodes when empty.
    pub only: Vec<NodeId>,
    pub avoid: Vec<NodeId>,
    pub features: Vec<String>,
}

/// A job waits until those it depends on are known to have ended. One that was never submitted never ends: the
/// caller checks that the named jobs exist, or the job waits until it is cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangDependency {
    pub kind: DependencyKind,
    /// Empty for a singleton.
    pub jobs: Vec<JobId>,
}

/// A task of an array: which, and how many of its siblings may run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrayTask {
    pub array: JobId,
    pub at_once: Option<u32>,
}

/// The part of a predicted step that placement and size can change.
///
/// The prediction is for the size asked for, with all nodes as close as they can be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// Share of the step spent waiting for messages between nodes.
    pub scale_out_share: f64,
    /// Share of the step that does not shrink when nodes are added.
    pub fixed_share: f64,
}

impl Expected {
    /// What a predicted breakdown says: messages between nodes and the optimizer's share of storage and
    /// host work do not shrink with more nodes; the rest of the step does.
    pub fn from_breakdown(step: &Breakdown<Predicted>) -> Self {
        let scale_out_share = step.share(Part::ScaleOut);
        let fixed = [Part::ScaleOut, Part::Bubble, Part::Storage, Part::Host, Part::Other];
        Self { scale_out_share, fixed_share: fixed.iter().map(|part| step.share(*part)).sum() }
    }

    /// How much longer a step takes when messages have `slower` times less bandwidth.
    pub fn stretch(&self, slower: f64) -> f64 {
        1.0 + self.scale_out_share * (slower - 1.0)
    }

    /// Throughput at `nodes` nodes over that at `asked` nodes.
    pub fn speed(&self, nodes: u32, asked: u32) -> f64 {
        let shrinking = 1.0 - self.fixed_share;
        let scale = f64::from(nodes) / f64::from(asked.max(1));
        scale / (shrinking + self.fixed_share * scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_run_no_faster_than_in_proportion_and_not_below_the_size_asked_for() {
        let check = |points: &[(u32, f64)], expected: [f64; 3]| {
            let rates = Some(Rates::new(points.to_vec()).expect("a curve"));
            let request = GangRequest { rates, ..GangRequest::new(JobId(1), RoleRequest::new(4, 8)) };
            assert_eq!([2, 4, 8].map(|nodes| request.limit_speed(nodes)), expected, "{points:?}");
        };
        check(&[(2, 0.5), (4, 1.0), (8, 1.5)], [0.5, 1.0, 1.5]);
        check(&[(2, 5.0), (4, 1.0), (8, 100.0)], [1.0, 1.0, 2.0]);
        check(&[(2, 0.1), (4, 1.0), (8, 0.5)], [0.1, 1.0, 1.0]);
    }
}
