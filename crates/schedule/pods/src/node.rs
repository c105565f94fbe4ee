//! A node as the API server describes it.

use std::collections::BTreeMap;

use crate::Resources;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// GPUs that the machine has; those that are not allocatable are taken as broken.
    pub gpus: u32,
    pub allocatable: Resources,
    pub is_ready: bool,
    /// Cordoned: what runs stays, nothing new comes.
    pub is_cordoned: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

impl Node {
    /// The parts that the cluster's shape depends on; the rest may change without a new one.
    pub(crate) fn has_shape_of(&self, other: &Node) -> bool {
        self.labels == other.labels
            && self.taints == other.taints
            && self.gpus == other.gpus
            && self.allocatable.gpus == other.allocatable.gpus
            && self.is_ready == other.is_ready
            && self.is_cordoned == other.is_cordoned
    }
}
