//! The job itself.

use std::collections::BTreeMap;

use bedplate_breakdown::{Breakdown, Predicted};

use crate::{Gang, Placement, Policy};

/// What somebody wants to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    pub name: String,
    pub workload: Workload,
    pub gang: Gang,
    pub placement: Placement,
    pub policy: Policy,
    pub environment: BTreeMap<String, String>,
    pub labels: BTreeMap<String, String>,
    /// The plan's prediction of one step. It travels with the job to placement and diagnosis.
    pub expected: Option<Breakdown<Predicted>>,
}

/// What runs on every node of the gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workload {
    /// A program and its arguments, started once per task.
    Command { arguments: Vec<String> },
    /// A shell script, started once on the first node, as `sbatch` does.
    Script { text: String },
    /// One of our own workloads (`train`, `serve`, …) with its configuration file.
    Native { kind: String, configuration: String },
}

impl Workload {
    pub fn command<S: Into<String>>(arguments: impl IntoIterator<Item = S>) -> Self {
        Self::Command { arguments: arguments.into_iter().map(Into::into).collect() }
    }
}

impl Job {
    /// A job with default placement and policy.
    pub fn new(name: impl Into<String>, workload: Workload, gang: Gang) -> Self {
        Self {
            name: name.into(),
            workload,
            gang,
            placement: Placement::default(),
            policy: Policy::default(),
            environment: BTreeMap::new(),
            labels: BTreeMap::new(),
            expected: None,
        }
    }
}
