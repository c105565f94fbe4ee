//! Who answers for what fails: evidence from nodes and pods, judged by [`bedplate_blame`].
//!
//! Nodes are taken out of service, jobs that fail avoid the nodes that failed them and pause before they start again. How often a job
//! may start again is its controller's to say: a Job and a JobSet have budgets of their own.
//!
//! Nothing of this is recorded elsewhere. Pods that failed stay in the API server as long as their job keeps them, and a node that was
//! taken out says so itself, so a scheduler that is started again comes to the same verdicts, with less evidence at worst.

use std::collections::{BTreeMap, BTreeSet};

use bedplate_blame::{Blame, Cause, Fault, FaultKind, NodeVerdict, Policy, Restart, Surroundings};
use bedplate_gangs::{JobId, Span, Time, UserId};
use bedplate_topology::NodeId;

use crate::{Action, Node, Phase, Pod, Waiting};

/// How long a node may be not ready before its pods are given up: what runs there may only restart its agent.
const PATIENCE: Span = Span::seconds(10);
/// When a node is taken out again that does not say that it is.
const AGAIN: Span = Span::seconds(10);
/// How long a job that lost a node may take to come back and still use spares.
const REMEMBERED: Span = Span::minutes(10);

#[derive(Default)]
pub(crate) struct Healing {
    blame: Blame,
    /// Numbers that stay while nodes come and go.
    nodes: BTreeMap<String, NodeId>,
    users: BTreeMap<String, UserId>,
    /// Jobs that have failed, for as long as they have pods.
    jobs: BTreeMap<String, JobId>,
    last_job: u64,
    /// Since when nodes are not ready.
    unready: BTreeMap<String, Time>,
    /// Pods whose failure was counted, and gangs: the first failure of a gang speaks for all.
    counted: BTreeMap<String, String>,
    /// When nodes were asked to be taken out.
    asked: BTreeMap<String, Time>,
    cordoned: BTreeSet<String>,
    pauses: BTreeMap<String, Pause>,
    /// When jobs lost a node that have not been whole since.
    struck: BTreeMap<String, Time>,
    /// What a person must look at, until it is said.
    remarks: Vec<String>,
}

/// Why a job does not start again at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pause {
    until: Time,
    restarts: u32,
}

impl Healing {
    pub(crate) fn new(policy: Policy) -> Self {
        Self { blame: Blame::new(policy), ..Self::default() }
    }

    /// Judges everything that has happened since the last time; nodes that must go come back as actions.
    pub(crate) fn judge(
        &mut self,
        nodes: &BTreeMap<String, Node>,
        pods: &BTreeMap<String, Pod>,
        now: Time,
    ) -> Vec<Action> {
        self.forget_what_is_gone(nodes, pods, now);
        let around = Surroundings {
            users: pods
                .values()
                .filter(|pod| pod.is_ours)
                .map(|pod| &pod.policy.user)
                .collect::<BTreeSet<_>>()
                .len(),
            nodes: nodes.len(),
            nodes_out: nodes.values().filter(|node| node.is_cordoned || !node.is_ready).count(),
        };
        let mut accused: Vec<(String, NodeVerdict, String)> = Vec::new();
        self.hear_of_losses(nodes, around, now, &mut accused);
        self.hear_of_failures(nodes, pods, around, now, &mut accused);
        self.hear_of_problems(nodes, around, &mut accused);
        accused
            .into_iter()
            .filter_map(|(node, verdict, why)| self.take_out(&nodes[&node], verdict, &why, now))
            .collect()
    }

    fn forget_what_is_gone(
        &mut self,
        nodes: &BTreeMap<String, Node>,
        pods: &BTreeMap<String, Pod>,
        now: Time,
    ) {
        self.unready.retain(|name, _| nodes.contains_key(name));
        self.asked.retain(|name, _| nodes.contains_key(name));
        self.counted.retain(|uid, _| pods.contains_key(uid));
        let jobs: BTreeSet<&str> = pods.values().map(|pod| pod.job.as_str()).collect();
        self.pauses.retain(|job, _| jobs.contains(job.as_str()));
        self.struck.retain(|_, at| now.since(*at) < REMEMBERED);
        let blame = &mut self.blame;
        self.jobs.retain(|name, job| {
            let is_there = jobs.contains(name.as_str());
            if !is_there {
                blame.job_ended(*job);
            }
            is_there
        });
        for node in nodes.values() {
            if node.is_cordoned {
                self.asked.remove(&node.name);
                self.cordoned.insert(node.name.clone());
            } else if self.cordoned.remove(&node.name) {
                // Somebody trusts it again.
                let number = number(&mut self.nodes, &node.name, NodeId);
                self.blame.forgive(number);
            }
        }
    }

    fn hear_of_losses(
        &mut self,
        nodes: &BTreeMap<String, Node>,
        around: Surroundings,
        now: Time,
        accused: &mut Vec<(String, NodeVerdict, String)>,
    ) {
        for node in nodes.values() {
            if node.is_ready {
                self.unready.remove(&node.name);
            } else if !self.unready.contains_key(&node.name) {
                self.unready.insert(node.name.clone(), now);
                let id = number(&mut self.nodes, &node.name, NodeId);
                let verdict = self.blame.node_lost(id, around, now);
                if let NodeVerdict::Flapping { losses } = verdict {
                    accused.push((
                        node.name.clone(),
                        verdict,
                        format!("it was lost {losses} times within minutes [node/flapping]"),
                    ));
                }
            }
        }
    }

    fn hear_of_failures(
        &mut self,
        nodes: &BTreeMap<String, Node>,
        pods: &BTreeMap<String, Pod>,
        around: Surroundings,
        now: Time,
        accused: &mut Vec<(String, NodeVerdict, String)>,
    ) {
        let is_news = |pod: &&Pod| {
            pod.is_ours
                && pod.phase == Phase::Failed
                && !pod.is_disrupted
                && !pod.is_leaving
                && !self.counted.contains_key(&pod.uid)
        };
        let mut failed: Vec<&Pod> = pods.values().filter(is_news).collect();
        failed.sort_by_key(|pod| (pod.ended_at, pod.rank));
        let mut gangs: BTreeSet<String> = self.counted.values().cloned().collect();
        for pod in failed {
            self.counted.insert(pod.uid.clone(), pod.gang.clone());
            let ended = pod.ended_at.unwrap_or(now).min(now);
            let counts = gangs.insert(pod.gang.clone()) && now.since(ended) <= self.blame.policy().window;
            let Some(node) = pod.node.as_ref().filter(|node| counts && nodes.contains_key(*node)) else {
                continue;
            };
            let job = self.job(&pod.job);
            let user = number(&mut self.users, &pod.policy.user, UserId);
            let fault =
                Fault { job, user, node: number(&mut self.nodes, node, NodeId), kind: FaultKind::Crashed };
            let verdict = self.blame.job_failed(fault, around, now);
            let ran = ended.since(pod.bound_at.unwrap_or(ended));
            let pause = match self.blame.restart(job, Cause::Failure, ran) {
                Restart::After(pause) => pause,
                Restart::Exhausted { .. } => self.blame.policy().longest_pause,
            };
            let restarts = self.blame.restarts(job);
            self.pauses.insert(pod.job.clone(), Pause { until: ended + pause, restarts });
            if let NodeVerdict::Suspect { jobs } = verdict.node {
                accused.push((
                    node.clone(),
                    verdict.node,
                    format!("{jobs} jobs failed there and nowhere else [node/suspect]"),
                ));
            } else if let NodeVerdict::TooManyOut { .. } = verdict.node {
                accused.push((node.clone(), verdict.node, String::new()));
            }
        }
    }

    fn job(&mut self, name: &str) -> JobId {
        *self.jobs.entry(name.to_owned()).or_insert_with(|| {
            self.last_job += 1;
            JobId(self.last_job)
        })
    }

    fn hear_of_problems(
        &self,
        nodes: &BTreeMap<String, Node>,
        around: Surroundings,
        accused: &mut Vec<(String, NodeVerdict, String)>,
    ) {
        let grave = |node: &&Node| node.worst_problem().is_some();
        let count = nodes.values().filter(grave).count();
        for node in nodes.values().filter(grave).filter(|node| !node.is_cordoned) {
            let verdict = self.blame.found(count, around);
            let why = node
                .worst_problem()
                .map_or_else(String::new, |problem| format!("{} [{}]", problem.summary, problem.rule));
            accused.push((node.name.clone(), verdict, why));
        }
    }

    fn take_out(&mut self, node: &Node, verdict: NodeVerdict, why: &str, now: Time) -> Option<Action> {
        let name = &node.name;
        match verdict {
            NodeVerdict::Keep => return None,
            NodeVerdict::Common { nodes } => {
                self.remarks.push(format!(
                    "{nodes} nodes have problems at once: they stay in service, and a person must look"
                ));
                return None;
            }
            NodeVerdict::TooManyOut { out } => {
                self.remarks.push(format!(
                    "{out} nodes are out already: {name} stays in service, and a person must look"
                ));
                return None;
            }
            NodeVerdict::Suspect { .. } | NodeVerdict::Flapping { .. } | NodeVerdict::Unhealthy => {}
        }
        let has_just_been_asked = self.asked.get(name).is_some_and(|at| now.since(*at) < AGAIN);
        if node.is_cordoned || has_just_been_asked {
            return None;
        }
        self.asked.insert(name.clone(), now);
        Some(Action::TakeOut { node: name.clone(), why: why.to_owned() })
    }

    /// What is to be said to whoever runs the cluster.
    pub(crate) fn remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    /// Why the pods of a node must go, if they must. Where half of the cluster is lost at once, it is we who see nothing.
    pub(crate) fn strikes(&self, node: &Node, nodes: usize, now: Time) -> Option<String> {
        if let Some(problem) =
            node.worst_problem().filter(|problem| node.is_cordoned && problem.action.interrupts_jobs())
        {
            return Some(format!("its node is broken: {} [{}]", problem.summary, problem.rule));
        }
        let since = self.unready.get(&node.name)?;
        let is_common = self.unready.len() > 1
            && self.unready.len() as f64 > nodes as f64 * self.blame.policy().most_accused;
        (!is_common && now.since(*since) >= PATIENCE)
            .then(|| "its node is lost: it has not been ready for 10 s".to_owned())
    }

    /// When the patience with a node ends next.
    pub(crate) fn deadline(&self, now: Time) -> Option<Time> {
        let losses = self.unready.values().map(|since| *since + PATIENCE).filter(|at| *at > now).min();
        let pauses = self.pauses.values().map(|pause| pause.until).filter(|at| *at > now).min();
        [losses, pauses].into_iter().flatten().min()
    }

    /// A pod of the job goes because of its node.
    pub(crate) fn struck(&mut self, job: &str, now: Time) {
        self.struck.insert(job.to_owned(), now);
    }

    /// A gang of the job stands whole.
    pub(crate) fn is_whole(&mut self, job: &str) {
        self.struck.remove(job);
    }

    /// Whether a job has lost a node and not yet found another: such jobs may use spares.
    pub(crate) fn was_struck(&self, job: &str) -> bool {
        self.struck.contains_key(job)
    }

    /// Whether a job waits before it starts again.
    pub(crate) fn pause(&self, job: &str, now: Time) -> Option<Waiting> {
        let pause = self.pauses.get(job).filter(|pause| pause.until > now)?;
        let seconds = pause.until.since(now).0.div_ceil(1000);
        let message = format!("its last {} starts failed; the next is in {seconds} s", pause.restarts);
        Some(Waiting { reason: "BackOff", message })
    }

    /// Nodes that have failed a job too often to be given to it again.
    pub(crate) fn avoided(&self, job: &str) -> BTreeSet<&str> {
        let Some(job) = self.jobs.get(job) else { return BTreeSet::new() };
        let avoided = self.nodes.iter().filter(|(_, node)| self.blame.avoids(*job, **node));
        avoided.map(|(name, _)| name.as_str()).collect()
    }
}

/// The number of a name; a new one for a name that is new.
fn number<N: Copy>(numbers: &mut BTreeMap<String, N>, name: &str, of: impl Fn(u32) -> N) -> N {
    let next = of(numbers.len() as u32);
    *numbers.entry(name.to_owned()).or_insert(next)
}
