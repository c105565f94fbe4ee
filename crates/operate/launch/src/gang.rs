//! Which nodes run the gang, and what follows from a failure. There is no clock here and no I/O.
//!
//! A run begins when enough nodes are ready. After a failure every node of the run stops its ranks and looks whether it is
//! well; only when each has answered or fallen silent is it judged who answers for the failure, because ranks on
//! well nodes fail within moments of those on a lost one. Nodes that are lost or unwell are left out, a spare takes
//! the place of each, and ranks keep their places otherwise.

mod judgement;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bedplate_blame::Blame;
use bedplate_gangs::{JobId, Span, Time};
use bedplate_job::rank_environment::Peer;
use bedplate_report::{Checkpoint, Report};

use crate::record::LaunchRecord;
use crate::wire::{End, RanksStart, ToNode};

/// By which rules a gang runs.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchRules {
    pub job: u64,
    /// Nodes of the gang, without the spares.
    pub size: usize,
    pub ranks_per_node: u32,
    pub gpus_per_node: u32,
    pub command: Vec<String>,
    /// How often the job comes back after a failure of its own.
    pub retries: u32,
    /// A run whose steps do not advance for this long is stuck.
    pub stuck_after: Option<Span>,
    /// A node that says nothing for this long is lost.
    pub silent_after: Span,
    /// A node that was ordered to stop its ranks must have done so after this.
    pub stop_patience: Span,
    /// How long nodes are waited for at the beginning: all of them, then as many as the gang needs.
    pub gather_all: Span,
    pub gather_enough: Span,
    pub output: Option<String>,
    pub error: Option<String>,
    pub input: Option<String>,
}

/// What the launcher must do.
#[derive(Debug, Clone, PartialEq)]
pub enum LauncherOrder {
    Send {
        node: usize,
        message: ToNode,
    },
    /// Give the node up: end its step, close its link.
    LeaveOut {
        node: usize,
        reason: String,
        absence: Absence,
    },
    /// Tell the user.
    Say {
        text: String,
        node: Option<usize>,
        rank: Option<u32>,
    },
    /// The record has changed.
    Save,
    /// Too few nodes are left: the job must go back to the queue.
    Requeue {
        why: String,
    },
    /// The launch is over.
    End {
        code: u8,
    },
}

/// Why a node is no longer used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absence {
    /// It does not answer; an administrator must hear of it.
    Lost,
    /// It does not answer, and neither do so many others that the fault may lie elsewhere.
    OneOfMany,
    /// Its check fails; an administrator must hear of it.
    Unwell,
    /// Other nodes will do better, and nothing is held against it.
    Avoided,
}

/// How a node was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loss {
    /// Its connection closed or its step ended.
    Closed(String),
    /// It says nothing.
    Silent,
    /// It does not get rid of its ranks.
    Overdue,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Loss::Closed(how) => f.write_str(how),
            Loss::Silent => f.write_str("it no longer answers"),
            Loss::Overdue => f.write_str("it does not get rid of its ranks"),
        }
    }
}

#[derive(Debug, Clone)]
struct Member {
    name: String,
    address: String,
    state: MemberState,
    heard: Time,
    port: u16,
    /// The newest step that its ranks have reported in this run.
    step: Option<u64>,
    /// Its ranks of this run that have ended well.
    done: BTreeSet<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberState {
    /// Its helper has not connected yet.
    Awaited,
    /// It was told to stop what runs and to look whether it is well.
    Preparing {
        since: Time,
    },
    Ready,
    Running,
    Out,
}

#[derive(Debug, Clone)]
enum Phase {
    Gathering {
        since: Time,
    },
    /// A run has failed; its nodes stop.
    Stopping {
        failure: Failure,
        ran: Span,
    },
    Pausing {
        until: Time,
    },
    Running {
        since: Time,
        advanced: Time,
    },
    Over,
}

/// Why a run did not go on.
#[derive(Debug, Clone, PartialEq)]
enum Failure {
    Rank { rank: u32, node: usize, end: End },
    Stuck { node: Option<usize> },
    Lost,
}

/// The state of a launch.
#[derive(Debug, Clone)]
pub struct LaunchedGang {
    rules: LaunchRules,
    members: Vec<Member>,
    /// The nodes of the run, in the order of their ranks.
    slots: Vec<usize>,
    phase: Phase,
    blame: Blame,
    record: LaunchRecord,
    orders: Vec<LauncherOrder>,
}

impl LaunchedGang {
    /// Nodes that the record leaves out are not used.
    pub fn new(rules: LaunchRules, nodes: &[String], record: LaunchRecord, now: Time) -> Self {
        let member = |name: &String| Member {
            name: name.clone(),
            address: String::new(),
            state: if record.out.contains_key(name) { MemberState::Out } else { MemberState::Awaited },
            heard: now,
            port: 0,
            step: None,
            done: BTreeSet::new(),
        };
        let members = nodes.iter().map(member).collect();
        let phase = Phase::Gathering { since: now };
        let blame = Blame::new(bedplate_blame::BlamePolicy::default());
        Self { rules, members, slots: Vec::new(), phase, blame, record, orders: Vec::new() }
    }

    pub fn record(&self) -> &LaunchRecord {
        &self.record
    }

    /// What is to be done since the last question.
    pub fn take_orders(&mut self) -> Vec<LauncherOrder> {
        std::mem::take(&mut self.orders)
    }

    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Whether a helper is to be started on a node.
    pub fn is_used(&self, node: usize) -> bool {
        self.members[node].state != MemberState::Out
    }

    /// The nodes that run the gang now.
    pub fn running(&self) -> Vec<&str> {
        let running = matches!(self.phase, Phase::Running { .. });
        self.slots.iter().filter(|_| running).map(|node| self.members[*node].name.as_str()).collect()
    }

    /// The helper of a node has connected from an address.
    pub fn linked(&mut self, node: usize, address: String, now: Time) {
        let member = &mut self.members[node];
        if member.state == MemberState::Awaited {
            (member.address, member.heard) = (address, now);
            self.prepare(node, now);
        }
    }

    pub fn heard(&mut self, node: usize, now: Time) {
        self.members[node].heard = now;
    }

    /// Nothing runs on a node any more, and it has looked after itself.
    pub fn ready(&mut self, node: usize, port: u16, finding: Option<String>, now: Time) {
        self.heard(node, now);
        if !matches!(self.members[node].state, MemberState::Preparing { .. }) {
            return;
        }
        match finding {
            Some(finding) => self.unwell(node, &finding),
            None => {
                let member = &mut self.members[node];
                (member.state, member.port) = (MemberState::Ready, port);
            }
        }
        self.advance(now);
    }

    pub fn lost(&mut self, node: usize, loss: &Loss, now: Time) {
        if self.members[node].state == MemberState::Out || self.is_over() {
            return;
        }
        self.give_up(node, loss, now);
        if matches!(self.phase, Phase::Running { .. }) && self.slots.contains(&node) {
            self.fail(Failure::Lost, now);
        }
        self.advance(now);
    }

    /// A node whose helper never came says nothing about the node; one that went away does.
    fn give_up(&mut self, node: usize, loss: &Loss, now: Time) {
        let name = self.members[node].name.clone();
        if self.members[node].state == MemberState::Awaited {
            return self.leave_out(node, format!("node {name} cannot be used: {loss}"), Absence::Avoided);
        }
        let around = self.surroundings();
        let _ = self.blame.node_lost(judgement::node_id(node), around, now);
        // A loss counts like a failed check here: the node does not come back, and a bound on those taken out holds for both.
        let is_believed = self.blame.check_failed(around).takes_out();
        let absence = if is_believed { Absence::Lost } else { Absence::OneOfMany };
        self.leave_out(node, format!("node {name} is lost: {loss}"), absence);
    }

    pub fn rank_ended(&mut self, node: usize, run: u32, rank: u32, end: End, now: Time) {
        self.heard(node, now);
        if run != self.record.runs || !matches!(self.phase, Phase::Running { .. }) {
            return;
        }
        if !end.is_success() {
            let text = format!("rank {rank} on node {} {end}", self.members[node].name);
            self.orders.push(LauncherOrder::Say { text, node: Some(node), rank: Some(rank) });
            return self.fail(Failure::Rank { rank, node, end }, now);
        }
        self.members[node].done.insert(rank);
        let done: usize = self.slots.iter().map(|slot| self.members[*slot].done.len()).sum();
        if done == self.world_size() as usize {
            self.end(0);
        }
    }

    pub fn reported(&mut self, node: usize, run: u32, report: &Report, now: Time) {
        self.heard(node, now);
        if let Report::Checkpoint(checkpoint) = report {
            self.take_checkpoint(checkpoint);
        }
        let Phase::Running { advanced, .. } = &mut self.phase else { return };
        let Some(step) = report.progress().filter(|_| run == self.record.runs) else { return };
        let member = &mut self.members[node];
        if member.step.is_none_or(|known| known < step) {
            member.step = Some(step);
            *advanced = now;
        }
    }

    /// A newer checkpoint gives the job its whole budget of restarts again.
    fn take_checkpoint(&mut self, checkpoint: &Checkpoint) {
        let known = self.record.checkpoint.as_ref().map(|known| known.step);
        if known.is_none_or(|known| known < checkpoint.step) {
            self.record.checkpoint = Some(checkpoint.clone());
            self.record.returns = 0;
            self.blame.progressed(JobId(self.rules.job));
            self.orders.push(LauncherOrder::Save);
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) {
        for node in 0..self.members.len() {
            let member = &self.members[node];
            match member.state {
                MemberState::Awaited | MemberState::Out => {}
                _ if now.since(member.heard) > self.rules.silent_after => self.lost(node, &Loss::Silent, now),
                MemberState::Preparing { since } if now.since(since) > self.rules.stop_patience => {
                    self.lost(node, &Loss::Overdue, now);
                }
                _ => {}
            }
        }
        if let (Phase::Running { advanced, .. }, Some(patience)) = (&self.phase, self.rules.stuck_after)
            && now.since(*advanced) > patience
        {
            let node = self.straggler();
            let text = format!("no step has ended for {patience}");
            self.orders.push(LauncherOrder::Say { text, node, rank: None });
            self.fail(Failure::Stuck { node }, now);
        }
        self.advance(now);
    }

    /// The node whose ranks are behind all others, if one is.
    fn straggler(&self) -> Option<usize> {
        let step = |node: &usize| self.members[*node].step.unwrap_or(0);
        let most = self.slots.iter().map(step).max()?;
        let mut behind = self.slots.iter().filter(|node| step(node) < most);
        behind.next().copied().filter(|_| behind.next().is_none())
    }

    fn world_size(&self) -> u32 {
        self.rules.ranks_per_node * self.rules.size as u32
    }

    fn prepare(&mut self, node: usize, now: Time) {
        self.members[node].state = MemberState::Preparing { since: now };
        self.orders.push(LauncherOrder::Send { node, message: ToNode::Prepare });
    }

    fn leave_out(&mut self, node: usize, reason: String, absence: Absence) {
        let member = &mut self.members[node];
        member.state = MemberState::Out;
        self.record.out.insert(member.name.clone(), reason.clone());
        self.orders.push(LauncherOrder::LeaveOut { node, reason, absence });
        self.orders.push(LauncherOrder::Save);
    }

    /// Stops the run on all its nodes.
    fn fail(&mut self, failure: Failure, now: Time) {
        let Phase::Running { since, .. } = self.phase else { return };
        self.phase = Phase::Stopping { failure, ran: now.since(since) };
        for node in self.slots.clone() {
            if self.members[node].state == MemberState::Running {
                self.prepare(node, now);
            }
        }
    }

    /// Goes on where what was waited for has happened.
    fn advance(&mut self, now: Time) {
        match &self.phase {
            Phase::Gathering { since } => self.gather(*since, now),
            Phase::Stopping { failure, ran } if !self.is_stopping() => {
                let (failure, ran) = (failure.clone(), *ran);
                self.judge(&failure, ran, now);
            }
            Phase::Pausing { until } if *until <= now => self.start(now),
            _ => {}
        }
    }

    fn is_stopping(&self) -> bool {
        let is_stopping = |node: &usize| matches!(self.members[*node].state, MemberState::Preparing { .. });
        self.slots.iter().any(is_stopping)
    }

    fn gather(&mut self, since: Time, now: Time) {
        let is_open =
            |member: &Member| matches!(member.state, MemberState::Awaited | MemberState::Preparing { .. });
        let open = self.members.iter().filter(|member| is_open(member)).count();
        let ready = self.count_ready();
        let waited = now.since(since);
        if ready >= self.rules.size && (open == 0 || waited >= self.rules.gather_all) {
            return self.start(now);
        }
        if ready + open < self.rules.size || waited >= self.rules.gather_enough {
            self.go_short();
        }
    }

    fn count_ready(&self) -> usize {
        self.members.iter().filter(|member| member.state == MemberState::Ready).count()
    }

    /// Too few nodes are left in the allocation. The job goes back to the queue, but not for ever.
    fn go_short(&mut self) {
        let (ready, size) = (self.count_ready(), self.rules.size);
        let why = format!("{ready} of the {size} nodes that the gang needs are left");
        let was_used = |member: &Member| !member.address.is_empty() || member.state == MemberState::Awaited;
        if !self.members.iter().any(was_used) {
            let text = "no node could be used: is this program installed at the same place on all nodes?";
            self.say(text);
            return self.end(1);
        }
        if self.record.returns >= self.blame.policy().most_restarts {
            let returns = self.record.returns;
            let text = format!(
                "{why}, and the job went back to the queue {returns} times without a newer checkpoint"
            );
            self.say(text);
            return self.end(1);
        }
        self.record.returns += 1;
        self.phase = Phase::Over;
        self.orders.push(LauncherOrder::Save);
        self.orders.push(LauncherOrder::Requeue { why });
    }

    /// Something about the whole job.
    fn say(&mut self, text: impl Into<String>) {
        self.orders.push(LauncherOrder::Say { text: text.into(), node: None, rank: None });
    }

    fn end(&mut self, code: u8) {
        self.phase = Phase::Over;
        self.orders.push(LauncherOrder::End { code });
    }

    /// Nodes of the last run keep their places; others take those of the missing.
    fn choose(&self) -> Vec<usize> {
        let is_ready = |node: &usize| self.members[*node].state == MemberState::Ready;
        let stays: BTreeSet<usize> = self.slots.iter().copied().filter(is_ready).collect();
        let mut others = (0..self.members.len()).filter(|node| is_ready(node) && !stays.contains(node));
        let places: Vec<Option<usize>> = match self.slots.is_empty() {
            true => vec![None; self.rules.size],
            false => self.slots.iter().map(|node| Some(*node).filter(is_ready)).collect(),
        };
        places.into_iter().filter_map(|place| place.or_else(|| others.next())).collect()
    }

    fn start(&mut self, now: Time) {
        if self.count_ready() < self.rules.size {
            return self.go_short();
        }
        self.slots = self.choose();
        self.record.runs += 1;
        self.orders.push(LauncherOrder::Save);
        let names: Vec<&str> = self.slots.iter().map(|node| self.members[*node].name.as_str()).collect();
        let from =
            self.record.checkpoint.as_ref().map(|checkpoint| format!(" from step {}", checkpoint.step));
        let text =
            format!("run {} starts on {}{}", self.record.runs, names.join(","), from.unwrap_or_default());
        self.say(text);
        for (index, node) in self.slots.clone().into_iter().enumerate() {
            let message = ToNode::Start(Box::new(self.part(index)));
            let member = &mut self.members[node];
            (member.state, member.step, member.done) = (MemberState::Running, None, BTreeSet::new());
            self.orders.push(LauncherOrder::Send { node, message });
        }
        self.phase = Phase::Running { since: now, advanced: now };
    }

    /// What the node at a place of the gang starts.
    fn part(&self, index: usize) -> RanksStart {
        let ranks = self.rules.ranks_per_node;
        let first = ranks * index as u32;
        let peer = |node: &usize| Peer {
            name: self.members[*node].name.clone(),
            address: self.members[*node].address.clone(),
            role: bedplate_job::Role::ONLY.to_owned(),
            tasks: ranks,
            gpus: self.rules.gpus_per_node,
        };
        RanksStart {
            run: self.record.runs,
            node_index: index as u32,
            peers: self.slots.iter().map(peer).collect(),
            ranks: (first..first + ranks).collect(),
            world_size: self.world_size(),
            master_port: self.slots.first().map_or(0, |node| self.members[*node].port),
            command: self.rules.command.clone(),
            restarts: self.record.runs - 1,
            checkpoint: self.record.checkpoint.clone().map(|checkpoint| (checkpoint.step, checkpoint.path)),
            output: self.rules.output.clone(),
            error: self.rules.error.clone(),
            input: self.rules.input.clone(),
            set: BTreeMap::new(),
        }
    }
}
