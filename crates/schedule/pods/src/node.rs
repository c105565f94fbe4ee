//! A node as the API server describes it.

use std::collections::BTreeMap;

use bedplate_finding::Action;

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
    /// Kept for gangs that have lost a node: nothing else starts there.
    pub is_spare: bool,
    /// What its conditions say is wrong with it.
    pub findings: Vec<NodeFinding>,
}

/// A finding about a node as far as its service goes, by whoever watches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFinding {
    /// Who found it, or by which rule.
    pub rule: String,
    pub summary: String,
    pub action: Action,
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
    /// The gravest of the findings for which it must not get anything new.
    pub(crate) fn gravest(&self) -> Option<&NodeFinding> {
        let grave = self.findings.iter().filter(|finding| finding.action.takes_node_out_of_service());
        grave.max_by_key(|finding| finding.action)
    }

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
