//! What makes a job impossible before any cluster has been looked at.

use bedplate_units::Seconds;

use crate::{Closeness, DependencyKind, Job, Role, Workload};

/// Limits against slips of the keyboard; far above what anybody runs.
const MOST_NODES: u32 = 1_000_000;
const MOST_ARRAY_TASKS: u64 = 1_000_000;

/// A reason for which a job can never run. Messages name the role or field.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Flaw {
    #[error("the job has no name")]
    NoName,
    #[error("the job has nothing to run")]
    NothingToRun,
    #[error("the gang has no roles")]
    NoRoles,
    #[error("two roles are called `{role}`")]
    SameRoleTwice { role: String },
    #[error("role `{role}` asks for {nodes} nodes; ask for 1 to {MOST_NODES}")]
    NodeCount { role: String, nodes: u32 },
    #[error("role `{role}` has no tasks on its nodes")]
    NoTasks { role: String },
    #[error("role `{role}` names the accelerator `{accelerator}` but asks for no GPUs")]
    AcceleratorWithoutGpus { role: String, accelerator: String },
    #[error("role `{role}` may have {min} to {max} nodes in steps of {step}, and {nodes} is none of these")]
    NotAnElasticSize { role: String, nodes: u32, min: u32, max: u32, step: u32 },
    #[error("the time limit is zero")]
    NoTime,
    #[error("the checkpoint signal comes {before} before the end, but the whole job may take {limit}")]
    SignalBeforeStart { before: Seconds, limit: Seconds },
    #[error("the array has {count} tasks; it may have 1 to {MOST_ARRAY_TASKS}")]
    ArraySize { count: u64 },
    #[error("a dependency names no job to wait for")]
    DependencyOnNothing,
    #[error("segments of {segment} nodes do not divide the {nodes} nodes of the gang")]
    SegmentDoesNotDivide { segment: u32, nodes: u64 },
    #[error("segments need a level to lie in; set a required or preferred one")]
    SegmentWithoutLevel,
    #[error("node `{node}` is both asked for and to be avoided")]
    NodeWantedAndAvoided { node: String },
}

impl Job {
    /// Everything that keeps the job from ever running, whatever the cluster.
    pub fn flaws(&self) -> Vec<Flaw> {
        let mut flaws = Vec::new();
        if self.name.trim().is_empty() {
            flaws.push(Flaw::NoName);
        }
        if self.workload_is_empty() {
            flaws.push(Flaw::NothingToRun);
        }
        self.add_flaws_of_gang(&mut flaws);
        self.add_flaws_of_placement(&mut flaws);
        self.add_flaws_of_policy(&mut flaws);
        flaws
    }

    fn workload_is_empty(&self) -> bool {
        match &self.workload {
            Workload::Command { arguments } => arguments.first().is_none_or(String::is_empty),
            Workload::Script { text } => text.trim().is_empty(),
            Workload::Native { kind, .. } => kind.is_empty(),
        }
    }

    fn add_flaws_of_gang(&self, flaws: &mut Vec<Flaw>) {
        let roles = &self.gang.roles;
        if roles.is_empty() {
            flaws.push(Flaw::NoRoles);
        }
        for (index, role) in roles.iter().enumerate() {
            if roles[..index].iter().any(|earlier| earlier.name == role.name) {
                flaws.push(Flaw::SameRoleTwice { role: role.name.clone() });
            }
            flaws.extend(flaws_of_role(role));
        }
    }

    fn add_flaws_of_placement(&self, flaws: &mut Vec<Flaw>) {
        if let Some(segment) = self.placement.segment {
            if segment == 0 || !self.gang.nodes().is_multiple_of(u64::from(segment)) {
                flaws.push(Flaw::SegmentDoesNotDivide { segment, nodes: self.gang.nodes() });
            }
            if self.placement.closeness == Closeness::Any {
                flaws.push(Flaw::SegmentWithoutLevel);
            }
        }
        let avoided = |node: &&String| self.placement.avoid_nodes.contains(node);
        flaws.extend(
            self.placement
                .only_nodes
                .iter()
                .filter(avoided)
                .map(|node| Flaw::NodeWantedAndAvoided { node: node.clone() }),
        );
    }

    fn add_flaws_of_policy(&self, flaws: &mut Vec<Flaw>) {
        let policy = &self.policy;
        if policy.time_limit.is_some_and(Seconds::is_zero) {
            flaws.push(Flaw::NoTime);
        }
        if let (Some(signal), Some(limit)) = (policy.checkpoint_signal, policy.time_limit)
            && signal.before >= limit
        {
            flaws.push(Flaw::SignalBeforeStart { before: signal.before, limit });
        }
        if let Some(array) = policy.array
            && !(1..=MOST_ARRAY_TASKS).contains(&array.count())
        {
            flaws.push(Flaw::ArraySize { count: array.count() });
        }
        let waits_for_nothing = policy
            .dependencies
            .iter()
            .any(|each| each.kind != DependencyKind::Singleton && each.jobs.is_empty());
        if waits_for_nothing {
            flaws.push(Flaw::DependencyOnNothing);
        }
    }
}

fn flaws_of_role(role: &Role) -> Vec<Flaw> {
    let name = || role.name.clone();
    let mut flaws = Vec::new();
    if !(1..=MOST_NODES).contains(&role.nodes) {
        flaws.push(Flaw::NodeCount { role: name(), nodes: role.nodes });
    }
    if role.tasks_per_node == 0 {
        flaws.push(Flaw::NoTasks { role: name() });
    }
    if let Some(accelerator) = &role.accelerator
        && role.gpus_per_node == 0
    {
        flaws.push(Flaw::AcceleratorWithoutGpus { role: name(), accelerator: accelerator.clone() });
    }
    if let Some(elastic) = role.elastic
        && !elastic.allows(role.nodes)
    {
        flaws.push(Flaw::NotAnElasticSize {
            role: name(),
            nodes: role.nodes,
            min: elastic.min,
            max: elastic.max,
            step: elastic.step,
        });
    }
    flaws
}
