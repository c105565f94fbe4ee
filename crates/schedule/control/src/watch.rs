//! Runs that take too long to begin, to end, or to move at all; and the signal before their time is up.

use std::collections::BTreeSet;

use bedplate_blame::FaultKind;
use bedplate_gangs::{Event, JobId, NodeOrder, Span, Time};
use bedplate_job::{Receiver, Workload};
use bedplate_topology::NodeId;

use crate::Control;
use crate::run::{LaunchPhase, ManagedRun, MemberState, RunProgress};
use crate::wire::{Audience, ToAgent};

impl Control {
    pub(crate) fn watch_runs(&mut self, now: Time) {
        let jobs: Vec<JobId> = self.runs.keys().copied().collect();
        for job in jobs {
            let Some(run) = self.runs.get(&job) else {
                continue;
            };
            match run.phase {
                LaunchPhase::Preparing if now >= run.started + self.rules.prepare_within => {
                    self.give_up_unready(job, now);
                }
                LaunchPhase::Stopping { since, grace } if now >= since + grace + self.rules.overdue => {
                    let holders = run.holders();
                    holders.into_iter().for_each(|node| self.give_up_overdue(job, node, now));
                }
                LaunchPhase::Running => self.watch_running(job, now),
                _ => {}
            }
        }
    }

    /// When a running run must be checked although nothing happens.
    pub(crate) fn next_watch(&self, run: &ManagedRun) -> Option<Time> {
        let stuck = self.stuck_after(run).map(|patience| oldest_progress(run) + patience);
        stuck.into_iter().chain(self.signal_at(run)).chain(self.newcomers_due(run)).min()
    }

    /// Until when nodes that join a run must be ready.
    fn newcomers_due(&self, run: &ManagedRun) -> Option<Time> {
        (!run.asked().is_empty()).then(|| run.started + self.rules.prepare_within)
    }

    fn give_up_unready(&mut self, job: JobId, now: Time) {
        let run = &self.runs[&job];
        let unready = run.members.iter().filter(|(_, member)| member.state == MemberState::Asked);
        let nodes: Vec<NodeId> = unready.map(|(node, _)| *node).collect();
        let within = self.rules.prepare_within;
        let reason = format!("not ready on {} within {within}", self.names_of(&nodes));
        self.fault(job, &nodes, FaultKind::Unready, &reason, now);
    }

    /// A node that does not end a run takes nothing new, and nothing waits for it any more.
    fn give_up_overdue(&mut self, job: JobId, node: NodeId, now: Time) {
        let run = self.member(job, node).id;
        self.nodes[node.0 as usize].rests.insert(run);
        let reason = format!("it has not ended {run}");
        self.note_node(node, reason.clone(), now);
        self.news.push_back(Event::Node { node, order: NodeOrder::Drain });
        self.accuse(job, node, FaultKind::Overdue, &reason, now);
        self.lose_member(job, node, now);
    }

    fn watch_running(&mut self, job: JobId, now: Time) {
        let run = &self.runs[&job];
        if self.signal_at(run).is_some_and(|at| at <= now) {
            self.signal(job, now);
        }
        let run = &self.runs[&job];
        if self.newcomers_due(run).is_some_and(|at| at <= now) {
            return self.give_up_unready(job, now);
        }
        if let Some(patience) = self.stuck_after(run)
            && now >= oldest_progress(run) + patience
        {
            self.free_stuck(job, patience, now);
        }
    }

    fn stuck_after(&self, run: &ManagedRun) -> Option<Span> {
        let health = &self.jobs.get(&run.job())?.job.health;
        health.stuck_after.map(Span::from)
    }

    /// When its ranks are told to write a checkpoint because their time is nearly up.
    fn signal_at(&self, run: &ManagedRun) -> Option<Time> {
        let signal = self.jobs.get(&run.job())?.job.policy.checkpoint_signal?;
        let ends = self.scheduler.ends_at(run.job())?;
        (!run.was_signalled).then(|| ends - signal.before.into())
    }

    fn signal(&mut self, job: JobId, now: Time) {
        let Some(live) = self.jobs.get(&job) else {
            return;
        };
        let Some(signal) = live.job.policy.checkpoint_signal else {
            return;
        };
        let to = match (&live.job.workload, signal.receiver) {
            (Workload::Script { .. }, Receiver::Tasks) => Audience::Steps,
            (Workload::Script { .. }, Receiver::Script) => Audience::Script,
            _ => Audience::All,
        };
        self.note_job(job, format!("is told by signal {} that its time is nearly up", signal.signal), now);
        let run = self.run(job);
        run.was_signalled = true;
        let nodes = run.holders();
        for node in nodes {
            let run = self.member(job, node).id;
            self.send(node, ToAgent::Signal { run, signal: signal.signal, to });
        }
    }

    /// No sign of progress for too long: the gang starts again, and the nodes behind the rest are remembered.
    fn free_stuck(&mut self, job: JobId, patience: Span, now: Time) {
        let run = &self.runs[&job];
        let culprits = culprits(run);
        let is_clear = !culprits.is_empty() && culprits.len() < run.members.len();
        let culprits: Vec<NodeId> = if is_clear { culprits.into_iter().collect() } else { Vec::new() };
        self.run(job).progress.clear();
        self.run(job).running = Some(now);
        self.fault(job, &culprits, FaultKind::Stalled, &format!("no progress for {patience}"), now);
    }
}

/// When the rank that has been silent longest was last heard, or when all began.
fn oldest_progress(run: &ManagedRun) -> Time {
    let began = run.running.unwrap_or(run.started);
    alive_progress(run).map(|(_, progress)| progress.at).min().unwrap_or(began).max(began)
}

/// The nodes of the ranks that are behind all others.
fn culprits(run: &ManagedRun) -> BTreeSet<NodeId> {
    let Some(least) = alive_progress(run).map(|(_, progress)| progress.step).min() else {
        return BTreeSet::new();
    };
    let behind = alive_progress(run).filter(|(_, progress)| progress.step == least);
    behind.map(|(node, _)| node).collect()
}

/// How far the ranks are whose nodes have not ended their part.
fn alive_progress(run: &ManagedRun) -> impl Iterator<Item = (NodeId, RunProgress)> {
    let alive = run.members.iter().filter(|(_, member)| !member.is_gone());
    let ranks = alive.flat_map(|(node, member)| member.ranks.iter().map(|rank| (*node, *rank)));
    ranks.filter_map(|(node, rank)| Some((node, *run.progress.get(&rank)?)))
}
