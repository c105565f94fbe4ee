//! What shall be done at the API server.

use bedplate_gangs::Span;

/// One request to the API server. Actions on different pods may be carried out in any order, at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodAction {
    /// Bind the pod; what came of it is reported by [`PodScheduler::bound`](crate::PodScheduler::bound).
    Bind { uid: String, namespace: String, pod: String, node: String },
    /// Delete the pod. What controls it makes it again.
    Evict { uid: String, namespace: String, pod: String, grace: Option<Span>, why: String },
    /// Let the node finish what it runs and take nothing new: cordoned and tainted, with the reason.
    TakeOut { node: String, why: String },
    /// A gang lacks room: nodes for all its waiting pods at once, the names of equal pods together. Asked again after a while.
    AskForNodes { gang: String, namespace: String, kinds: Vec<Vec<String>> },
    /// What a gang asked for is not needed any more.
    AskNoMore { gang: String, namespace: String },
    /// The pod waits: its condition PodScheduled becomes False with these words.
    Tell { uid: String, namespace: String, pod: String, waiting: Waiting },
}

/// The reason that autoscalers look for.
pub(crate) const UNSCHEDULABLE: &str = "Unschedulable";

/// The reason until nodes have been asked for, for the whole gang.
pub(crate) const ASKS_FOR_NODES: &str = "AsksForNodes";

/// Why a pod is not bound, as its condition says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// `Unschedulable` where new nodes would help, which is what autoscalers look for; another word where they would not.
    pub reason: &'static str,
    pub message: String,
}

/// Something that whoever runs the cluster should know, and the node that it is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SchedulerRemark {
    pub text: String,
    pub node: Option<String>,
}

/// What came of binding a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindOutcome {
    Done,
    /// The server says no: the pod is gone, or may not be bound.
    Refused,
    /// Nobody knows whether it was done; a conflict may be with our own binding of a moment ago.
    Unknown,
}
