//! Carrying out what the scheduler decides: runs begin, stop, move to other nodes, end.
//!
//! A gang that changes its nodes (a lost one replaced, more or fewer of them) goes on as a new run from its newest
//! checkpoint: its ranks are stopped everywhere first, because the size of the world is part of every rank.

use bedplate_diag::Reason;
use bedplate_gangs::{
    Decision, Event, GangOutcome, JobId, NodeShare, Span, StartReason, StopReason, Then as After, Time,
};
use bedplate_job::RankBlocks;
use bedplate_topology::NodeId;

use crate::Control;
use crate::control::state_of;
use crate::reason;
use crate::record::{JobState, RunPhase};
use crate::run::{LaunchPhase, ManagedRun, Member, MemberState, Then};
use crate::wire::{RunId, ToAgent};

impl Control {
    pub(crate) fn carry_out(&mut self, decision: Decision, now: Time) {
        match decision {
            Decision::Start { job, shares, why } => self.start(job, shares, why, now),
            Decision::Stop { job, then: After::Suspend, why, .. } => self.suspend(job, why, now),
            Decision::Stop { job, grace, why, then } => self.stop_for(job, grace, why, then, now),
            Decision::Resume { job } => self.resume(job, now),
            Decision::Shrink { job, nodes, grace, for_job } => {
                let for_whom = for_job.map_or(String::new(), |other| format!(" for {other}"));
                self.note_job(job, format!("gives up {}{for_whom}", self.count_nodes(nodes.len())), now);
                self.regroup(job, &nodes, Vec::new(), grace, now);
            }
            Decision::Grow { job, shares } if self.goes_on_in_place(job) => {
                self.note_job(job, format!("grows by {}", self.count_nodes(shares.len())), now);
                self.grow_in_place(job, shares, now);
            }
            Decision::Grow { job, shares } => {
                self.note_job(job, format!("grows by {}", self.count_nodes(shares.len())), now);
                let grace = self.grace_of(job);
                self.regroup(job, &[], shares, grace, now);
            }
            Decision::Swap { job, lost, shares } => {
                let names = |nodes: Vec<NodeId>| self.names_of(&nodes);
                let new = names(shares.iter().map(|share| share.node).collect());
                self.note_job(job, format!("{} replaced by {new}", names(lost.clone())), now);
                if self.spend_restart(job, "a node was lost", now).is_some() {
                    self.replace_lost(job, &lost, shares, now);
                }
            }
            Decision::GoOnWithout { job, lost } => {
                self.note_job(job, format!("goes on without {}", self.names_of(&[lost])), now);
                match self.goes_on_in_place(job) {
                    true => {
                        let why = reason::node_lost(&self.names_of(&[lost]));
                        self.replace_in_place(job, lost, None, why, now);
                    }
                    false => self.regroup(job, &[lost], Vec::new(), self.grace_after_loss(job), now),
                }
            }
            // Its run is not kept: its agents are told to end it when they come back.
            Decision::Disown { job, why } => {
                self.note_job(job, format!("starts again: {why}"), now);
                self.discard_run(job, now);
                self.change(job, now, |life| life.state = JobState::Waiting);
            }
            Decision::Reject { job, why } => {
                self.end_job(job, JobState::Rejected, Some(Reason::of(&why)), now)
            }
            Decision::Drop { job, outcome } => self.drop_job(job, outcome, now),
        }
    }

    fn start(&mut self, job: JobId, shares: Vec<NodeShare>, why: StartReason, now: Time) {
        let how = match why {
            StartReason::InOrder => String::new(),
            StartReason::Backfilled { past: 0 } => String::new(),
            StartReason::Backfilled { past } => {
                format!(", ahead of {past} that wait, delaying no reservation")
            }
            StartReason::Smaller { nodes, asked } => format!(", with {nodes} of the {asked} nodes asked for"),
            StartReason::Larger { nodes, asked } => {
                format!(", with {nodes} nodes instead of the {asked} asked for")
            }
        };
        let nodes: Vec<NodeId> = shares.iter().map(|share| share.node).collect();
        self.note_job(job, format!("starts on {}{how}", self.names_of(&nodes)), now);
        self.suspended.remove(&job);
        match self.runs.get_mut(&job) {
            // A suspended run whose memory was lost with a node: its rest must go first.
            Some(run) => {
                run.then = Then::Restart { shares, left: Vec::new() };
                self.stop_run(job, Span::ZERO, now);
            }
            None => self.begin_run(job, shares, now),
        }
    }

    /// Asks every node of a new run to make it ready.
    pub(crate) fn begin_run(&mut self, job: JobId, shares: Vec<NodeShare>, now: Time) {
        let Some(live) = self.jobs.get(&job) else {
            return;
        };
        let number = live.row.life.runs + 1;
        let ranks = RankBlocks::of_gang(&live.job, shares.iter().map(|share| share.role));
        let run = ManagedRun::new(RunId { job: job.0, number }, shares, &ranks, now);
        let nodes = run.holders();
        self.keep_run(job, run);
        self.change(job, now, |life| {
            life.runs = number;
            life.state = JobState::Starting;
            life.reason = None;
            life.exit_status = None;
        });
        self.record_run(job, RunPhase::Preparing, now);
        nodes.into_iter().for_each(|node| self.ask_to_prepare(job, node, now));
    }

    pub(crate) fn ask_to_prepare(&mut self, job: JobId, node: NodeId, now: Time) {
        let launch = self.launch(job, node);
        self.member(job, node).told = now;
        self.send(node, ToAgent::Prepare(Box::new(launch)));
    }

    /// All nodes are ready: the ranks may run.
    pub(crate) fn let_go(&mut self, job: JobId, now: Time) {
        let run = self.run(job);
        run.phase = LaunchPhase::Running;
        run.running = Some(now);
        let (master_port, nodes) = (run.named_port(), run.holders());
        run.master_port = Some(master_port);
        self.change(job, now, |life| {
            life.state = JobState::Running;
            life.started_ms.get_or_insert(now.0);
        });
        self.record_run(job, RunPhase::Running, now);
        for node in nodes {
            let member = self.member(job, node);
            member.state = MemberState::Running;
            member.told = now;
            let run = member.id;
            self.send(node, ToAgent::Go { run, master_port });
        }
    }

    fn stop_for(&mut self, job: JobId, grace: Span, why: StopReason, then: After, now: Time) {
        let reason = self.stop_reason(why);
        let grace =
            if matches!(why, StopReason::NodeLost(_)) { grace.min(self.rules.loss_grace) } else { grace };
        let comes_back = if then == After::Requeue { "; it goes back to the queue" } else { "" };
        self.note_job(job, format!("stops: {reason}{comes_back}"), now);
        let Some(run) = self.runs.get_mut(&job) else {
            return;
        };
        run.then = Then::Report;
        run.verdict.reason.get_or_insert(reason.clone());
        run.stops_as = Some(JobState::Waiting);
        if let After::End(outcome) = then {
            run.stops_as = Some(state_of(outcome));
            run.verdict.outcome = Some(outcome);
            if why != StopReason::GivenUp {
                run.verdict.reason = Some(reason.clone());
            }
        }
        self.record_order(job, now);
        self.stop_run(job, grace, now);
        if matches!(why, StopReason::NodeLost(_))
            && then == After::Requeue
            && let Some(pause) = self.spend_restart(job, &reason.text, now)
        {
            self.news.push_back(Event::Postpone { job, until: now + pause, avoid: Vec::new() });
        }
    }

    /// What a run was told to become must survive a restart.
    pub(crate) fn record_order(&mut self, job: JobId, now: Time) {
        let Some(run) = self.runs.get(&job) else {
            return;
        };
        let phase = match (run.running, run.phase) {
            (None, _) => RunPhase::Preparing,
            (Some(_), LaunchPhase::Suspended) => RunPhase::Suspended,
            (Some(_), _) => RunPhase::Running,
        };
        self.record_run(job, phase, now);
    }

    fn stop_reason(&self, why: StopReason) -> Reason {
        match why {
            StopReason::PreemptedBy(other) => reason::preempted_by(other),
            StopReason::TimeLimit => reason::time_limit(),
            StopReason::NodeLost(node) => reason::node_lost(&self.names_of(&[node])),
            StopReason::NodeLeaves(node) => reason::node_leaves(&self.names_of(&[node])),
            StopReason::Cancelled => reason::cancelled(),
            StopReason::Requeued => reason::requeued(),
            StopReason::GivenUp => reason::given_up("it has failed too often"),
        }
    }

    /// Tells every node that holds the run to end it. A second order only shortens the grace.
    pub(crate) fn stop_run(&mut self, job: JobId, grace: Span, now: Time) {
        let Some(run) = self.runs.get_mut(&job) else {
            return;
        };
        // The devices of a suspended run are lent to others: it may not go on, not even to end itself.
        let grace = if run.phase == LaunchPhase::Suspended { Span::ZERO } else { grace };
        run.phase = match run.phase {
            LaunchPhase::Stopping { since, grace: before } if since + before <= now + grace => run.phase,
            _ => LaunchPhase::Stopping { since: now, grace },
        };
        let holders = run.holders();
        if matches!(&run.then, Then::Report | Then::Restart { .. }) {
            self.change(job, now, |life| life.state = JobState::Stopping);
        }
        for node in holders {
            let member = self.member(job, node);
            member.told = now;
            let run = member.id;
            self.send(node, ToAgent::Stop { run, grace_ms: grace.0 });
        }
        self.finish_if_gone(job, now);
    }

    fn suspend(&mut self, job: JobId, why: StopReason, now: Time) {
        self.note_job(job, format!("is suspended: {}", self.stop_reason(why)), now);
        self.suspended.insert(job);
        self.change(job, now, |life| life.state = JobState::Suspended);
        let Some(run) = self.runs.get_mut(&job) else {
            return;
        };
        match run.phase {
            LaunchPhase::Running => run.phase = LaunchPhase::Suspended,
            // It has not begun: there is nothing to keep in memory.
            LaunchPhase::Preparing => return self.discard_run(job, now),
            // It was to go on with other nodes; now it waits until it is resumed.
            LaunchPhase::Stopping { .. } => {
                if let Then::Restart { left, .. } = &mut run.then {
                    let nodes = std::mem::take(left);
                    run.then = Then::Discard;
                    if !nodes.is_empty() {
                        self.news.push_back(Event::Left { job, nodes });
                    }
                }
                return;
            }
            LaunchPhase::Suspended => return,
        }
        let holders = run.holders();
        self.record_run(job, RunPhase::Suspended, now);
        holders.into_iter().for_each(|node| self.order_suspension(job, node, now));
    }

    /// Tells a node to let a run stand still or go on; repeated for as long as its heartbeats say otherwise.
    pub(crate) fn order_suspension(&mut self, job: JobId, node: NodeId, now: Time) {
        let is_suspended = self.runs[&job].phase == LaunchPhase::Suspended;
        let member = self.member(job, node);
        member.told = now;
        let run = member.id;
        self.send(node, if is_suspended { ToAgent::Suspend { run } } else { ToAgent::Resume { run } });
    }

    fn resume(&mut self, job: JobId, now: Time) {
        self.suspended.remove(&job);
        let shares = self.scheduler.shares(job).to_vec();
        let Some(run) = self.runs.get_mut(&job) else {
            return self.begin_run(job, shares, now);
        };
        if run.phase != LaunchPhase::Suspended {
            if run.then == Then::Discard {
                run.then = Then::Restart { shares, left: Vec::new() };
            }
            return;
        }
        run.phase = LaunchPhase::Running;
        run.progress.clear();
        let holders = run.holders();
        self.change(job, now, |life| life.state = JobState::Running);
        self.record_run(job, RunPhase::Running, now);
        self.note_job(job, "goes on".into(), now);
        holders.into_iter().for_each(|node| self.order_suspension(job, node, now));
    }

    /// The gang goes on without some nodes and with others.
    fn regroup(&mut self, job: JobId, leaves: &[NodeId], joins: Vec<NodeShare>, grace: Span, now: Time) {
        let Some(run) = self.runs.get_mut(&job) else {
            return;
        };
        let mut shares = run.future_shares();
        shares.retain(|share| !leaves.contains(&share.node));
        shares.extend(joins);
        let mut left = match std::mem::replace(&mut run.then, Then::Discard) {
            Then::Restart { left, .. } => left,
            Then::Report | Then::Discard => Vec::new(),
        };
        left.extend(leaves);
        run.then = Then::Restart { shares, left };
        self.stop_run(job, grace, now);
    }

    /// Each lost node's place is taken by a new one, so that ranks keep their order.
    fn replace_lost(&mut self, job: JobId, lost: &[NodeId], new: Vec<NodeShare>, now: Time) {
        if self.goes_on_in_place(job) {
            for (lost, new) in lost.iter().zip(new) {
                let why = reason::node_lost(&self.names_of(&[*lost]));
                self.replace_in_place(job, *lost, Some(new), why, now);
            }
            return;
        }
        let grace = self.grace_after_loss(job);
        let Some(run) = self.runs.get_mut(&job) else {
            return;
        };
        let mut shares = run.future_shares();
        for (lost, new) in lost.iter().zip(new) {
            match shares.iter_mut().find(|share| share.node == *lost) {
                Some(share) => *share = new,
                None => shares.push(new),
            }
        }
        let left = match std::mem::replace(&mut run.then, Then::Discard) {
            Then::Restart { left, .. } => left,
            Then::Report | Then::Discard => Vec::new(),
        };
        run.then = Then::Restart { shares, left };
        self.stop_run(job, grace, now);
    }

    /// The job is gone and does not run; what is left of a suspended one is ended.
    fn drop_job(&mut self, job: JobId, outcome: GangOutcome, now: Time) {
        self.suspended.remove(&job);
        if !self.jobs.contains_key(&job) {
            return;
        }
        let reason = (outcome == GangOutcome::Cancelled).then(reason::cancelled);
        self.end_job(job, state_of(outcome), reason, now);
        self.discard_run(job, now);
    }

    pub(crate) fn discard_run(&mut self, job: JobId, now: Time) {
        if let Some(run) = self.runs.get_mut(&job) {
            run.then = Then::Discard;
            self.stop_run(job, Span::ZERO, now);
        }
    }

    /// Once nothing of a run is left: its end is recorded, and what was to come then comes.
    pub(crate) fn finish_if_gone(&mut self, job: JobId, now: Time) {
        let Some(run) = self.runs.get(&job) else {
            return;
        };
        if run.has_no_ranks_left() && !run.is_gone() {
            // The script has ended; its other nodes are let go.
            return self.stop_run(job, Span::ZERO, now);
        }
        if !run.is_gone() || !(run.is_stopping() || run.phase == LaunchPhase::Running) {
            return;
        }
        self.record_run(job, RunPhase::Ended, now);
        let run = self.runs.remove(&job).expect("it was just looked up");
        for (node, member) in &run.members {
            self.send(*node, ToAgent::Forget { run: member.id });
        }
        match run.then.clone() {
            Then::Discard => {}
            Then::Restart { shares, left } => {
                if !left.is_empty() {
                    self.news.push_back(Event::Left { job, nodes: left });
                }
                self.begin_run(job, shares, now);
            }
            Then::Report => self.report_end(job, &run, now),
        }
    }

    fn report_end(&mut self, job: JobId, run: &ManagedRun, now: Time) {
        let outcome = run.outcome();
        let is_done = outcome == GangOutcome::Succeeded && run.stops_as.is_none();
        let status = if is_done { Some(0) } else { run.verdict.exit_status };
        self.jobs.change(job, |life| (life.exit_status, life.reason) = (status, run.verdict.reason.clone()));
        if is_done {
            let is_well = |member: &Member| member.end().is_some_and(|end| end.epilog_failed.is_none());
            for (node, _) in run.members.iter().filter(|(_, member)| is_well(member)) {
                self.blame.job_succeeded(*node, run.gpus_on(*node));
            }
        }
        if self.suspended.contains(&job) {
            // It ended just as it was to be suspended: for the scheduler it does not run.
            self.end_job(job, state_of(outcome), None, now);
            return self.news.push_back(Event::Cancel(job));
        }
        if outcome == GangOutcome::Failed {
            // Where its retries bring it back, they do so less and less quickly.
            let pause = self.blame.policy().pause(self.scheduler.restarts(job) + 1);
            self.news.push_back(Event::Postpone { job, until: now + pause, avoid: Vec::new() });
        }
        self.news.push_back(Event::Ended { job, outcome });
        self.reported.push(job);
    }

    pub(crate) fn grace_of(&self, job: JobId) -> Span {
        self.jobs.get(&job).map_or(Span::ZERO, |live| live.job.policy.grace.into())
    }

    /// What is left of a gang that cannot go on has less time to end.
    pub(crate) fn grace_after_loss(&self, job: JobId) -> Span {
        self.rules.loss_grace.min(self.grace_of(job))
    }

    pub(crate) fn names_of(&self, nodes: &[NodeId]) -> String {
        let names: Vec<&str> = nodes.iter().map(|node| &self.nodes[node.0 as usize].name[..]).collect();
        if names.len() > 8 { format!("{} nodes ({} …)", names.len(), names[0]) } else { names.join(", ") }
    }

    fn count_nodes(&self, count: usize) -> String {
        if count == 1 { "one node".into() } else { format!("{count} nodes") }
    }

    pub(crate) fn run(&mut self, job: JobId) -> &mut ManagedRun {
        self.runs.get_mut(&job).expect("the scheduler orders only what runs")
    }

    pub(crate) fn member(&mut self, job: JobId, node: NodeId) -> &mut Member {
        self.run(job).members.get_mut(&node).expect("callers name members")
    }
}
