//! The job itself.

use std::collections::BTreeMap;

use bedplate_breakdown::{Breakdown, Predicted};

use crate::{Array, Environment, Gang, HealthPolicy, Placement, PodSettings, Policy, Streams};

/// What a user wants to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    pub name: String,
    pub workload: Workload,
    pub gang: Gang,
    pub placement: Placement,
    pub policy: Policy,
    /// Where the processes start; the folder of submission when absent.
    pub working_directory: Option<String>,
    pub environment: Environment,
    pub streams: Streams,
    pub hooks: Hooks,
    pub health: HealthPolicy,
    pub labels: BTreeMap<String, String>,
    /// What only a Kubernetes cluster reads; others leave it alone, so that one job file serves all.
    pub kubernetes: PodSettings,
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

/// Command lines around the job, run once on each of its nodes. Empty means none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Before the first task starts. A node where it fails gets no task.
    pub prolog: Vec<String>,
    /// After the last task has ended, however it ended.
    pub epilog: Vec<String>,
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
            working_directory: None,
            environment: Environment::default(),
            streams: Streams::default(),
            hooks: Hooks::default(),
            health: HealthPolicy::default(),
            labels: BTreeMap::new(),
            kubernetes: PodSettings::default(),
            expected: None,
        }
    }

    /// The index of every task of the job's array, ascending; `None` for a job without one.
    pub fn array_indices(&self) -> Option<Vec<u32>> {
        self.policy.array.as_ref().map(Array::indices)
    }
}
