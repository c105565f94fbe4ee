//! Who answers for what fails: evidence from nodes and pods, judged by [`bedplate_blame`].
//!
//! Nodes are taken out of service, jobs that fail avoid the nodes that failed them and pause before they start again. How often a job
//! may start again is its controller's to say: a Job and a JobSet have budgets of their own.
//!
//! Nothing of this is recorded elsewhere. Pods that failed stay in the API server as long as their job keeps them, and a node that was
//! taken out says so itself, so a scheduler that is started again comes to the same verdicts from what is left. What it cannot know is that
//! somebody has put a node back: failures of the last hour count against the node again.

use std::collections::{BTreeMap, BTreeSet};

use bedplate_blame::{
    Blame, BlamePolicy, Circumstances, FaultKind, JobFault, NodeVerdict, Program, Restart, RestartCause,
};
use bedplate_gangs::{JobId, Span, Time, UserId};
use bedplate_topology::NodeId;

use crate::{Node, Pod, PodAction, PodPhase, SchedulerRemark, Waiting};

/// How long a node may be not ready before its pods are given up: what runs there may only restart its agent.
const PATIENCE: Span = Span::seconds(10);
/// When a node is taken out again that does not say that it is.
const AGAIN: Span = Span::seconds(10);
/// How long a job that lost a node may take to come back and still use spares.
const REMEMBERED: Span = Span::minutes(10);

#[derive(Default)]
pub(crate) struct Healing {
    blame: Blame,
    /// Numbers of nodes, of users, and of jobs that have failed, for as long as there are such.
    nodes: BTreeMap<String, NodeId>,
    users: BTreeMap<String, UserId>,
    jobs: BTreeMap<String, JobId>,
    last_number: u32,
    /// Since when nodes are not ready.
    unready: BTreeMap<String, Time>,
    /// Pods whose failure was counted, and gangs: the first failure of a gang speaks for all.
    counted: BTreeMap<String, String>,
    /// Nodes that must go and do not say yet that they are out.
    condemned: BTreeMap<String, Condemned>,
    cordoned: BTreeSet<String>,
    pauses: BTreeMap<String, Pause>,
    /// When jobs lost a node that have not been whole since.
    struck: BTreeMap<String, Time>,
    /// What a person must look at, of the last judgement.
    remarks: Vec<SchedulerRemark>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Condemned {
    why: String,
    asked: Option<Time>,
}

/// Why a job does not start again at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pause {
    until: Time,
    restarts: u32,
}

impl Healing {
    pub(crate) fn new(policy: BlamePolicy) -> Self {
        Self { blame: Blame::new(policy), ..Self::default() }
    }

    /// Judges everything that has happened since the last time; nodes that must go come back as actions.
    pub(crate) fn judge(
        &mut self,
        nodes: &BTreeMap<String, Node>,
        pods: &BTreeMap<String, Pod>,
        now: Time,
    ) -> Vec<PodAction> {
        self.remarks.clear();
        self.forget_what_is_gone(nodes, pods, now);
        let is_out =
            |node: &&Node| node.is_cordoned || !node.is_ready || self.condemned.contains_key(&node.name);
        let mut around = Circumstances {
            nodes: nodes.len(),
            nodes_out: nodes.values().filter(is_out).count(),
            nodes_proven: nodes.values().filter(is_out).filter(|node| node.gravest().is_some()).count(),
        };
        self.hear_of_losses(nodes, &mut around, now);
        self.hear_of_failures(nodes, pods, &mut around, now);
        self.hear_of_findings(nodes, &mut around);
        let due =
            self.condemned.iter_mut().filter(|(_, it)| it.asked.is_none_or(|at| now.since(at) >= AGAIN));
        let take_out = |(node, it): (&String, &mut Condemned)| {
            it.asked = Some(now);
            PodAction::TakeOut { node: node.clone(), why: it.why.clone() }
        };
        due.map(take_out).collect()
    }

    fn forget_what_is_gone(
        &mut self,
        nodes: &BTreeMap<String, Node>,
        pods: &BTreeMap<String, Pod>,
        now: Time,
    ) {
        self.unready.retain(|name, _| nodes.contains_key(name));
        self.condemned.retain(|name, _| nodes.get(name).is_some_and(|node| !node.is_cordoned));
        self.cordoned.retain(|name| nodes.contains_key(name));
        self.counted.retain(|uid, _| pods.contains_key(uid));
        let jobs: BTreeSet<&str> = pods.values().map(|pod| pod.job.as_str()).collect();
        let users: BTreeSet<&str> = pods.values().map(|pod| pod.policy.user.as_str()).collect();
        self.pauses.retain(|job, _| jobs.contains(job.as_str()));
        self.struck.retain(|_, at| now.since(*at) < REMEMBERED);
        self.users.retain(|user, _| users.contains(user.as_str()));
        let blame = &mut self.blame;
        self.jobs.retain(|name, job| {
            let is_there = jobs.contains(name.as_str());
            if !is_there {
                blame.job_ended(*job);
            }
            is_there
        });
        // A node that is gone takes what was held against it along; one that is in service again is trusted by somebody.
        self.nodes.retain(|name, node| {
            let is_there = nodes.contains_key(name);
            if !is_there {
                blame.forgive(*node);
            }
            is_there
        });
        for node in nodes.values() {
            if node.is_cordoned {
                self.cordoned.insert(node.name.clone());
            } else if self.cordoned.remove(&node.name)
                && let Some(number) = self.nodes.get(&node.name)
            {
                self.blame.forgive(*number);
            }
        }
    }

    fn hear_of_losses(&mut self, nodes: &BTreeMap<String, Node>, around: &mut Circumstances, now: Time) {
        for node in nodes.values() {
            if node.is_ready {
                self.unready.remove(&node.name);
            } else if !self.unready.contains_key(&node.name) {
                self.unready.insert(node.name.clone(), now);
                let number = self.node(&node.name);
                // It is out itself until it is ready again.
                let others = Circumstances { nodes_out: around.nodes_out.saturating_sub(1), ..*around };
                let verdict = self.blame.node_lost(number, others, now);
                let losses = self.blame.losses(number).len();
                let why = format!("it was lost {losses} times within minutes [node/flapping]");
                self.pass_on(node, verdict, why, around);
            }
        }
    }

    fn hear_of_failures(
        &mut self,
        nodes: &BTreeMap<String, Node>,
        pods: &BTreeMap<String, Pod>,
        around: &mut Circumstances,
        now: Time,
    ) {
        let is_news = |pod: &&Pod| {
            pod.is_ours
                && pod.phase == PodPhase::Failed
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
            let Some(node) = pod.node.as_ref().filter(|_| counts).and_then(|node| nodes.get(node)) else {
                continue;
            };
            let (job, user) = (self.job(&pod.job), self.user(&pod.policy.user));
            let (program, number) = (Program::of(&pod.job), self.node(&node.name));
            let fault = JobFault { job, user, program, gpus: 0, node: number, kind: FaultKind::Crashed };
            let verdict = self.blame.job_failed(fault, || *around, now);
            let ran = ended.since(pod.bound_at.unwrap_or(ended));
            let pause = match self.blame.restart(job, RestartCause::Failure, ran) {
                Restart::After(pause) => pause,
                Restart::Exhausted { .. } => self.blame.policy().longest_pause,
            };
            let restarts = self.blame.restarts(job);
            self.pauses.insert(pod.job.clone(), Pause { until: ended + pause, restarts });
            let why = match verdict.node {
                NodeVerdict::Suspect { users } => {
                    format!("jobs of {users} users failed there and nowhere else [node/suspect]")
                }
                NodeVerdict::Check { jobs } => {
                    format!("{jobs} jobs of one user failed there and nowhere else; look whether it is well")
                }
                _ => String::new(),
            };
            self.pass_on(node, verdict.node, why, around);
        }
    }

    fn hear_of_findings(&mut self, nodes: &BTreeMap<String, Node>, around: &mut Circumstances) {
        let accused = nodes.values().filter(|node| node.gravest().is_some()).count();
        for node in nodes
            .values()
            .filter(|node| !node.is_cordoned && !self.condemned.contains_key(&node.name))
            .collect::<Vec<_>>()
        {
            let Some(finding) = node.gravest() else { continue };
            let verdict = self.blame.found(accused, *around);
            self.pass_on(node, verdict, format!("{} [{}]", finding.summary, finding.rule), around);
        }
    }

    /// Condemns a node, or says why it stays although it should go.
    fn pass_on(&mut self, node: &Node, verdict: NodeVerdict, why: String, around: &mut Circumstances) {
        let name = &node.name;
        match verdict {
            NodeVerdict::Keep => {}
            NodeVerdict::Check { .. } => {
                let text = format!("{name}: {why}");
                self.remarks.push(SchedulerRemark { text, node: Some(name.clone()) });
            }
            NodeVerdict::Common { nodes } => self.remark(format!(
                "{nodes} nodes have findings at once: they stay in service, and a person must look"
            )),
            NodeVerdict::TooManyOut { out } => {
                let text =
                    format!("{out} nodes are out already: {name} stays in service, and a person must look");
                self.remarks.push(SchedulerRemark { text, node: Some(name.clone()) });
            }
            NodeVerdict::Suspect { .. } | NodeVerdict::Flapping { .. } | NodeVerdict::Unhealthy => {
                if !node.is_cordoned && !self.condemned.contains_key(name) {
                    self.condemned.insert(name.clone(), Condemned { why, asked: None });
                    around.nodes_out += usize::from(node.is_ready);
                    around.nodes_proven += usize::from(verdict == NodeVerdict::Unhealthy);
                }
            }
        }
    }

    fn job(&mut self, name: &str) -> JobId {
        number(&mut self.jobs, name, &mut self.last_number, |number| JobId(number.into()))
    }

    fn node(&mut self, name: &str) -> NodeId {
        number(&mut self.nodes, name, &mut self.last_number, NodeId)
    }

    fn user(&mut self, name: &str) -> UserId {
        number(&mut self.users, name, &mut self.last_number, UserId)
    }

    /// What is to be said to whoever runs the cluster.
    pub(crate) fn remark(&mut self, text: String) {
        self.remarks.push(SchedulerRemark { text, node: None });
    }

    pub(crate) fn remarks(&mut self) -> Vec<SchedulerRemark> {
        std::mem::take(&mut self.remarks)
    }

    /// Why the pods of a node must go, if they must. Where half of the cluster is lost at once, it is we who see nothing.
    pub(crate) fn strikes(&self, node: &Node, nodes: usize, now: Time) -> Option<String> {
        let broken = node.gravest().filter(|finding| node.is_cordoned && finding.action.interrupts_jobs());
        if let Some(finding) = broken {
            return Some(format!("its node is broken: {} [{}]", finding.summary, finding.rule));
        }
        let since = self.unready.get(&node.name)?;
        let is_common = self.unready.len() > 1
            && self.unready.len() as f64 > nodes as f64 * self.blame.policy().most_accused;
        (!is_common && now.since(*since) >= PATIENCE)
            .then(|| "its node is lost: it has not been ready for 10 s".to_owned())
    }

    /// When a judgement is due although nothing happens.
    pub(crate) fn deadline(&self, now: Time) -> Option<Time> {
        let losses = self.unready.values().map(|since| *since + PATIENCE).filter(|at| *at > now).min();
        let pauses = self.pauses.values().map(|pause| pause.until).filter(|at| *at > now).min();
        let asked = self.condemned.values().filter_map(|it| it.asked).map(|at| at + AGAIN).min();
        [losses, pauses, asked].into_iter().flatten().min()
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

/// The number of a name; one that was never given before for a name that is new.
fn number<N: Copy>(
    numbers: &mut BTreeMap<String, N>,
    name: &str,
    last: &mut u32,
    of: impl FnOnce(u32) -> N,
) -> N {
    *numbers.entry(name.to_owned()).or_insert_with(|| {
        *last = last.wrapping_add(1);
        of(*last)
    })
}
