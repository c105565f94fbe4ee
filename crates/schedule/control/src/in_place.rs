//! Runs whose ranks survive: a lost node leaves, another one comes, and the ranks that are left go on meanwhile.
//!
//! Each such change begins a new run in the records, as every change of nodes does. Nodes that stay know it by the number
//! under which they were asked; a newcomer gets the new number, so that a node may come back to a gang that it has left.

use bedplate_diag::Reason;
use bedplate_gangs::{JobId, NodeShare, Span, Time};
use bedplate_topology::NodeId;

use crate::Control;
use crate::reason;
use crate::record::RunPhase;
use crate::run::{LaunchPhase, ManagedRun, Member, MemberState};
use crate::wire::{RunId, ToAgent};

impl Control {
    /// Whether the ranks of a run go on by themselves without some of its nodes: they have met, as they said how far they are.
    pub(crate) fn goes_on_in_place(&self, job: JobId) -> bool {
        let survives = self.scheduler.request(job).is_some_and(|request| request.survives);
        let has_met = |run: &ManagedRun| !run.progress.is_empty() || run.has_lost_nodes();
        let is_at_work =
            |run: &ManagedRun| run.phase == LaunchPhase::Running && has_met(run) && run.shares.len() > 1;
        survives && self.runs.get(&job).is_some_and(is_at_work)
    }

    /// A node has left; another one takes its place where one is named.
    pub(crate) fn replace_in_place(
        &mut self,
        job: JobId,
        lost: NodeId,
        new: Option<NodeShare>,
        why: Reason,
        now: Time,
    ) {
        let Some(ranks) = self.runs[&job].members.get(&lost).map(|member| member.ranks.clone()) else {
            return;
        };
        let number = self.begin_anew(job, why, now);
        self.dismiss(job, lost);
        let run = self.run(job);
        match new {
            Some(new) => {
                let node = new.node;
                run.shares
                    .iter_mut()
                    .filter(|share| share.node == lost)
                    .for_each(|share| *share = new.clone());
                run.members.insert(node, Member::asked(number, ranks, now));
                self.given.insert((node, job), ());
                self.record_run(job, RunPhase::Running, now);
                self.ask_to_prepare(job, node, now);
            }
            None => {
                run.shares.retain(|share| share.node != lost);
                self.record_run(job, RunPhase::Running, now);
                self.finish_if_gone(job, now);
            }
        }
    }

    /// More nodes come; their ranks take the lowest numbers that are free.
    pub(crate) fn grow_in_place(&mut self, job: JobId, joins: Vec<NodeShare>, now: Time) {
        let number = self.begin_anew(job, reason::grew(joins.len()), now);
        let tasks = self.jobs[&job].job.gang.roles[0].tasks_per_node;
        for share in joins {
            let run = self.run(job);
            let ranks = run.free_ranks(tasks);
            let node = share.node;
            run.shares.push(share);
            run.members.insert(node, Member::asked(number, ranks, now));
            self.given.insert((node, job), ());
        }
        self.record_run(job, RunPhase::Running, now);
        let asked = self.runs[&job].asked();
        asked.into_iter().for_each(|node| self.ask_to_prepare(job, node, now));
    }

    /// The ranks of a node are gone although the node is there: they start again on it and join the others.
    pub(crate) fn renew_in_place(&mut self, job: JobId, node: NodeId, why: Reason, now: Time) {
        self.note_job(job, format!("{why}; the others go on, and new ones join them"), now);
        if self.spend_restart(job, &why.text, now).is_none() {
            return;
        }
        let share = self.runs[&job].shares.iter().find(|share| share.node == node).cloned();
        if let Some(share) = share {
            self.replace_in_place(job, node, Some(share), why, now);
        }
    }

    /// A node that was to join is ready, while the others run. It waits for the end of ranks that have left: they may be
    /// the very ones whose place it takes. Its heartbeats ask again.
    pub(crate) fn let_newcomer_go(&mut self, job: JobId, node: NodeId, now: Time) {
        if !self.has_rests(job, now) {
            self.member(job, node).state = MemberState::Running;
            self.let_member_go(job, node, now);
        }
    }

    /// What a run has left behind on a node is gone: those that waited for it may go.
    pub(crate) fn let_newcomers_go(&mut self, job: JobId, now: Time) {
        let Some(run) = self.runs.get(&job).filter(|run| run.phase == LaunchPhase::Running) else {
            return;
        };
        let is_ready = |member: &Member| matches!(member.state, MemberState::Prepared { .. });
        let ready = run.members.iter().filter(|(_, member)| is_ready(member));
        let ready: Vec<NodeId> = ready.map(|(node, _)| *node).collect();
        ready.into_iter().for_each(|node| self.let_newcomer_go(job, node, now));
    }

    /// Whether ranks may still live on a node that a run has left. Nothing waits for a node that does not end them in time.
    fn has_rests(&self, job: JobId, now: Time) -> bool {
        let run = &self.runs[&job];
        run.has_lost_nodes()
            && now < run.started + self.rules.overdue
            && self.nodes.iter().any(|node| node.may_hold_rests_of(job))
    }

    /// The record of the run so far ends, and another begins.
    fn begin_anew(&mut self, job: JobId, why: Reason, now: Time) -> RunId {
        self.run(job).verdict.reason = Some(why);
        self.record_run(job, RunPhase::Ended, now);
        let run = self.run(job);
        run.verdict.reason = None;
        run.id.number += 1;
        run.started = now;
        let id = run.id;
        self.change(job, now, |life| life.runs = id.number);
        id
    }

    /// What a node holds of a run must go. It takes nothing new until then.
    fn dismiss(&mut self, job: JobId, node: NodeId) {
        let run = self.run(job);
        let Some(member) = run.members.remove(&node) else {
            return;
        };
        // Another rank speaks for the run now; nobody waits for what these would have said.
        run.progress.retain(|rank, _| !member.ranks.contains(rank));
        let message = match member.is_gone() {
            true => ToAgent::Forget { run: member.id },
            false => {
                self.nodes[node.0 as usize].rests.insert(member.id);
                ToAgent::Stop { run: member.id, grace_ms: Span::ZERO.0 }
            }
        };
        self.send(node, message);
    }
}
