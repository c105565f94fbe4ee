//! The control plane: jobs, runs and nodes, and what is to be done about them.
//!
//! Every method takes what happened and the time. What follows is gathered in an [`Output`]: records first, and
//! commands that may only leave once the records are on disk.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bedplate_blame::Blame;
use bedplate_diag::Reason;
use bedplate_gangs::counted::{CountedMap, CountedSet};
use bedplate_gangs::{Event, GangOutcome, JobId, NodeShare, Scheduler, Settings, Time, UsageRecord, UserId};
use bedplate_topology::{Cluster, NodeId};

use crate::ControlRules;
use crate::arrivals::Arrivals;
use crate::live::LiveJobs;
use crate::names::JobNames;
use crate::node::ManagedNode;
use crate::record::{HeldShare, JobState, Life, Note, Record, RunPhase, RunRow, ShareRow};
use crate::run::{LaunchPhase, ManagedRun};
use crate::wire::ToAgent;

/// Jobs that are forgotten at a time, a while after they ended.
const MOST_FORGOTTEN: usize = 1_024;

/// A connection to an agent; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// What follows from what happened.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Output {
    /// To be made durable, as a whole.
    pub records: Vec<Record>,
    /// To be carried out at once: they promise nothing.
    pub urgent: Vec<Command>,
    /// To be carried out, in order, once the records are durable.
    pub commands: Vec<Command>,
    /// For watching clients, once the records are durable.
    pub notices: Vec<Notice>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    Send { link: LinkId, message: ToAgent },
    Close { link: LinkId },
}

/// A change that a client may be waiting for.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Notice {
    Job { job: u64, state: JobState, at_ms: u64 },
    Note(Note),
}

/// The control plane of one cluster.
#[derive(Debug, Clone)]
pub struct Control {
    pub(crate) rules: ControlRules,
    pub(crate) scheduler: Scheduler,
    pub(crate) blame: Blame,
    pub(crate) jobs: LiveJobs,
    pub(crate) names: JobNames,
    pub(crate) users: CountedMap<String, UserId>,
    pub(crate) runs: CountedMap<JobId, ManagedRun>,
    /// Nodes that runs were given. What a run has left since stays until the node is looked at.
    pub(crate) given: CountedSet<(NodeId, JobId)>,
    /// Jobs that the scheduler has put aside.
    pub(crate) suspended: BTreeSet<JobId>,
    pub(crate) nodes: Vec<ManagedNode>,
    pub(crate) links: BTreeMap<LinkId, NodeId>,
    pub(crate) next_job: u64,
    /// Arrays of which not all tasks are there.
    pub(crate) arrivals: Arrivals,
    /// Nothing starts any more.
    pub(crate) is_closing: bool,
    pub(crate) now: Time,
    /// What the scheduler has not heard yet.
    pub(crate) news: VecDeque<Event>,
    /// Jobs whose run ended and was reported: they are over or wait again.
    pub(crate) reported: Vec<JobId>,
    pub(crate) output: Output,
}

impl Control {
    /// A control plane without a past. No node is in service before its agent has joined.
    pub fn new(cluster: Cluster, mut settings: Settings, rules: ControlRules, now: Time) -> Self {
        settings.backfill.cycle_slice = settings.backfill.cycle_slice.min(rules.cycle_slice);
        let nodes: Vec<ManagedNode> =
            cluster.nodes().iter().map(|id| ManagedNode::new(cluster.node(id).name().to_string())).collect();
        let mut scheduler = Scheduler::new(cluster, settings);
        let away = |at| Event::Node { node: NodeId(at as u32), order: bedplate_gangs::NodeOrder::Fail };
        scheduler.apply_all((0..nodes.len()).map(away), now);
        Self {
            blame: Blame::new(rules.blame.clone()),
            rules,
            scheduler,
            jobs: LiveJobs::default(),
            names: JobNames::default(),
            users: CountedMap::default(),
            runs: CountedMap::default(),
            given: CountedSet::default(),
            suspended: BTreeSet::new(),
            nodes,
            links: BTreeMap::new(),
            next_job: 1,
            arrivals: Arrivals::default(),
            is_closing: false,
            now,
            news: VecDeque::new(),
            reported: Vec::new(),
            output: Output::default(),
        }
    }

    /// What is to be done; empties it.
    pub fn take_output(&mut self) -> Output {
        std::mem::take(&mut self.output)
    }

    /// When [`tick`](Self::tick) must be called although nothing happens.
    pub fn wakeup(&self) -> Time {
        let nodes = self.nodes.iter().filter_map(|node| node.lost_at(&self.rules)).map(|(at, _)| at);
        let runs = self.runs.values().filter_map(|run| self.run_wakeup(run));
        let arrival = self.has_arrivals().then_some(self.now);
        nodes.chain(runs).chain(self.scheduler.wakeup()).chain(arrival).min().unwrap_or(Time::NEVER)
    }

    /// When the scheduler decides although nothing happens; arrays are [taken in](Self::take_in) beside that. What else waits for time to pass does so for seconds.
    pub fn next_decision(&self) -> Time {
        self.scheduler.wakeup().unwrap_or(Time::NEVER)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) {
        let now = self.advance(now);
        self.lose_unheard_nodes(now);
        self.watch_runs(now);
        for job in self.names.forget_old(now, MOST_FORGOTTEN) {
            self.scheduler.forget(job);
        }
        if self.scheduler.wakeup().is_some_and(|at| at <= now) {
            self.news.push_back(Event::Tick);
        }
        self.settle(now);
    }

    /// Time never goes back, whatever the clock does.
    pub(crate) fn advance(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        self.now
    }

    /// Lets the scheduler decide about the news, and carries out its decisions, until there is nothing new.
    pub(crate) fn settle(&mut self, now: Time) {
        while !self.news.is_empty() {
            let news: Vec<Event> = self.news.drain(..).collect();
            let decisions = self.scheduler.apply_all(news, now);
            self.follow_up(now);
            for decision in decisions {
                self.carry_out(decision, now);
            }
        }
    }

    /// A reported run has ended its job, or the job waits again.
    fn follow_up(&mut self, now: Time) {
        for job in std::mem::take(&mut self.reported) {
            self.record_share_of(job);
            let restarts = self.scheduler.restarts(job);
            match self.scheduler.outcome(job) {
                Some(outcome) => self.end_job(job, state_of(outcome), None, now),
                None => self.change(job, now, |life| {
                    life.state = JobState::Waiting;
                    life.restarts = restarts;
                }),
            }
        }
    }

    /// Changes what is remembered about a job.
    pub(crate) fn change(&mut self, job: JobId, now: Time, change: impl FnOnce(&mut Life)) {
        let Some((before, live)) = self.jobs.change(job, change) else {
            return;
        };
        let life = live.row.life.clone();
        if life.state != before {
            self.output.notices.push(Notice::Job { job: job.0, state: life.state, at_ms: now.0 });
        }
        self.output.records.push(Record::Job { job, life });
    }

    /// The job is over.
    pub(crate) fn end_job(&mut self, job: JobId, state: JobState, reason: Option<Reason>, now: Time) {
        self.change(job, now, |life| {
            life.state = state;
            life.ended_ms = Some(now.0);
            life.reason = reason.or(life.reason.take());
        });
        let reason = self.jobs.get(&job).and_then(|live| live.row.life.reason.clone());
        let because = reason.map_or(String::new(), |reason| format!(": {reason}"));
        self.note_job(job, format!("{}{because}", state.name().replace('_', " ")), now);
        if let Some(live) = self.jobs.remove(job) {
            self.names.end(&live.row, state, now);
        }
        self.blame.job_ended(job);
    }

    pub(crate) fn note_job(&mut self, job: JobId, text: String, now: Time) {
        self.note(Note { at_ms: now.0, job: Some(job.0), node: None, text });
    }

    pub(crate) fn note_node(&mut self, node: NodeId, text: String, now: Time) {
        let name = self.nodes[node.0 as usize].name.clone();
        self.note(Note { at_ms: now.0, job: None, node: Some(name), text });
    }

    pub(crate) fn note(&mut self, note: Note) {
        self.output.notices.push(Notice::Note(note.clone()));
        self.output.records.push(Record::Note(note));
    }

    pub(crate) fn record_run(&mut self, job: JobId, phase: RunPhase, now: Time) {
        let row = self.run_row(&self.runs[&job], phase, now);
        self.output.records.push(Record::Run(row));
    }

    fn run_row(&self, run: &ManagedRun, phase: RunPhase, now: Time) -> RunRow {
        let record_of = |share: &NodeShare| HeldShare {
            node: self.nodes[share.node.0 as usize].name.clone(),
            role: share.role,
            devices: share.devices,
            joined: run.joined(share.node),
        };
        let ends = run.members.values().filter_map(|member| member.end());
        RunRow {
            run: run.id,
            phase,
            shares: run.shares.iter().map(record_of).collect(),
            started: run.started,
            running: run.running,
            ends: self.scheduler.ends_at(run.job()).unwrap_or(run.started),
            stops_as: run.stops_as,
            ended: (phase == RunPhase::Ended).then_some(now),
            reason: run.verdict.reason.clone(),
            cpu_ms: ends.clone().map(|end| end.cpu_ms).sum(),
            energy_joules: ends.filter_map(|end| end.energy_joules).reduce(|sum, each| sum + each),
            steps: (!run.history.is_empty()).then(|| Box::new(run.history.clone())),
            began: run.began,
            master_port: run.master_port,
        }
    }

    /// Keeps what fair share knows about the job's user.
    fn record_share_of(&mut self, job: JobId) {
        let Some(live) = self.jobs.get(&job) else {
            return;
        };
        let (account, user) = (live.row.account.clone(), live.row.user.clone());
        let ids = self.scheduler.settings().accounts.find(&account).zip(self.find_user(&user));
        let used = ids.and_then(|(account, user)| self.scheduler.usage().record(account, user));
        if let Some(UsageRecord { gpu_ms, faded, at, .. }) = used {
            self.output.records.push(Record::Share(ShareRow { account, user, gpu_ms, faded, at }));
        }
    }

    /// Sends a message to a node, if it can be reached now; otherwise the next heartbeat leads to it again.
    pub(crate) fn send(&mut self, node: NodeId, message: ToAgent) {
        if let Some(link) = self.nodes[node.0 as usize].link() {
            self.output.commands.push(Command::Send { link, message });
        }
    }

    pub(crate) fn user_id(&mut self, name: &str) -> UserId {
        self.find_user(name).unwrap_or_else(|| {
            let user = UserId(self.users.len() as u32);
            self.users.insert(name.to_owned(), user);
            user
        })
    }

    pub(crate) fn find_user(&self, name: &str) -> Option<UserId> {
        self.users.get(&name.to_owned()).copied()
    }

    /// Runs that were given a node and have not left it.
    pub(crate) fn runs_on(&mut self, node: NodeId) -> Vec<JobId> {
        let given = self.given.range((node, JobId(0))..=(node, JobId(u64::MAX)));
        let given: Vec<JobId> = given.map(|((_, job), ())| *job).collect();
        let is_there = |job: &JobId| self.runs.get(job).is_some_and(|run| run.members.contains_key(&node));
        let (there, left): (Vec<JobId>, Vec<JobId>) = given.into_iter().partition(is_there);
        for job in left {
            self.given.remove(&(node, job));
        }
        there
    }

    /// Keeps a run, in the place of the one before it.
    pub(crate) fn keep_run(&mut self, job: JobId, run: ManagedRun) {
        for node in run.members.keys() {
            self.given.insert((*node, job), ());
        }
        self.runs.insert(job, run);
    }

    fn run_wakeup(&self, run: &ManagedRun) -> Option<Time> {
        match run.phase {
            LaunchPhase::Preparing => Some(run.started + self.rules.prepare_within),
            LaunchPhase::Running => self.next_watch(run),
            LaunchPhase::Suspended => None,
            LaunchPhase::Stopping { since, grace } => Some(since + grace + self.rules.overdue),
        }
    }
}

pub(crate) fn state_of(outcome: GangOutcome) -> JobState {
    match outcome {
        GangOutcome::Succeeded => JobState::Succeeded,
        GangOutcome::Failed => JobState::Failed,
        GangOutcome::Cancelled => JobState::Cancelled,
        GangOutcome::TimedOut => JobState::TimedOut,
        GangOutcome::NodeLost => JobState::NodeLost,
    }
}

/// What a job's end meant to jobs that depend on it.
pub(crate) fn outcome_of(state: JobState) -> GangOutcome {
    match state {
        JobState::Succeeded => GangOutcome::Succeeded,
        JobState::Failed => GangOutcome::Failed,
        JobState::TimedOut => GangOutcome::TimedOut,
        JobState::NodeLost => GangOutcome::NodeLost,
        _ => GangOutcome::Cancelled,
    }
}
