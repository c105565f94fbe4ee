//! What makes a job impossible before any cluster has been looked at.

use std::collections::BTreeSet;

use bedplate_units::Seconds;

use crate::begin::LATEST;
use crate::pattern::fault_of;
use crate::{Array, Begin, Closeness, Dependency, DependencyKind, Job, Role, Workload};

/// Limits against typing errors, far above any real job.
const MOST_NODES: u32 = 1_000_000;
pub(crate) const MOST_ARRAY_TASKS: u64 = 1_000_000;
const LONGEST_NAME: usize = 256;

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
    #[error("role `{role}` asks for {share} thousandths of a GPU; ask for 1 to 1000")]
    GpuShare { role: String, share: u16 },
    #[error("role `{role}` shares a GPU, so it has 1 node with 1 GPU, not {nodes} with {gpus_per_node}")]
    SharedGpuCount { role: String, nodes: u32, gpus_per_node: u32 },
    #[error("role `{role}` asks for {cpus_per_task} CPUs per task; ask for at least 1")]
    NoCpus { role: String, cpus_per_task: u32 },
    #[error("role `{role}` may have {min} to {max} nodes in steps of {step}, and {nodes} is none of these")]
    NotAnElasticSize { role: String, nodes: u32, min: u32, max: u32, step: u32 },
    #[error("the time limit is zero")]
    NoTime,
    #[error("the checkpoint signal comes {before} before the end, but the whole job may take {limit}")]
    SignalBeforeStart { before: Seconds, limit: Seconds },
    #[error("the array has {count} tasks; it may have 1 to {MOST_ARRAY_TASKS}")]
    ArraySize { count: u64 },
    #[error("the array lists the index {index} twice")]
    ArrayIndexTwice { index: u32 },
    #[error("the array lets no task run at once")]
    NoTaskAtOnce,
    #[error("a dependency names no job to wait for")]
    DependencyOnNothing,
    #[error("`{name}` in a dependency is not the number of a job")]
    DependencyName { name: String },
    #[error("{signal} is not a signal; signals are 1 to 64")]
    NoSuchSignal { signal: i32 },
    #[error("{what} is {duration}, which is not a valid waiting time")]
    BadDuration { what: &'static str, duration: Seconds },
    #[error("the start lies after the year 9999")]
    BeginTooLate,
    #[error("the job asks for {nodes} spare nodes; ask for at most {MOST_NODES}")]
    SpareCount { nodes: u32 },
    #[error("the probe has no command")]
    ProbeWithoutCommand,
    #[error("the file of {stream} cannot be named: {reason}")]
    BadFileName { stream: &'static str, reason: String },
    #[error("`{name}` cannot be the name of a variable")]
    VariableName { name: String },
    #[error("{what} has {length} bytes; a name may have {LONGEST_NAME}")]
    LongName { what: &'static str, length: usize },
    #[error("{what} contains a NUL character, which no process can be given")]
    NulCharacter { what: &'static str },
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
        self.add_flaws_of_health(&mut flaws);
        self.add_flaws_of_names(&mut flaws);
        self.add_flaws_of_texts(&mut flaws);
        flaws
    }

    /// Names end up in tables, metrics and file names, and in the memory of the cluster for as long as the job is known.
    fn add_flaws_of_names(&self, flaws: &mut Vec<Flaw>) {
        let policy = &self.policy;
        let given = [
            ("the partition", &policy.partition),
            ("the account", &policy.account),
            ("the QOS", &policy.qos),
        ];
        let given = given.into_iter().filter_map(|(what, name)| Some((what, name.as_ref()?)));
        let roles = self.gang.roles.iter().map(|role| ("the name of a role", &role.name));
        for (what, name) in given.chain(roles).chain([("the name", &self.name)]) {
            if name.len() > LONGEST_NAME {
                flaws.push(Flaw::LongName { what, length: name.len() });
            }
            if name.contains('\0') {
                flaws.push(Flaw::NulCharacter { what });
            }
        }
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
        let mut names = BTreeSet::new();
        for role in roles {
            if !names.insert(&role.name) {
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
        let avoided: BTreeSet<&String> = self.placement.avoid_nodes.iter().collect();
        let both = self.placement.only_nodes.iter().filter(|node| avoided.contains(node));
        flaws.extend(both.map(|node| Flaw::NodeWantedAndAvoided { node: node.clone() }));
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
        if let Some(signal) = policy.checkpoint_signal
            && !(1..=64).contains(&signal.signal)
        {
            flaws.push(Flaw::NoSuchSignal { signal: signal.signal });
        }
        if matches!(policy.begin, Some(Begin::At { unix_seconds }) if unix_seconds > LATEST) {
            flaws.push(Flaw::BeginTooLate);
        }
        flaws.extend(policy.array.as_ref().and_then(flaw_of_array));
        flaws.extend(policy.dependencies.iter().filter_map(flaw_of_dependency));
        let begin = match policy.begin {
            Some(Begin::After(wait)) => Some(wait),
            _ => None,
        };
        let durations = [
            ("the time limit", policy.time_limit),
            ("the grace", Some(policy.grace)),
            ("the minimum run time", Some(policy.minimum_run_time)),
            ("the time before the signal", policy.checkpoint_signal.map(|signal| signal.before)),
            ("the wait before the start", begin),
        ];
        add_bad_durations(&durations, flaws);
    }

    fn add_flaws_of_health(&self, flaws: &mut Vec<Flaw>) {
        let probe = self.health.probe.as_ref();
        if probe.is_some_and(|probe| probe.command.first().is_none_or(String::is_empty)) {
            flaws.push(Flaw::ProbeWithoutCommand);
        }
        if self.health.spare_nodes > MOST_NODES {
            flaws.push(Flaw::SpareCount { nodes: self.health.spare_nodes });
        }
        let nothing = Seconds::ZERO;
        let durations = [
            ("the time after which a rank is stuck", self.health.stuck_after),
            ("the time between probes", probe.map(|probe| probe.every)),
        ];
        for (what, duration) in durations {
            if duration == Some(nothing) {
                flaws.push(Flaw::BadDuration { what, duration: nothing });
            }
        }
        add_bad_durations(&durations, flaws);
    }

    /// What no process, file or variable can be called.
    fn add_flaws_of_texts(&self, flaws: &mut Vec<Flaw>) {
        let streams = &self.streams;
        let files = [
            ("standard input", &streams.stdin),
            ("standard output", &streams.stdout),
            ("standard errors", &streams.stderr),
        ];
        for (stream, pattern) in files {
            let reason = match pattern.as_deref() {
                Some("") => Some("it is empty".to_owned()),
                Some(pattern) => fault_of(pattern),
                None => None,
            };
            flaws.extend(reason.map(|reason| Flaw::BadFileName { stream, reason }));
        }
        let is_bad = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
        let names = self.environment.set.keys().filter(is_bad);
        flaws.extend(names.map(|name| Flaw::VariableName { name: name.clone() }));
        let has_nul = |texts: &[String]| texts.iter().any(|text| text.contains('\0'));
        let arguments: &[String] = match &self.workload {
            Workload::Command { arguments } => arguments,
            Workload::Script { .. } | Workload::Native { .. } => &[],
        };
        let texts = [
            ("the command", has_nul(arguments)),
            ("the prolog", has_nul(&self.hooks.prolog)),
            ("the epilog", has_nul(&self.hooks.epilog)),
            ("the probe", self.health.probe.as_ref().is_some_and(|probe| has_nul(&probe.command))),
            ("the working directory", self.working_directory.iter().any(|text| text.contains('\0'))),
            ("a variable", self.environment.set.values().any(|text| text.contains('\0'))),
        ];
        let found = texts.iter().filter(|(_, has_nul)| *has_nul);
        flaws.extend(found.map(|(what, _)| Flaw::NulCharacter { what }));
    }
}

fn add_bad_durations(durations: &[(&'static str, Option<Seconds>)], flaws: &mut Vec<Flaw>) {
    for (what, duration) in durations {
        if let Some(duration) = *duration
            && !(duration.get() >= 0.0 && duration.get().is_finite())
        {
            flaws.push(Flaw::BadDuration { what, duration });
        }
    }
}

fn flaw_of_array(array: &Array) -> Option<Flaw> {
    let count = array.count();
    if !(1..=MOST_ARRAY_TASKS).contains(&count) {
        return Some(Flaw::ArraySize { count });
    }
    if array.at_once == Some(0) {
        return Some(Flaw::NoTaskAtOnce);
    }
    let indices = array.indices();
    let twice = indices.windows(2).find(|pair| pair[0] == pair[1])?;
    Some(Flaw::ArrayIndexTwice { index: twice[0] })
}

fn flaw_of_dependency(dependency: &Dependency) -> Option<Flaw> {
    if dependency.kind == DependencyKind::Singleton {
        return None;
    }
    if dependency.jobs.is_empty() {
        return Some(Flaw::DependencyOnNothing);
    }
    let name = dependency.jobs.iter().find(|job| !Dependency::is_job_name(job))?;
    Some(Flaw::DependencyName { name: name.clone() })
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
    if role.cpus_per_task == 0 {
        flaws.push(Flaw::NoCpus { role: name(), cpus_per_task: 0 });
    }
    flaws.extend(flaw_of_share(role));
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

fn flaw_of_share(role: &Role) -> Option<Flaw> {
    let share = role.gpu_share?;
    let role_name = role.name.clone();
    if !(1..=1000).contains(&share) {
        return Some(Flaw::GpuShare { role: role_name, share });
    }
    let (nodes, gpus_per_node) = (role.nodes, role.gpus_per_node);
    ((nodes, gpus_per_node) != (1, 1)).then_some(Flaw::SharedGpuCount {
        role: role_name,
        nodes,
        gpus_per_node,
    })
}
