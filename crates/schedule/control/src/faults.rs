//! Faults and what follows from them: `blame` judges, this carries the verdict out.

use bedplate_blame::{Circumstances, FaultKind, JobFault, JobVerdict, NodeVerdict, Restart, RestartCause};
use bedplate_finding::{Finding, OpenFinding, Subject};
use bedplate_gangs::{Event, JobId, NodeOrder, Span, Time};
use bedplate_topology::NodeId;

use crate::live::LiveJob;
use crate::node::{ManagedNode, Presence};
use crate::record::Charge;
use crate::run::{RunVerdict, Then};
use crate::wire::ToAgent;
use crate::{Control, reason};

/// More failures of one job than any verdict needs.
const MOST_CHARGES: usize = 64;
/// The kind of a charge that is no fault.
const MOVE: &str = "moved";
/// What a node saw on a GPU this long before a rank's report may be the same fault.
const SAME_FAULT: Span = Span::minutes(10);

impl Control {
    /// A running job failed on some of its nodes in a way that a job can cause: it starts again elsewhere, or is over.
    pub(crate) fn fault(&mut self, job: JobId, nodes: &[NodeId], kind: FaultKind, reason: &str, now: Time) {
        self.note_job(job, reason.to_owned(), now);
        let mut avoid = Vec::new();
        let mut ends = None;
        for node in nodes {
            match self.accuse(job, *node, kind, reason, now) {
                JobVerdict::GoOn => {}
                JobVerdict::Avoid(node) => avoid.push(node),
                JobVerdict::End { nodes } => ends = Some(nodes),
            }
        }
        match ends {
            Some(nodes) => self.give_up(job, format!("it failed on {nodes} different nodes: {reason}"), now),
            None => self.restart_elsewhere(job, avoid, reason, now),
        }
    }

    /// A run ends because a GPU failed one of its ranks, as that rank has said. That is the job's word: the node is suspected
    /// as after any failure of a job. What the node saw itself is told beside it and judged by [`Control::found`].
    pub(crate) fn device_failed(&mut self, job: JobId, now: Time) {
        let run = &self.runs[&job];
        let Some((rank, fault)) = run.fault.clone() else { return };
        let member = run.members.iter().find(|(_, member)| member.ranks.contains(&rank));
        let Some(node) = member.map(|(node, _)| *node) else { return };
        let seen = self.seen_on_devices(job, node, now);
        let reason = reason::device_failed(rank, &self.names_of(&[node]), &fault, seen);
        if self.goes_on_in_place(job) {
            self.accuse(job, node, FaultKind::ReportedDevice, &reason.text, now);
            return self.renew_in_place(job, node, reason, now);
        }
        let text = reason.text.clone();
        self.run(job).verdict = RunVerdict { reason: Some(reason), ..RunVerdict::default() };
        self.fault(job, &[node], FaultKind::ReportedDevice, &text, now);
    }

    /// The newest XID that a node has lately seen on a GPU that the job has there.
    fn seen_on_devices(&self, job: JobId, node: NodeId, now: Time) -> Option<&Finding> {
        let shares = self.runs[&job].shares.iter().filter(|share| share.node == node);
        let devices = shares.fold(0, |devices, share| devices | share.devices);
        let is_own = |open: &&OpenFinding| match open.finding.subject {
            Subject::Gpu { index, .. } => devices & 1_u64.checked_shl(index).unwrap_or(0) != 0,
            _ => false,
        };
        let is_near = |open: &&OpenFinding| now.since(Time(open.seen_ms)) <= SAME_FAULT;
        let findings = self.nodes[node.0 as usize].findings.iter();
        let xids = findings.filter(|open| open.finding.rule.starts_with("gpu/xid-"));
        xids.filter(is_own).filter(is_near).max_by_key(|open| open.seen_ms).map(|open| &open.finding)
    }

    /// Notes a job's failure on a node; the node goes out of service if others have failed there too. What runs on it
    /// may finish.
    pub(crate) fn accuse(
        &mut self,
        job: JobId,
        node: NodeId,
        kind: FaultKind,
        reason: &str,
        now: Time,
    ) -> JobVerdict {
        let Some(live) = self.jobs.get(&job) else {
            return JobVerdict::GoOn;
        };
        let gpus = self.runs.get(&job).map_or(0, |run| run.gpus_on(node));
        let fault = JobFault { job, user: live.user, program: live.program(), gpus, node, kind };
        let verdict = self.blame.job_failed(fault, || surroundings(&self.nodes, node), now);
        self.charge(job, node, kind, now);
        match verdict.node {
            // What is said of a node that is out already is no news.
            _ if self.nodes[node.0 as usize].drained.is_some() => {}
            NodeVerdict::Suspect { users } => self.drain(node, reason::suspected(users, job, reason), now),
            NodeVerdict::Check { jobs } => {
                let text = format!(
                    "checks itself, because {jobs} jobs of one user or program failed on it, last {job}: {reason}"
                );
                self.note_node(node, text, now);
                self.send(node, ToAgent::Check);
            }
            other => self.note_if_too_many(node, other, now),
        }
        verdict.job
    }

    /// What the node's own check has found after jobs failed there.
    pub(crate) fn checked(&mut self, node: NodeId, fault: Option<String>, now: Time) {
        match fault {
            Some(fault) => self.check_failed(node, &fault, now),
            None => {
                self.blame.check_passed(node);
                self.note_node(node, "its check found nothing".into(), now);
            }
        }
    }

    /// Keeps a failure with the job, for a control plane that is started again.
    fn charge(&mut self, job: JobId, node: NodeId, kind: FaultKind, now: Time) {
        let node = self.nodes[node.0 as usize].name.clone();
        self.keep_charge(job, Charge { node, kind: kind.name().to_owned(), at_ms: now.0 }, now);
    }

    /// The same of a restart that followed from a diagnosis.
    pub(crate) fn charge_move(&mut self, job: JobId, now: Time) {
        self.keep_charge(job, Charge { node: String::new(), kind: MOVE.to_owned(), at_ms: now.0 }, now);
    }

    fn keep_charge(&mut self, job: JobId, charge: Charge, now: Time) {
        let oldest = (now - self.blame.policy().window).0;
        self.change(job, now, |life| {
            let failures = &mut life.charges.failures;
            failures.retain(|charge| charge.at_ms >= oldest);
            if failures.len() == MOST_CHARGES {
                failures.remove(0);
            }
            failures.push(charge);
        });
    }

    /// Takes up what an earlier control plane held against a job; says which nodes the job avoids.
    pub(crate) fn restore_charges(&mut self, live: &LiveJob) -> Vec<NodeId> {
        let (job, user, program, charges) = (live.row.id, live.user, live.program(), &live.row.life.charges);
        let gpus = live.job.gang.roles.iter().map(|role| role.gpus_per_node).max().unwrap_or(0);
        self.blame.restore_restarts(job, charges.restarts);
        let mut nodes = Vec::new();
        for Charge { node, kind, at_ms } in &charges.failures {
            if kind == MOVE {
                self.blame.moved(job, Time(*at_ms));
            }
            let node = self.scheduler.cluster().find_node(node);
            if let Some((node, kind)) = node.zip(FaultKind::named(kind)) {
                let fault = JobFault { job, user, program, gpus, node, kind };
                self.blame.restore_fault(fault, Time(*at_ms));
                nodes.push(node);
            }
        }
        nodes.sort_unstable();
        nodes.dedup();
        nodes.retain(|node| self.blame.avoids(job, *node));
        nodes
    }

    /// The node's own check fails: it takes nothing new, and what runs there moves.
    pub(crate) fn check_failed(&mut self, node: NodeId, reason: &str, now: Time) {
        let is_in_service = self.nodes[node.0 as usize].drained.is_none();
        let verdict = self.blame.check_failed(surroundings(&self.nodes, node));
        if is_in_service && !verdict.takes_out() {
            return self.note_if_too_many(node, verdict, now);
        }
        if is_in_service {
            self.mark_drained(node, reason::check_failed(reason), now);
        }
        self.news.push_back(Event::Node { node, order: NodeOrder::Fail });
        self.news.push_back(Event::Node { node, order: NodeOrder::Drain });
    }

    pub(crate) fn note_if_too_many(&mut self, node: NodeId, verdict: NodeVerdict, now: Time) {
        let is_news = !self.nodes[node.0 as usize].is_alarmed;
        if let NodeVerdict::TooManyOut { out } = verdict
            && is_news
        {
            self.nodes[node.0 as usize].is_alarmed = true;
            let text =
                format!("should go out of service, but {out} nodes are out already: an operator must look");
            self.note_node(node, text, now);
        }
    }

    /// Sends a job back to the queue after a failure, if it may start again at all.
    pub(crate) fn restart_elsewhere(&mut self, job: JobId, avoid: Vec<NodeId>, reason: &str, now: Time) {
        if let Some(pause) = self.spend_restart(job, reason, now) {
            self.news.push_back(Event::Postpone { job, until: now + pause, avoid });
            self.news.push_back(Event::Requeue(job));
        }
    }

    /// Takes one of a job's restarts and says how long to wait before it; gives the job up when none is left.
    pub(crate) fn spend_restart(&mut self, job: JobId, reason: &str, now: Time) -> Option<Span> {
        let ran =
            self.runs.get(&job).map_or(Span::ZERO, |run| run.running.map_or(Span::ZERO, |at| now.since(at)));
        let fault = self.runs.get_mut(&job).and_then(|run| run.fault.take());
        let cause = fault.map_or(RestartCause::Failure, |_| RestartCause::ReportedDevice);
        match self.blame.restart(job, cause, ran) {
            Restart::After(pause) => {
                let restarts = self.blame.restarts(job);
                self.change(job, now, |life| life.charges.restarts = restarts);
                Some(pause)
            }
            Restart::Exhausted { restarts } => {
                let reason = format!("given up after {restarts} restarts without progress: {reason}");
                self.give_up(job, reason, now);
                None
            }
        }
    }

    /// The job ends as failed, for this reason.
    fn give_up(&mut self, job: JobId, reason: String, now: Time) {
        self.note_job(job, reason.clone(), now);
        if let Some(run) = self.runs.get_mut(&job) {
            run.then = Then::Report;
            run.verdict.reason = Some(reason::given_up(&reason));
        }
        self.news.push_back(Event::GiveUp(job));
    }
}

/// What a verdict on a node depends on beside the evidence; whether that node itself is out does not count.
pub(crate) fn surroundings(nodes: &[ManagedNode], of: NodeId) -> Circumstances {
    let others = || nodes.iter().enumerate().filter(|(at, _)| *at != of.0 as usize).map(|(_, node)| node);
    let is_out = |node: &&ManagedNode| node.drained.is_some() || node.presence == Presence::Away;
    Circumstances {
        nodes: nodes.len(),
        nodes_out: others().filter(is_out).count(),
        nodes_proven: others().filter(|node| node.is_proven_out()).count(),
    }
}
