//! A pod as far as its place matters.

use bedplate_gangs::{Closeness, Span, Time};

use crate::{Constraints, Resources};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Whether it asks for this scheduler; other pods only take room.
    pub is_ours: bool,
    /// The gang that it starts with, unique in the cluster. A pod alone is a gang of its own.
    pub gang: String,
    /// What its gang is an attempt of: the same for all attempts.
    pub job: String,
    /// How many pods the gang has; nothing where that is not known yet.
    pub gang_size: Option<u32>,
    /// Its place in the gang: pods next to each other in this order get nodes next to each other.
    pub rank: (u32, u32),
    pub created: Time,
    pub needs: Resources,
    pub constraints: Constraints,
    pub policy: GangPolicy,
    pub node: Option<String>,
    /// Where its own scheduler has made room for it, of a pod that is not ours.
    pub nominated: Option<String>,
    /// When it was bound, where that is known.
    pub bound_at: Option<Time>,
    pub phase: PodPhase,
    /// When its containers had ended, where that is known.
    pub ended_at: Option<Time>,
    /// It was stopped from outside: that it failed says nothing about it.
    pub is_disrupted: bool,
    /// It was told to go.
    pub is_leaving: bool,
    /// Not to be scheduled yet.
    pub is_gated: bool,
    /// What it asks for that is not honoured here, in words.
    pub unsupported: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodPhase {
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// The rules under which a gang runs. The first pod of a gang speaks for all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GangPolicy {
    /// The gang is stopped after this. Without it plans count on the site's limit or a day, and nothing is stopped.
    pub time_limit: Option<Span>,
    pub partition: Option<String>,
    pub qos: Option<String>,
    pub account: Option<String>,
    pub user: String,
    pub closeness: Closeness,
    pub is_preemptible: bool,
    /// The number of its PriorityClass.
    pub priority: i32,
    pub grace: Span,
}

impl Pod {
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// Whether it takes room on a node.
    pub(crate) fn takes_resources(&self) -> bool {
        self.node.is_some() && !self.has_ended()
    }
}
