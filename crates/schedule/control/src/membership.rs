//! Nodes that join, speak, fall silent, come back, and are taken out of service.

use bedplate_blame::NodeVerdict;
use bedplate_diag::Reason;
use bedplate_gangs::{Event, JobId, NodeOrder, Span, Time};
use bedplate_topology::NodeId;

use crate::Folders;
use crate::control::{Command, Control, LinkId};
use crate::faults::surroundings;
use crate::node::Presence;
use crate::reason;
use crate::record::Record;
use crate::run::{LaunchPhase, MemberState};
use crate::wire::{FromAgent, HeldPhase, HeldRun, Hello, RunId, ToAgent};

impl Control {
    /// An agent has opened a connection and says who it is.
    pub fn linked(&mut self, link: LinkId, hello: Hello, now: Time) {
        let now = self.advance(now);
        let Some(node) = self.scheduler.cluster().find_node(&hello.node) else {
            return self.turn_away(link, format!("this cluster has no node `{}`", hello.node));
        };
        if self.is_another(node, &hello, now) {
            let known = &self.nodes[node.0 as usize];
            let (name, host, address) = (&hello.node, &known.host.name, &known.address);
            let why = format!("another agent is node `{name}` already, on `{host}` ({address})");
            return self.turn_away(link, why);
        }
        self.replace_link(node, link);
        let known = &mut self.nodes[node.0 as usize];
        known.address = hello.address;
        known.host = hello.host;
        if known.incarnation != hello.incarnation {
            // An agent that was started anew finds everything anew, by a clock that may have been set.
            known.acknowledged_ms = 0;
        }
        known.incarnation = hello.incarnation;
        let was_away = known.presence == Presence::Away;
        known.presence = Presence::Linked { link, heard: now };
        self.record_node(node);
        self.note_node(node, if was_away { "joined" } else { "came back" }.into(), now);
        self.welcome(node, link, &hello.held);
        self.compare(node, &hello.held, Patience::None, now);
        self.resume_if_clean(node);
        self.settle(now);
    }

    fn turn_away(&mut self, link: LinkId, why: String) {
        self.output.urgent.push(Command::Send { link, message: ToAgent::Unwelcome { why } });
        self.output.urgent.push(Command::Close { link });
    }

    /// Whether an agent takes the name of a node whose own agent is there: whoever came first stays. One that was started anew finds the link of
    /// the one before it closed, or silent soon.
    fn is_another(&self, node: NodeId, hello: &Hello, now: Time) -> bool {
        let known = &self.nodes[node.0 as usize];
        let is_heard = match known.presence {
            Presence::Linked { heard, .. } => now.since(heard) < self.rules.silence,
            Presence::Closed { .. } | Presence::Expected { .. } | Presence::Away => false,
        };
        is_heard && known.incarnation != hello.incarnation
    }

    fn replace_link(&mut self, node: NodeId, link: LinkId) {
        if let Some(older) = self.nodes[node.0 as usize].link() {
            self.links.remove(&older);
            self.output.urgent.push(Command::Close { link: older });
        }
        self.links.insert(link, node);
    }

    fn welcome(&mut self, node: NodeId, link: LinkId, held: &[HeldRun]) {
        let keep: Vec<RunId> =
            held.iter().map(|held| held.run).filter(|run| self.is_member(*run, node)).collect();
        let is_alive = |held: &&HeldRun| !matches!(held.phase, HeldPhase::Released { .. });
        let rests = held.iter().filter(is_alive).map(|held| held.run).filter(|run| !keep.contains(run));
        self.nodes[node.0 as usize].rests = rests.collect();
        let message = ToAgent::Welcome {
            keep,
            heartbeat_ms: self.rules.heartbeat.0,
            silence_ms: self.rules.silence.0,
            closed_ms: self.rules.closed_grace.0,
        };
        self.output.commands.push(Command::Send { link, message });
        let Folders { age, bytes } = self.rules.folders;
        let message = ToAgent::Retain { age_ms: age.0, bytes };
        self.output.commands.push(Command::Send { link, message });
    }

    pub(crate) fn is_member(&self, id: RunId, node: NodeId) -> bool {
        let member = self.runs.get(&JobId(id.job)).and_then(|run| run.members.get(&node));
        member.is_some_and(|member| member.id == id && member.state != MemberState::Lost)
    }

    /// A node works again once nothing is left of the runs that had to end there.
    pub(crate) fn resume_if_clean(&mut self, node: NodeId) {
        let known = &self.nodes[node.0 as usize];
        if known.link().is_none() || !known.rests.is_empty() {
            return;
        }
        let is_out = known.drained.is_some() || self.is_closing;
        let order = if is_out { NodeOrder::Drain } else { NodeOrder::Resume };
        self.news.push_back(Event::Node { node, order });
    }

    /// A message from an agent. Messages over a link that has been replaced are ignored.
    pub fn heard(&mut self, link: LinkId, message: FromAgent, now: Time) {
        let now = self.advance(now);
        let Some(node) = self.links.get(&link).copied() else {
            return;
        };
        self.nodes[node.0 as usize].presence = Presence::Linked { link, heard: now };
        match message {
            FromAgent::Hello(_) | FromAgent::Chunk { .. } => {}
            FromAgent::Heartbeat { sequence, held, findings } => {
                let message = ToAgent::Alive { sequence };
                self.output.urgent.push(Command::Send { link, message });
                self.compare(node, &held, Patience::UntilRepeat, now);
                self.forget_rests(node, &held);
                self.found(node, findings, now);
            }
            FromAgent::Prepared { run, master_port } => self.prepared(node, run, master_port, now),
            FromAgent::NotPrepared { run, why } => self.not_prepared(node, run, why, now),
            FromAgent::RankFailed { run, rank, end } => self.rank_failed(node, run, rank, end, now),
            FromAgent::Released { run, end } => self.released(node, run, end, now),
            FromAgent::Report { run, rank, report } => self.reported(run, rank, report, now),
            FromAgent::Findings { findings } => self.found(node, findings, now),
            // Who diagnoses jobs hears them.
            FromAgent::Counters { .. } => {}
            FromAgent::Unhealthy { reason, run: None } => self.check_failed(node, &reason, now),
            FromAgent::Unhealthy { reason, run: Some(run) } => self.probe_failed(node, run, &reason, now),
            FromAgent::Healthy => {
                self.nodes[node.0 as usize].is_alarmed = false;
                self.note_node(node, "its probe succeeds again".into(), now);
            }
            FromAgent::Checked { fault } => self.checked(node, fault, now),
            FromAgent::Dumped { run, what } => self.dumped(node, run, &what, now),
            FromAgent::StepWanted(request) => self.start_step(node, &request),
        }
        self.settle(now);
    }

    /// How long ago each link was heard, where a shell answers heartbeats itself.
    pub fn signs_of_life(&mut self, ages: impl IntoIterator<Item = (LinkId, Span)>, now: Time) {
        let now = self.advance(now);
        for (link, age) in ages {
            let node = self.links.get(&link).map(|node| &mut self.nodes[node.0 as usize]);
            if let Some(Presence::Linked { heard, .. }) = node.map(|node| &mut node.presence) {
                *heard = (*heard).max(now - age);
            }
        }
    }

    fn forget_rests(&mut self, node: NodeId, held: &[HeldRun]) {
        let known = &mut self.nodes[node.0 as usize];
        if known.rests.is_empty() {
            return;
        }
        let is_there = |run: &RunId| {
            held.iter().any(|held| held.run == *run && !matches!(held.phase, HeldPhase::Released { .. }))
        };
        known.rests.retain(is_there);
        self.resume_if_clean(node);
    }

    /// A connection has ended. One that the agent closed proves that the agent acts, or is gone with its runs. One that
    /// broke proves nothing: the agent may stand still, and its runs live until their lease ends.
    pub fn unlinked(&mut self, link: LinkId, how: Unlinked, now: Time) {
        let now = self.advance(now);
        let Some(node) = self.links.remove(&link) else {
            return;
        };
        let node = &mut self.nodes[node.0 as usize];
        let closed = now + self.rules.closed_grace;
        let until = match (how, node.presence) {
            (Unlinked::Broken, Presence::Linked { heard, .. }) => closed.max(heard + self.rules.silence),
            _ => closed,
        };
        node.presence = Presence::Closed { until };
    }

    pub(crate) fn lose_unheard_nodes(&mut self, now: Time) {
        for at in 0..self.nodes.len() {
            if let Some((lost_at, why)) = self.nodes[at].lost_at(&self.rules)
                && lost_at <= now
            {
                self.lose(NodeId(at as u32), why, now);
            }
        }
    }

    /// A node is gone, with whatever ran on it; its agent has killed that by now.
    pub(crate) fn lose(&mut self, node: NodeId, why: &str, now: Time) {
        if let Some(link) = self.nodes[node.0 as usize].link() {
            self.links.remove(&link);
            self.output.urgent.push(Command::Close { link });
        }
        self.nodes[node.0 as usize].presence = Presence::Away;
        self.note_node(node, format!("lost: {why}"), now);
        let verdict = self.blame.node_lost(node, surroundings(&self.nodes, node), now);
        match verdict {
            NodeVerdict::Flapping { losses } if self.nodes[node.0 as usize].drained.is_none() => {
                let window = self.blame.policy().flapping_window;
                self.mark_drained(node, reason::flapping(losses, window), now);
            }
            _ => {
                self.note_if_too_many(node, verdict, now);
                self.record_node(node);
            }
        }
        self.news.push_back(Event::Node { node, order: NodeOrder::Fail });
        for job in self.runs_on(node) {
            self.lose_member(job, node, now);
        }
    }

    /// What a run had on a node is gone.
    pub(crate) fn lose_member(&mut self, job: JobId, node: NodeId, now: Time) {
        let member = self.member(job, node);
        if !member.is_gone() {
            member.state = MemberState::Lost;
        }
        let phase = self.run(job).phase;
        match phase {
            // The memory of the others is of no use without it.
            LaunchPhase::Suspended => self.discard_run(job, now),
            LaunchPhase::Stopping { .. } => self.finish_if_gone(job, now),
            // The scheduler decides: a spare, or the queue.
            LaunchPhase::Preparing | LaunchPhase::Running => {}
        }
    }

    pub(crate) fn record_node(&mut self, node: NodeId) {
        let row = self.nodes[node.0 as usize].row(self.blame.losses(node));
        self.output.records.push(Record::Node(row));
    }

    pub(crate) fn mark_drained(&mut self, node: NodeId, reason: Reason, now: Time) {
        self.note_node(node, format!("taken out of service: {reason}"), now);
        self.nodes[node.0 as usize].drained = Some(reason);
        self.record_node(node);
    }

    /// The node finishes what runs and takes nothing new.
    pub(crate) fn drain(&mut self, node: NodeId, reason: Reason, now: Time) {
        self.mark_drained(node, reason, now);
        if self.nodes[node.0 as usize].presence != Presence::Away {
            self.news.push_back(Event::Node { node, order: NodeOrder::Drain });
        }
    }

    /// The node works again; earlier losses no longer count.
    pub(crate) fn undrain(&mut self, node: NodeId, now: Time) {
        self.acknowledge_findings(node);
        let known = &mut self.nodes[node.0 as usize];
        (known.drained, known.is_alarmed) = (None, false);
        self.blame.forgive(node);
        self.record_node(node);
        self.note_node(node, "put back into service".into(), now);
        self.resume_if_clean(node);
    }

    /// Compares what a node says it has with what it should have.
    fn compare(&mut self, node: NodeId, held: &[HeldRun], patience: Patience, now: Time) {
        for HeldRun { run, phase, .. } in held {
            if !self.is_member(*run, node) {
                let message = match phase {
                    HeldPhase::Released { .. } => ToAgent::Forget { run: *run },
                    _ => ToAgent::Stop { run: *run, grace_ms: 0 },
                };
                self.send(node, message);
            }
        }
        for job in self.runs_on(node) {
            if !self.runs.get(&job).is_some_and(|run| run.holds(node)) {
                continue;
            }
            let id = self.runs[&job].members[&node].id;
            let held = held.iter().find(|held| held.run == id);
            self.compare_run(job, node, held, patience, now);
        }
    }

    fn compare_run(
        &mut self,
        job: JobId,
        node: NodeId,
        held: Option<&HeldRun>,
        patience: Patience,
        now: Time,
    ) {
        let run = &self.runs[&job];
        let (run_phase, member) = (run.phase, &run.members[&node]);
        let id = member.id;
        // An order of a moment ago may not have arrived when this was sent.
        if patience == Patience::UntilRepeat && now.since(member.told) < self.rules.repeat_after {
            return;
        }
        let is_suspended = held.is_some_and(|held| held.is_suspended);
        match (held.map(|held| &held.phase), &member.state) {
            (_, MemberState::Released(_) | MemberState::Lost) => {}
            (Some(HeldPhase::Released { end }), _) => self.released(node, id, end.clone(), now),
            (None, MemberState::Asked)
                if matches!(run_phase, LaunchPhase::Preparing | LaunchPhase::Running) =>
            {
                self.ask_to_prepare(job, node, now)
            }
            (None, _) => self.vanished(job, node, now),
            (Some(HeldPhase::Stopping), _) => {}
            (Some(_), _) if matches!(run_phase, LaunchPhase::Stopping { .. }) => {
                self.stop_member(job, node, now)
            }
            (Some(_), _) if (run_phase == LaunchPhase::Suspended) != is_suspended => {
                self.order_suspension(job, node, now);
            }
            (Some(_), _) if is_suspended => {}
            (Some(HeldPhase::Prepared { master_port }), MemberState::Asked) => {
                self.prepared(node, id, *master_port, now);
            }
            (Some(HeldPhase::Prepared { .. }), MemberState::Prepared { .. } | MemberState::Running)
                if run_phase == LaunchPhase::Running =>
            {
                self.let_newcomer_go(job, node, now);
            }
            (Some(_), _) => {}
        }
    }
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unlinked {
    /// By the agent.
    Closed,
    /// In between, or because nothing could be written any more.
    Broken,
}

/// Whether an order of a moment ago is given time to arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// A new link: nothing is on its way.
    None,
    UntilRepeat,
}
