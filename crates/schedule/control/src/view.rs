//! What people see of jobs and nodes.

use bedplate_diag::Reason;
use bedplate_finding::OpenFinding;
use bedplate_gangs::{JobId, NodeState, Question, Time, WaitExplanation};
use bedplate_report::{Expectation, StepHistory, StepPace};
use bedplate_topology::{NodeId, NodeKind};
use serde::{Deserialize, Serialize};

use crate::control::Control;
use crate::live::LiveJob;
use crate::node::Presence;
use crate::reason;
use crate::record::{JobState, Life};
use crate::run::LaunchPhase;
use crate::wire::{HostMachine, RunId};

/// A job in a line. Clusters differ in how they call jobs and nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JobLine<Job, Node> {
    pub id: Job,
    /// What people call it: `12`, or `12_3` in an array.
    pub label: String,
    pub name: String,
    pub user: String,
    pub account: String,
    pub partition: String,
    pub qos: String,
    pub submitted_ms: u64,
    #[serde(flatten)]
    pub life: Life,
    pub nodes_asked: u64,
    pub gpus_asked: u64,
    /// The nodes it has now, in the order of its ranks.
    pub nodes: Vec<Node>,
    /// When its time is up, while it runs.
    pub ends_ms: Option<u64>,
    /// When it should start, while it waits.
    pub expected_start_ms: Option<u64>,
    /// Why it waits, in short; `explain` says more.
    pub waits_because: Option<Reason>,
    /// What a step should take, and what it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<StepPace>,
    /// What is wrong with it now, in short; `diagnose` says more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A job of this control plane.
pub type JobView = JobLine<u64, String>;

/// A node in a line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeView {
    pub name: String,
    pub state: &'static str,
    /// Why it takes no work.
    pub reason: Option<Reason>,
    pub address: String,
    pub host: HostMachine,
    pub kind: String,
    pub gpus: u32,
    pub gpus_free: u32,
    pub cpus: u32,
    pub memory_mib: u64,
    pub jobs: Vec<u64>,
    pub is_linked: bool,
    pub heard_ms: Option<u64>,
    pub losses: usize,
    /// What it found about itself, by rule.
    pub findings: Vec<OpenFinding>,
}

/// What to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    pub user: Option<String>,
    pub account: Option<String>,
    pub name: Option<String>,
    /// Any of these; all when empty.
    pub states: Vec<JobState>,
    /// Jobs with larger numbers than this only: the last one of the page before.
    pub after: Option<u64>,
    /// As many as there are when absent.
    pub limit: Option<usize>,
}

impl JobFilter {
    fn admits(&self, live: &LiveJob) -> bool {
        let row = &live.row;
        let is = |wanted: &Option<String>, value: &str| wanted.as_ref().is_none_or(|wanted| wanted == value);
        is(&self.user, &row.user)
            && is(&self.account, &row.account)
            && is(&self.name, &row.name)
            && (self.states.is_empty() || self.states.contains(&row.life.state))
    }
}

/// What a run has, node by node.
#[derive(Debug, Clone)]
pub struct RunMachines {
    pub kinds: Vec<NodeKind>,
    pub is_pretended: bool,
}

/// A part of a list of jobs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobPage {
    pub jobs: Vec<JobView>,
    /// The last job that was looked at, where there may be more.
    pub goes_on_after: Option<u64>,
}

/// How much there is of everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub jobs_by_state: std::collections::BTreeMap<&'static str, usize>,
    pub jobs_ended: u64,
    pub nodes_by_state: std::collections::BTreeMap<&'static str, usize>,
    pub gpus: u64,
    pub gpus_free: u64,
    /// Open findings of all nodes by severity.
    pub findings_by_severity: std::collections::BTreeMap<String, usize>,
    /// Nodes that found something which calls for taking them out of service, while so many do that none is.
    pub common_cause_nodes: usize,
}

impl Control {
    /// Jobs that have not ended, by number.
    pub fn jobs(&self, filter: &JobFilter) -> Vec<JobView> {
        self.page(filter, usize::MAX).jobs
    }

    /// The same, as far as one comes by looking at `most` jobs.
    pub fn page(&self, filter: &JobFilter, most: usize) -> JobPage {
        let after = filter.after.map(JobId);
        let Some(user) = &filter.user else {
            return self.page_of(self.jobs.after(after), filter, most);
        };
        match self.find_user(user) {
            Some(user) => self.page_of(self.jobs.of_user(user, after), filter, most),
            None => JobPage::default(),
        }
    }

    fn page_of<'a>(
        &self,
        jobs: impl Iterator<Item = &'a LiveJob>,
        filter: &JobFilter,
        most: usize,
    ) -> JobPage {
        let limit = filter.limit.unwrap_or(usize::MAX);
        let mut page = JobPage::default();
        for (looked_at, live) in jobs.enumerate() {
            if looked_at == most || page.jobs.len() == limit {
                return page;
            }
            page.goes_on_after = Some(live.row.id.0);
            if filter.admits(live) {
                page.jobs.push(self.view(live));
            }
        }
        page.goes_on_after = None;
        page
    }

    /// A job that has not ended.
    pub fn job(&self, job: JobId) -> Option<JobView> {
        self.jobs.get(&job).map(|live| self.view(live))
    }

    /// The state of a job that has not ended.
    pub fn job_state(&self, job: JobId) -> Option<JobState> {
        self.jobs.get(&job).map(|live| live.row.life.state)
    }

    /// Jobs that have ended and that live jobs depend on.
    pub fn awaited(&self) -> Vec<JobId> {
        self.scheduler.awaited().collect()
    }

    /// What the run of a job reported about its training steps.
    pub fn steps(&self, job: JobId) -> Option<&StepHistory> {
        self.runs.get(&job).map(|run| &run.history).filter(|history| !history.is_empty())
    }

    /// What a step of a job should take.
    pub fn expectation(&self, job: JobId) -> Option<Expectation> {
        let submitted = self.jobs.get(&job)?.job.expected.as_ref();
        Expectation::of(submitted, self.steps(job))
    }

    /// The kinds of the nodes that a job has, and whether one of them pretends to have devices that its host lacks.
    pub fn machines(&self, job: JobId) -> Option<RunMachines> {
        let run = self.runs.get(&job)?;
        let mut nodes: Vec<NodeId> = run.shares.iter().map(|share| share.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let kind = |node: &NodeId| self.scheduler.cluster().node(*node).kind();
        let pretends = |node: &NodeId| self.nodes[node.0 as usize].host.gpus < kind(node).accelerators;
        Some(RunMachines {
            kinds: nodes.iter().map(|node| kind(node).clone()).collect(),
            is_pretended: nodes.iter().any(pretends),
        })
    }

    /// Whether all ranks of a run are there and go on.
    pub fn is_running(&self, id: RunId) -> bool {
        let run = self.runs.get(&JobId(id.job)).filter(|run| run.is_known_as(id));
        run.is_some_and(|run| run.phase == LaunchPhase::Running)
    }

    /// A job that has not ended, in the one format.
    pub fn job_text(&self, job: JobId) -> Option<&str> {
        self.jobs.get(&job).map(|live| &live.row.text[..])
    }

    /// Who submitted a job that has not ended.
    pub fn owner(&self, job: JobId) -> Option<&str> {
        self.jobs.get(&job).map(|live| &live.row.user[..])
    }

    /// How a job ended, if it did so lately; the journal knows of those before.
    pub fn ended(&self, job: JobId) -> Option<JobState> {
        self.names.ended(job)
    }

    /// The history has fewer jobs than before.
    pub fn set_ended_count(&mut self, count: u64) {
        self.names.set_ended_count(count);
    }

    fn view(&self, live: &LiveJob) -> JobView {
        let job = live.row.id;
        let settings = self.scheduler.settings();
        let policy = &live.job.policy;
        let run = self.runs.get(&job);
        let nodes = run.map_or(Vec::new(), |run| run.shares.iter().map(|share| share.node).collect());
        JobView {
            id: job.0,
            label: label(live),
            name: live.row.name.clone(),
            user: live.row.user.clone(),
            account: live.row.account.clone(),
            partition: policy.partition.clone().unwrap_or_else(|| settings.partitions[0].name.clone()),
            qos: policy.qos.clone().unwrap_or_else(|| settings.qos[0].name.clone()),
            submitted_ms: live.row.submitted.0,
            life: live.row.life.clone(),
            nodes_asked: live.job.gang.nodes(),
            gpus_asked: live.job.gang.gpus(),
            nodes: nodes.into_iter().map(|node| self.nodes[node.0 as usize].name.clone()).collect(),
            ends_ms: self.scheduler.ends_at(job).map(|at| at.0),
            expected_start_ms: self.scheduler.reservation(job).map(|reservation| reservation.start.0),
            waits_because: self.waits_because(live),
            pace: StepPace::of(live.job.expected.as_ref(), run.map(|run| &run.history)),
            problem: None,
        }
    }

    /// In short: which resources are missing, and where, takes a search of the plan.
    fn waits_because(&self, live: &LiveJob) -> Option<Reason> {
        if let Some(wait) = self.scheduler.wait(live.row.id) {
            return Some(Reason::of(&wait));
        }
        let is_waiting = live.row.life.state == JobState::Waiting;
        is_waiting.then(|| reason::missing_resources(live.job.gang.nodes(), live.job.gang.gpus()))
    }

    /// Why a job waits; nothing when it does not.
    pub fn explain(&self, job: JobId, now: Time) -> Option<WaitExplanation> {
        self.scheduler.explain(job, now.max(self.now))
    }

    /// What explains why a job waits; quick, so that the work can be done elsewhere.
    pub fn question(&self, job: JobId) -> Option<Question> {
        self.scheduler.question(job)
    }

    /// All nodes, in the order of the cluster.
    pub fn nodes(&self, now: Time) -> Vec<NodeView> {
        (0..self.nodes.len()).map(|at| self.node_view(NodeId(at as u32), now)).collect()
    }

    /// The node of a name.
    pub fn node_of(&self, name: &str, now: Time) -> Option<NodeView> {
        Some(self.node_view(self.scheduler.cluster().find_node(name)?, now))
    }

    /// One node. Panics where the cluster has no such node.
    pub fn node_view(&self, id: NodeId, now: Time) -> NodeView {
        let node = &self.nodes[id.0 as usize];
        let cluster = self.scheduler.cluster();
        let kind = cluster.node(id).kind();
        let (is_linked, heard_ms) = match node.presence {
            Presence::Linked { heard, .. } => (true, Some(heard.0)),
            Presence::Closed { .. } | Presence::Expected { .. } | Presence::Away => (false, None),
        };
        NodeView {
            name: node.name.clone(),
            state: self.node_state_name(id, now),
            reason: node.drained.clone(),
            address: node.address.clone(),
            host: node.host.clone(),
            kind: kind.name.clone(),
            gpus: kind.accelerators,
            gpus_free: self.scheduler.free_devices(id).count_ones(),
            cpus: kind.vcpus.unwrap_or(0),
            memory_mib: kind.memory.map_or(0, |memory| (memory.get() / 1_048_576.0) as u64),
            jobs: self.scheduler.gangs_on(id).map(|job| job.0).collect(),
            is_linked,
            heard_ms,
            losses: self.blame.losses(id).len(),
            findings: node.findings.clone(),
        }
    }

    fn node_state_name(&self, id: NodeId, now: Time) -> &'static str {
        let node = &self.nodes[id.0 as usize];
        match self.scheduler.node_state(id, now.max(self.now)) {
            NodeState::Down if node.drained.is_some() && node.link().is_some() => "drained",
            // The control plane was started anew and its agent has not come back yet.
            NodeState::Draining | NodeState::Drained if node.drained.is_none() => "rejoining",
            NodeState::Idle => "idle",
            NodeState::Allocated => "allocated",
            NodeState::Draining => "draining",
            NodeState::Drained => "drained",
            NodeState::Down => "down",
            NodeState::Maintenance => "maintenance",
            NodeState::Planned => "planned",
        }
    }

    /// Which node a rank of a running job stands on.
    pub fn node_of_rank(&self, job: JobId, rank: u32) -> Option<String> {
        let node = self.runs.get(&job)?.node_of_rank(rank)?;
        Some(self.nodes[node.0 as usize].name.clone())
    }

    /// The open connection to a node's agent.
    pub fn link_of(&self, node: &str) -> Option<crate::LinkId> {
        self.nodes[self.scheduler.cluster().find_node(node)?.0 as usize].link()
    }

    pub fn counts(&self, now: Time) -> Counts {
        let mut counts = Counts { jobs_ended: self.names.ended_count(), ..Counts::default() };
        counts.jobs_by_state =
            self.jobs.by_state().iter().map(|(state, count)| (state.name(), *count)).collect();
        for at in 0..self.nodes.len() {
            let id = NodeId(at as u32);
            *counts.nodes_by_state.entry(self.node_state_name(id, now)).or_default() += 1;
            counts.gpus += u64::from(self.scheduler.cluster().node(id).kind().accelerators);
        }
        for open in self.nodes.iter().flat_map(|node| &node.findings) {
            *counts.findings_by_severity.entry(open.finding.severity.to_string()).or_default() += 1;
        }
        counts.common_cause_nodes = self.common_cause().unwrap_or(0);
        counts.gpus_free = self.scheduler.free_gpus(now.max(self.now));
        counts
    }

    /// Whether nothing of any run is left on any node.
    pub fn is_quiet(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether no job waits or runs, and nothing is left of any.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.runs.is_empty()
    }
}

fn label(live: &LiveJob) -> String {
    match live.row.array {
        Some(place) => format!("{}_{}", place.array.0, place.index),
        None => live.row.id.0.to_string(),
    }
}
