//! Who answers for a failure, and whether the job may start again.

use bedplate_blame::{
    Circumstances, FaultKind, JobFault, JobVerdict, NodeVerdict, Program, Restart, RestartCause,
};
use bedplate_gangs::{JobId, Span, Time, UserId};
use bedplate_topology::NodeId;

use super::{Absence, Failure, LaunchedGang, LauncherOrder, MemberState, Phase};

pub(super) fn node_id(node: usize) -> NodeId {
    NodeId(node as u32)
}

impl LaunchedGang {
    pub(super) fn surroundings(&self) -> Circumstances {
        let nodes_out = self.members.iter().filter(|member| member.state == MemberState::Out).count();
        Circumstances { nodes: self.members.len(), nodes_out, nodes_proven: nodes_out }
    }

    /// A node's own check fails. It is not used; whether an administrator hears of it is a verdict.
    pub(super) fn unwell(&mut self, node: usize, finding: &str) {
        let verdict = self.blame.check_failed(self.surroundings());
        let absence = if verdict.takes_out() { Absence::Unwell } else { Absence::Avoided };
        let name = self.members[node].name.clone();
        if let NodeVerdict::TooManyOut { out } = verdict {
            self.say(format!("{out} nodes are left out already: look whether the check itself is at fault"));
        }
        self.leave_out(node, format!("node {name} is not well: {finding}"), absence);
    }

    /// All nodes of a failed run have answered or are lost.
    pub(super) fn judge(&mut self, failure: &Failure, ran: Span, now: Time) {
        let is_out = |node: &usize| self.members[*node].state == MemberState::Out;
        let is_nodes_fault = self.slots.iter().any(is_out);
        if !is_nodes_fault && !self.forgives(failure, now) {
            return self.end(exit_code(failure));
        }
        match self.blame.restart(JobId(self.rules.job), RestartCause::Failure, ran) {
            Restart::Exhausted { restarts } => {
                self.say(format!("the job was restarted {restarts} times without a newer checkpoint"));
                self.end(exit_code(failure));
            }
            Restart::After(pause) => {
                self.phase = Phase::Pausing { until: now + pause };
                if pause > Span::ZERO {
                    self.say(format!("the next run starts in {pause}"));
                }
                self.advance(now);
            }
        }
    }

    /// Whether a job may start again after a failure for which no node answers.
    fn forgives(&mut self, failure: &Failure, now: Time) -> bool {
        self.record.failures += 1;
        self.orders.push(LauncherOrder::Save);
        if self.record.failures > self.rules.retries {
            let retries = self.rules.retries;
            self.say(format!("the job failed by itself, with {retries} retries allowed"));
            return false;
        }
        let Some((node, kind)) = accused(failure) else { return true };
        let (job, program) = (JobId(self.rules.job), Program(0));
        let fault = JobFault { job, user: UserId(0), program, gpus: 0, node: node_id(node), kind };
        let around = self.surroundings();
        match self.blame.job_failed(fault, || around, now).job {
            JobVerdict::GoOn => true,
            JobVerdict::End { nodes } => {
                self.say(format!("the job failed on {nodes} nodes: the fault is its own"));
                false
            }
            JobVerdict::Avoid(_) => {
                // Without a spare the node is all there is.
                if self.count_ready() > self.rules.size {
                    let name = &self.members[node].name;
                    self.leave_out(node, format!("the job failed twice on node {name}"), Absence::Avoided);
                }
                true
            }
        }
    }
}

fn accused(failure: &Failure) -> Option<(usize, FaultKind)> {
    match failure {
        Failure::Rank { node, .. } => Some((*node, FaultKind::Crashed)),
        Failure::Stuck { node } => node.map(|node| (node, FaultKind::Stalled)),
        Failure::Lost => None,
    }
}

fn exit_code(failure: &Failure) -> u8 {
    match failure {
        Failure::Rank { end, .. } => end.exit_code(),
        Failure::Stuck { .. } | Failure::Lost => 1,
    }
}
