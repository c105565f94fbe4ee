//! The agent of one node: it starts ranks in two phases, ends them, and never outlives its lease.
//!
//! A node that the control plane no longer hears is given up after a while, and its gangs start elsewhere. So that
//! no gang runs twice, the agent gives up first: its lease ends as long after it *sent* the last heartbeat that
//! was answered as the control plane waits after it *heard* one, and then it kills its ranks. One thing extends the
//! lease without an answer: a refused connection, for it proves that no control plane is there to decide anything.
//!
//! [`Agent`] decides; the shell around it owns the processes, carries out each [`Act`] and reports what [`Happened`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bedplate_finding::OpenFinding;
use bedplate_gangs::{Span, Time};
use bedplate_report::Report;

use crate::wire::{
    Audience, FailedRank, FromAgent, HeldPhase, HeldRun, Launch, NodeEnd, NodeStep, RankEnd, RunId,
    StepRequest, ToAgent, Unready,
};

/// What the shell shall do, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    Send(FromAgent),
    /// Run the prolog, open directories and outputs, find a port; start no rank.
    Prepare(Box<Launch>),
    /// Start all ranks of a prepared run.
    Start {
        run: RunId,
        master_port: u16,
    },
    Signal {
        run: RunId,
        signal: i32,
        to: Audience,
    },
    /// Kill every process of the run, the prolog too.
    Kill {
        run: RunId,
    },
    Suspend {
        run: RunId,
    },
    Resume {
        run: RunId,
    },
    /// Kill what is left of the run, run its epilog, free what it held; then report [`Happened::Cleaned`].
    Clean {
        run: RunId,
    },
    Step(Box<NodeStep>),
    /// Check the node now; then report [`Happened::Checked`].
    Check,
    /// Close the link.
    Disconnect,
}

/// What the shell reports.
#[derive(Debug, Clone, PartialEq)]
pub enum Happened {
    Prepared {
        run: RunId,
        master_port: Option<u16>,
    },
    NotPrepared {
        run: RunId,
        why: Unready,
    },
    RankEnded {
        run: RunId,
        rank: u32,
        end: RankEnd,
    },
    /// Its processes are gone through no fault of their own: their run shim stood still, or never began.
    Lost {
        run: RunId,
    },
    /// Its run shim has killed it, or not begun it, because the lease was not renewed in time.
    LeaseEnded {
        run: RunId,
    },
    Cleaned {
        run: RunId,
        spent: Spent,
    },
    Report {
        run: RunId,
        rank: u32,
        report: Report,
    },
    /// The probe of a run, or the node's own.
    ProbeFailed {
        run: Option<RunId>,
        reason: String,
    },
    ProbeRecovered,
    /// The check that was asked for is over.
    Checked {
        fault: Option<String>,
    },
    /// What is wrong with the node, all of it.
    Found(Vec<OpenFinding>),
    StepWanted(Box<StepRequest>),
}

/// What a run used on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spent {
    pub cpu_ms: u64,
    pub peak_memory_mib: u64,
    pub energy_joules: Option<u64>,
    pub epilog_failed: Option<String>,
}

/// How the link to the control plane was lost, or could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLoss {
    /// It was closed, or there is no answer.
    Gone,
    /// The other host answers, but no control plane runs on it.
    Refused,
}

/// How long an agent without a control plane keeps its ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRules {
    /// The lease ends this much earlier than the control plane gives the node up, to have time for the kill.
    pub margin: Span,
    /// While the control plane's host answers but nothing listens: a restart, or an upgrade.
    pub orphan_grace: Span,
}

impl Default for AgentRules {
    fn default() -> Self {
        Self { margin: Span(500), orphan_grace: Span::minutes(10) }
    }
}

/// How many runs that are over are remembered, so that a late or second order for one starts nothing.
const REMEMBERED: usize = 4096;
const TERMINATE: i32 = 15;

/// The state machine of one node.
#[derive(Debug, Clone)]
pub struct Agent {
    rules: AgentRules,
    runs: BTreeMap<RunId, Local>,
    over: BTreeSet<RunId>,
    over_in_order: VecDeque<RunId>,
    lease: Lease,
    is_linked: bool,
    /// What is wrong with the node; every heartbeat says it.
    findings: Vec<OpenFinding>,
    acts: Vec<Act>,
}

/// A run on this node.
#[derive(Debug, Clone)]
struct Local {
    phase: Phase,
    devices: u64,
    /// A share of a device may be held by several runs.
    is_shared: bool,
    /// Stopped in place: its devices are lent to others meanwhile.
    is_suspended: bool,
    /// Ranks that have not ended.
    alive: BTreeSet<u32>,
    has_ranks: bool,
    end: NodeEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Preparing,
    Prepared {
        master_port: Option<u16>,
    },
    Running,
    /// Ranks have been asked to end.
    Ending {
        kill_at: Time,
        is_killed: bool,
    },
    Cleaning,
    Released,
}

#[derive(Debug, Clone)]
struct Lease {
    heartbeat: Span,
    silence: Span,
    sequence: u64,
    next_heartbeat: Time,
    /// When heartbeats were sent that have not been answered.
    sent: VecDeque<(u64, Time)>,
    /// When the last one that was answered was sent, or the control plane last proved to be absent.
    valid_from: Time,
    /// When the last answer came.
    last_answer: Time,
    /// When the greeting of the newest link was sent.
    greeted: Time,
    /// How long the control plane waits after a connection closed, and when it will have waited.
    closed_grace: Span,
    closed_until: Option<Time>,
}

impl Agent {
    pub fn new(rules: AgentRules, now: Time) -> Self {
        let lease = Lease {
            heartbeat: Span(500),
            silence: Span::seconds(3),
            sequence: 0,
            next_heartbeat: now,
            sent: VecDeque::new(),
            valid_from: now,
            last_answer: now,
            greeted: now,
            closed_grace: Span::seconds(1),
            closed_until: None,
        };
        Self {
            rules,
            runs: BTreeMap::new(),
            over: BTreeSet::new(),
            over_in_order: VecDeque::new(),
            lease,
            is_linked: false,
            findings: Vec::new(),
            acts: Vec::new(),
        }
    }

    /// What to do, in order; empties the list.
    pub fn take_acts(&mut self) -> Vec<Act> {
        std::mem::take(&mut self.acts)
    }

    /// What the first message on a new link says the node holds.
    pub fn greet(&mut self, now: Time) -> Vec<HeldRun> {
        self.lease.greeted = now;
        self.held()
    }

    fn held(&self) -> Vec<HeldRun> {
        let held = |(run, local): (&RunId, &Local)| HeldRun {
            run: *run,
            phase: local.held_phase(),
            is_suspended: local.is_suspended,
        };
        self.runs.iter().map(held).collect()
    }

    /// Whether any process of any run may be alive.
    pub fn is_busy(&self) -> bool {
        self.runs.values().any(|local| local.phase != Phase::Released)
    }

    /// When [`tick`](Self::tick) must be called although nothing happens.
    pub fn wakeup(&self) -> Time {
        let kills = self.runs.values().filter_map(|local| match local.phase {
            Phase::Ending { kill_at, is_killed: false } => Some(kill_at),
            _ => None,
        });
        let heartbeat = self.is_linked.then_some(self.lease.next_heartbeat);
        kills.chain(heartbeat).chain(self.lease()).min().unwrap_or(Time::NEVER)
    }

    /// Until when runs may live without further news; nothing where none lives. A second process holds the node to
    /// it, because this one may stand still. What is being killed or cleaned up needs no lease.
    pub fn lease(&self) -> Option<Time> {
        self.runs.values().any(Local::is_alive).then(|| self.lease_ends())
    }

    /// The control plane speaks. What it said before the lease ended, and is read after that, must start nothing.
    pub fn told(&mut self, message: ToAgent, now: Time) {
        self.obey_lease(now);
        match message {
            ToAgent::Welcome { keep, heartbeat_ms, silence_ms, closed_ms } => {
                self.lease.closed_grace = Span(closed_ms);
                self.welcome(&keep, Span(heartbeat_ms), Span(silence_ms), now);
            }
            ToAgent::Unwelcome { .. } => self.acts.push(Act::Disconnect),
            ToAgent::Alive { sequence } => self.lease.answered(sequence, now),
            ToAgent::Prepare(launch) => self.prepare(launch),
            ToAgent::Go { run, master_port } => self.go(run, master_port, now),
            ToAgent::Stop { run, grace_ms } => self.stop(run, Span(grace_ms), now),
            ToAgent::Signal { run, signal, to } => self.if_running(run, Act::Signal { run, signal, to }),
            ToAgent::Suspend { run } => self.suspend(run),
            ToAgent::Resume { run } => self.resume(run),
            ToAgent::Step(step) => self.if_running(step.run, Act::Step(step)),
            ToAgent::Check => self.acts.push(Act::Check),
            ToAgent::Forget { run } => self.forget(run),
            // The shell reads logs, removes old ones, breaks things and ends the process.
            ToAgent::Retain { .. }
            | ToAgent::ReadLog { .. }
            | ToAgent::Dump { .. }
            | ToAgent::Acknowledge { .. }
            | ToAgent::Chaos(_)
            | ToAgent::End => {}
        }
    }

    /// The processes did something.
    pub fn happened(&mut self, happened: Happened, now: Time) {
        match happened {
            Happened::Prepared { run, master_port } => self.prepared(run, master_port),
            Happened::NotPrepared { run, why } => self.not_prepared(run, why),
            Happened::RankEnded { run, rank, end } => self.rank_ended(run, rank, end),
            Happened::Lost { run } => self.lost(run),
            Happened::LeaseEnded { run } => self.end_for_the_lease(run, now),
            Happened::Cleaned { run, spent } => self.cleaned(run, spent),
            Happened::Report { run, rank, report } => self.send(FromAgent::Report { run, rank, report }),
            Happened::ProbeFailed { run, reason } => self.send(FromAgent::Unhealthy { reason, run }),
            Happened::ProbeRecovered => self.send(FromAgent::Healthy),
            Happened::Checked { fault } => self.send(FromAgent::Checked { fault }),
            Happened::Found(findings) => self.found(findings),
            Happened::StepWanted(request) => self.send(FromAgent::StepWanted(request)),
        }
        self.tick(now);
    }

    /// Findings do not wait for the next heartbeat.
    fn found(&mut self, findings: Vec<OpenFinding>) {
        self.findings = findings.clone();
        self.send(FromAgent::Findings { findings });
    }

    /// The link is lost, or could not be made.
    pub fn link_lost(&mut self, how: LinkLoss, now: Time) {
        // That no control plane is there now does not mean that none was there since the lease ended.
        self.obey_lease(now);
        self.is_linked = false;
        self.lease.sent.clear();
        let is_orphan_too_long = now.since(self.lease.last_answer) >= self.rules.orphan_grace;
        match how {
            LinkLoss::Refused if !is_orphan_too_long => {
                self.lease.valid_from = self.lease.valid_from.max(now);
                self.lease.closed_until = None;
            }
            LinkLoss::Refused => {}
            // The control plane may have noticed too, and waits less for a closed connection than for a silent one.
            LinkLoss::Gone => {
                let until = now + self.lease.closed_grace;
                self.lease.closed_until.get_or_insert(until);
            }
        }
        self.tick(now);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) {
        if self.is_linked && now >= self.lease.next_heartbeat {
            let sequence = self.lease.beat(now);
            let held = self.held();
            let findings = self.findings.clone();
            self.send(FromAgent::Heartbeat { sequence, held, findings });
        }
        self.obey_lease(now);
        self.kill_what_had_its_grace(now);
    }

    fn obey_lease(&mut self, now: Time) {
        if self.is_busy() && now >= self.lease_ends() {
            self.kill_all_for_the_lease(now);
        }
    }

    /// Until when a run may live, whether or not one does. Later news only puts it off.
    pub fn lease_ends(&self) -> Time {
        let silent_until = self.lease.valid_from + self.lease.silence;
        let until = self.lease.closed_until.map_or(silent_until, |closed| closed.min(silent_until));
        until - self.rules.margin
    }

    fn kill_all_for_the_lease(&mut self, now: Time) {
        let alive = self.runs.iter().filter(|(_, local)| local.is_alive()).map(|(run, _)| *run);
        for run in alive.collect::<Vec<RunId>>() {
            self.end_for_the_lease(run, now);
        }
    }

    fn end_for_the_lease(&mut self, run: RunId, now: Time) {
        if let Some(local) = self.runs.get_mut(&run).filter(|local| local.is_alive()) {
            local.end.was_lost = true;
            self.stop(run, Span::ZERO, now);
        }
    }

    fn kill_what_had_its_grace(&mut self, now: Time) {
        for (run, local) in &mut self.runs {
            if let Phase::Ending { kill_at, is_killed: false } = local.phase
                && now >= kill_at
            {
                local.phase = Phase::Ending { kill_at, is_killed: true };
                self.acts.push(Act::Kill { run: *run });
            }
        }
    }

    fn welcome(&mut self, keep: &[RunId], heartbeat: Span, silence: Span, now: Time) {
        self.is_linked = true;
        self.lease.heartbeat = heartbeat.max(Span(1));
        self.lease.silence = silence;
        self.lease.valid_from = self.lease.valid_from.max(self.lease.greeted);
        self.lease.closed_until = None;
        self.lease.last_answer = now;
        self.lease.next_heartbeat = now;
        let unwanted = self.runs.keys().filter(|run| !keep.contains(run)).copied();
        for run in unwanted.collect::<Vec<RunId>>() {
            self.stop(run, Span::ZERO, now);
            self.forget(run);
        }
        self.tick(now);
    }

    fn prepare(&mut self, launch: Box<Launch>) {
        let run = launch.run;
        if self.over.contains(&run) || self.runs.contains_key(&run) {
            return;
        }
        let devices = launch.devices.iter().fold(0, |bits, device| bits | 1_u64 << (device % 64));
        let taken = self.runs.iter().find(|(_, other)| other.holds_alone(devices));
        if let Some((other, _)) = taken {
            let why = Unready::Busy { why: format!("{other} still holds a device") };
            return self.send(FromAgent::NotPrepared { run, why });
        }
        let alive: BTreeSet<u32> = launch.ranks.iter().copied().collect();
        let local = Local {
            phase: Phase::Preparing,
            devices,
            is_shared: launch.shares_device,
            is_suspended: false,
            has_ranks: !alive.is_empty(),
            alive,
            end: NodeEnd::default(),
        };
        self.runs.insert(run, local);
        self.acts.push(Act::Prepare(launch));
    }

    fn prepared(&mut self, run: RunId, master_port: Option<u16>) {
        let Some(local) = self.runs.get_mut(&run) else {
            return;
        };
        match local.phase {
            Phase::Preparing => {
                local.phase = Phase::Prepared { master_port };
                self.send(FromAgent::Prepared { run, master_port });
            }
            Phase::Ending { .. } => self.clean(run),
            _ => {}
        }
    }

    fn not_prepared(&mut self, run: RunId, why: Unready) {
        let Some(local) = self.runs.get(&run) else {
            return;
        };
        if local.phase != Phase::Preparing {
            return;
        }
        self.send(FromAgent::NotPrepared { run, why });
        self.local(run).end.was_lost = true;
        self.clean(run);
    }

    fn go(&mut self, run: RunId, master_port: u16, now: Time) {
        let Some(local) = self.runs.get(&run) else {
            return;
        };
        // Orders may overtake each other: one to start that comes after one to suspend waits for one to resume. The next
        // heartbeats tell what holds, and the control plane repeats what it still wants.
        let can_start = matches!(local.phase, Phase::Prepared { .. }) && !local.is_suspended;
        if !can_start || self.is_taken(run) {
            return;
        }
        self.local(run).phase = Phase::Running;
        self.acts.push(Act::Start { run, master_port });
        self.tick(now);
    }

    /// Ends a run, whatever phase it is in. One that was never heard of is remembered as over.
    fn stop(&mut self, run: RunId, grace: Span, now: Time) {
        let Some(local) = self.runs.get_mut(&run) else {
            self.remember_over(run);
            let end = NodeEnd { was_lost: true, ..NodeEnd::default() };
            return self.send(FromAgent::Released { run, end });
        };
        match local.phase {
            Phase::Preparing | Phase::Prepared { .. } => {
                local.end.was_stopped = true;
                self.clean(run);
            }
            Phase::Running => {
                local.end.was_stopped |= !local.alive.is_empty();
                if local.alive.is_empty() {
                    return self.clean(run);
                }
                // Its devices are lent to others: it may not go on, not even to end itself.
                let grace = if local.is_suspended { Span::ZERO } else { grace };
                local.phase = Phase::Ending { kill_at: now + grace, is_killed: false };
                if grace > Span::ZERO {
                    self.acts.push(Act::Signal { run, signal: TERMINATE, to: Audience::All });
                }
            }
            // A later order may only shorten the grace.
            Phase::Ending { kill_at, is_killed } => {
                local.phase = Phase::Ending { kill_at: kill_at.min(now + grace), is_killed };
            }
            Phase::Cleaning => {}
            Phase::Released => {
                let end = local.end.clone();
                self.send(FromAgent::Released { run, end });
            }
        }
        self.kill_what_had_its_grace(now);
    }

    fn rank_ended(&mut self, run: RunId, rank: u32, end: RankEnd) {
        let Some(local) = self.runs.get_mut(&run) else {
            return;
        };
        if !local.alive.remove(&rank) {
            return;
        }
        let is_first_failure = !end.is_success() && !local.end.was_stopped && local.end.failed.is_none();
        let is_last = local.alive.is_empty();
        if is_first_failure {
            local.end.failed = Some(FailedRank { rank, end });
            self.send(FromAgent::RankFailed { run, rank, end });
        }
        if is_last {
            self.clean(run);
        }
    }

    fn lost(&mut self, run: RunId) {
        let Some(local) = self.runs.get_mut(&run).filter(|local| local.phase != Phase::Released) else {
            return;
        };
        local.end.was_lost = true;
        local.alive.clear();
        self.clean(run);
    }

    fn clean(&mut self, run: RunId) {
        let local = self.local(run);
        if !matches!(local.phase, Phase::Cleaning | Phase::Released) {
            local.phase = Phase::Cleaning;
            self.acts.push(Act::Clean { run });
        }
    }

    fn cleaned(&mut self, run: RunId, spent: Spent) {
        let Some(local) = self.runs.get_mut(&run) else {
            return;
        };
        local.phase = Phase::Released;
        local.end.cpu_ms = spent.cpu_ms;
        local.end.peak_memory_mib = spent.peak_memory_mib;
        local.end.energy_joules = spent.energy_joules;
        local.end.epilog_failed = spent.epilog_failed;
        let end = local.end.clone();
        // The control plane has disowned this run and expects no report of it.
        if self.over.contains(&run) {
            self.runs.remove(&run);
        }
        self.send(FromAgent::Released { run, end });
    }

    /// The run is forgotten once its processes are gone.
    fn forget(&mut self, run: RunId) {
        self.remember_over(run);
        if self.runs.get(&run).is_some_and(|local| local.phase == Phase::Released) {
            self.runs.remove(&run);
        }
    }

    fn remember_over(&mut self, run: RunId) {
        if self.over.insert(run) {
            self.over_in_order.push_back(run);
        }
        if self.over_in_order.len() > REMEMBERED
            && let Some(oldest) = self.over_in_order.pop_front()
        {
            self.over.remove(&oldest);
        }
    }

    /// A run counts as suspended only if its processes stand still or have not been started: what is already ending
    /// holds its devices until it is gone.
    fn suspend(&mut self, run: RunId) {
        let Some(local) = self.runs.get_mut(&run) else {
            return;
        };
        match local.phase {
            Phase::Preparing | Phase::Prepared { .. } => local.is_suspended = true,
            Phase::Running => {
                local.is_suspended = true;
                self.acts.push(Act::Suspend { run });
            }
            Phase::Ending { .. } | Phase::Cleaning | Phase::Released => {}
        }
    }

    /// Not while another run still has the devices; the control plane repeats the order.
    fn resume(&mut self, run: RunId) {
        if !self.runs.contains_key(&run) || self.is_taken(run) {
            return;
        }
        if std::mem::take(&mut self.local(run).is_suspended) {
            self.if_running(run, Act::Resume { run });
        }
    }

    /// Whether another run holds a device of this one.
    fn is_taken(&self, run: RunId) -> bool {
        let devices = self.runs[&run].devices;
        self.runs.iter().any(|(other, local)| *other != run && local.holds_alone(devices))
    }

    /// A signal or a step would set a suspended run going again.
    fn if_running(&mut self, run: RunId, act: Act) {
        if self.runs.get(&run).is_some_and(|local| local.phase == Phase::Running && !local.is_suspended) {
            self.acts.push(act);
        }
    }

    /// Messages without a link are dropped: every heartbeat repeats what counts.
    fn send(&mut self, message: FromAgent) {
        if self.is_linked {
            self.acts.push(Act::Send(message));
        }
    }

    fn local(&mut self, run: RunId) -> &mut Local {
        self.runs.get_mut(&run).expect("callers looked it up")
    }
}

impl Local {
    /// Whether it holds one of these devices without sharing it.
    fn holds_alone(&self, devices: u64) -> bool {
        let is_over = self.phase == Phase::Released;
        !is_over && !self.is_shared && !self.is_suspended && self.devices & devices != 0
    }

    fn is_alive(&self) -> bool {
        !matches!(self.phase, Phase::Cleaning | Phase::Released)
            && !matches!(self.phase, Phase::Ending { is_killed: true, .. })
    }

    fn held_phase(&self) -> HeldPhase {
        match self.phase {
            Phase::Preparing => HeldPhase::Preparing,
            Phase::Prepared { master_port } => HeldPhase::Prepared { master_port },
            Phase::Running if self.has_ranks && self.alive.is_empty() => HeldPhase::Stopping,
            Phase::Running => HeldPhase::Running,
            Phase::Ending { .. } | Phase::Cleaning => HeldPhase::Stopping,
            Phase::Released => HeldPhase::Released { end: self.end.clone() },
        }
    }
}

impl Lease {
    fn beat(&mut self, now: Time) -> u64 {
        self.sequence += 1;
        self.next_heartbeat = now + self.heartbeat;
        self.sent.push_back((self.sequence, now));
        self.sequence
    }

    fn answered(&mut self, sequence: u64, now: Time) {
        while let Some((number, sent)) = self.sent.front().copied().filter(|(number, _)| *number <= sequence)
        {
            self.sent.pop_front();
            if number == sequence {
                self.valid_from = self.valid_from.max(sent);
                self.last_answer = now;
            }
        }
    }
}
