//! What nodes report about runs: ready, not ready, failed, further, ended.

use bedplate_blame::FaultKind;
use bedplate_diag::Reason;
use bedplate_gangs::{Event, GangOutcome, JobId, Span, Time};
use bedplate_job::RankBlocks;
use bedplate_report::{FaultReport, Report};
use bedplate_topology::NodeId;

use crate::Control;
use crate::reason;
use crate::record::RunPhase;
use crate::run::{LaunchPhase, ManagedRun, MemberState, RunProgress, Then};
use crate::wire::{Checkpoint, NodeEnd, NodeStep, RankEnd, RunId, StepRequest, ToAgent, Unready};

/// What the journal can hold.
const LARGEST_STEP: u64 = i64::MAX as u64;
/// How often the steps of a run are recorded: a crash may lose this much of a mean, and the journal stays small.
const RECORD_STEPS_EVERY: Span = Span(10_000);
/// More tasks than any step has.
const MOST_TASKS: u32 = 65_536;

impl Control {
    /// The run of this very number, with this node in it and not given up.
    fn run_on(&mut self, node: NodeId, id: RunId) -> Option<&mut ManagedRun> {
        if self.is_member(id, node) { self.runs.get_mut(&JobId(id.job)) } else { None }
    }

    pub(crate) fn prepared(&mut self, node: NodeId, id: RunId, master_port: Option<u16>, now: Time) {
        let job = JobId(id.job);
        let Some(run) = self.run_on(node, id) else {
            return;
        };
        let member = run.members.get_mut(&node).expect("run_on checked it");
        if member.state != MemberState::Asked {
            return;
        }
        member.state = MemberState::Prepared { master_port };
        match run.phase {
            LaunchPhase::Preparing if run.is_all_prepared() => self.let_go(job, now),
            LaunchPhase::Running => self.let_newcomer_go(job, node, now),
            _ => {}
        }
    }

    pub(crate) fn not_prepared(&mut self, node: NodeId, id: RunId, why: Unready, now: Time) {
        let job = JobId(id.job);
        let Some(run) = self.run_on(node, id) else {
            return;
        };
        let is_expected = run.members.get(&node).is_some_and(|member| member.state == MemberState::Asked);
        if !is_expected || !matches!(run.phase, LaunchPhase::Preparing | LaunchPhase::Running) {
            return;
        }
        match why {
            Unready::Job { why } => self.fail_run(job, reason::cannot_start(why), 1, Span::ZERO, now),
            // It is asked again at the heartbeat after next.
            Unready::Busy { why } => self.note_job(job, format!("not ready: {why}"), now),
            Unready::Prolog { status, output } => {
                let reason = reason::prolog_failed(job, &self.names_of(&[node]), status, &output);
                self.fault(job, &[node], FaultKind::Prolog, &reason.text, now);
            }
        }
    }

    /// A job's own probe found fault with a node: that is the job's opinion.
    pub(crate) fn probe_failed(&mut self, node: NodeId, id: RunId, reason: &str, now: Time) {
        if self.run_on(node, id).is_some_and(|run| !run.is_stopping()) {
            let reason = format!("{reason} on {}", self.names_of(&[node]));
            self.fault(JobId(id.job), &[node], FaultKind::Probe, &reason, now);
        }
    }

    pub(crate) fn rank_failed(&mut self, node: NodeId, id: RunId, rank: u32, end: RankEnd, now: Time) {
        let job = JobId(id.job);
        let Some(run) = self.run_on(node, id) else {
            return;
        };
        if run.is_stopping() {
            return;
        }
        if run.fault.is_some() {
            return self.device_failed(job, now);
        }
        let reason = reason::rank_failed(rank, &self.names_of(&[node]), end);
        if end.is_from_outside() && self.goes_on_in_place(job) {
            return self.renew_in_place(job, node, reason, now);
        }
        if self.is_missing_nodes(job) {
            self.note_job(job, format!("{reason}, after the loss of a node"), now);
            return self.restart_elsewhere(job, Vec::new(), &reason.text, now);
        }
        let grace = self.grace_of(job);
        self.fail_run(job, reason, end.status(), grace, now);
    }

    /// Whether a run has gone on without nodes that it had, or is about to lose one: a rank that fails then may fail because
    /// of that, and the checkpoint is still there.
    fn is_missing_nodes(&self, job: JobId) -> bool {
        let run = &self.runs[&job];
        let is_away = |node: &NodeId| self.nodes[node.0 as usize].link().is_none();
        run.has_lost_nodes() || run.members.keys().any(is_away)
    }

    /// The run has failed by itself; what is left of it is stopped.
    fn fail_run(&mut self, job: JobId, reason: Reason, exit_status: i32, grace: Span, now: Time) {
        self.note_job(job, reason.to_string(), now);
        let run = self.run(job);
        run.then = Then::Report;
        run.verdict.outcome = Some(GangOutcome::Failed);
        run.verdict.exit_status = Some(exit_status);
        run.verdict.reason = Some(reason);
        self.stop_run(job, grace, now);
    }

    pub(crate) fn released(&mut self, node: NodeId, id: RunId, end: NodeEnd, now: Time) {
        let job = JobId(id.job);
        if self.nodes[node.0 as usize].rests.remove(&id) {
            self.resume_if_clean(node);
            self.let_newcomers_go(job, now);
        }
        let Some(run) = self.run_on(node, id) else {
            return self.send(node, ToAgent::Forget { run: id });
        };
        let member = run.members.get_mut(&node).expect("run_on checked it");
        if member.is_gone() {
            return;
        }
        member.state = MemberState::Released(end.clone());
        let is_stopping = run.is_stopping();
        if let Some(reason) = &end.epilog_failed {
            // The work is done, so the job's outcome stands; only the node may have a problem.
            let reason = format!("its epilog failed on {}: {reason}", self.names_of(&[node]));
            self.note_job(job, reason.clone(), now);
            self.accuse(job, node, FaultKind::Epilog, &reason, now);
        }
        match end.failed {
            Some(failed) if !is_stopping => self.rank_failed(node, id, failed.rank, failed.end, now),
            // Stopped by an order that was forgotten in a restart is no success.
            _ if (end.was_lost || end.was_stopped) && !is_stopping => self.lost_ranks(job, node, now),
            _ => self.finish_if_gone(job, now),
        }
    }

    /// A node holds nothing of a run that it should hold: its agent was started anew.
    pub(crate) fn vanished(&mut self, job: JobId, node: NodeId, now: Time) {
        let is_stopping = self.runs[&job].is_stopping();
        self.member(job, node).state = MemberState::Lost;
        if is_stopping { self.finish_if_gone(job, now) } else { self.lost_ranks(job, node, now) }
    }

    /// The node is there, but its ranks are not: the gang starts again.
    fn lost_ranks(&mut self, job: JobId, node: NodeId, now: Time) {
        let reason = reason::ranks_lost(&self.names_of(&[node]));
        if self.goes_on_in_place(job) {
            return self.renew_in_place(job, node, reason, now);
        }
        self.note_job(job, reason.to_string(), now);
        if self.runs[&job].phase == LaunchPhase::Suspended {
            // Its turn comes again, and it starts anew then.
            return self.discard_run(job, now);
        }
        match self.spend_restart(job, &reason.text, now) {
            None => {}
            Some(Span::ZERO) => {
                let run = self.run(job);
                run.then = Then::Restart { shares: run.shares.clone(), left: Vec::new() };
                let grace = self.grace_after_loss(job);
                self.stop_run(job, grace, now);
            }
            Some(pause) => {
                self.news.push_back(Event::Postpone { job, until: now + pause, avoid: Vec::new() });
                self.news.push_back(Event::Requeue(job));
            }
        }
    }

    /// A node has made a run ready that all others already run.
    pub(crate) fn let_member_go(&mut self, job: JobId, node: NodeId, now: Time) {
        let Some(master_port) = self.runs[&job].master_port else {
            return self.lost_ranks(job, node, now);
        };
        let member = self.member(job, node);
        member.told = now;
        let run = member.id;
        self.send(node, ToAgent::Go { run, master_port });
    }

    pub(crate) fn stop_member(&mut self, job: JobId, node: NodeId, now: Time) {
        let LaunchPhase::Stopping { since, grace } = self.runs[&job].phase else {
            return;
        };
        let grace_ms = (since + grace).since(now).0;
        let member = self.member(job, node);
        member.told = now;
        let run = member.id;
        self.send(node, ToAgent::Stop { run, grace_ms });
    }

    pub(crate) fn reported(&mut self, id: RunId, rank: u32, report: Report, now: Time) {
        let run = self.runs.get_mut(&JobId(id.job)).filter(|run| run.is_known_as(id));
        let Some(run) = run else {
            return;
        };
        if let Some(step) = report.progress() {
            let known = run.progress.entry(rank).or_insert(RunProgress { step, at: now });
            // Saying the same again is no progress.
            if step > known.step {
                *known = RunProgress { step, at: now };
            }
        }
        let is_due = run.phase == LaunchPhase::Running && now >= run.steps_recorded + RECORD_STEPS_EVERY;
        if run.history.take(rank, &report) && is_due {
            run.steps_recorded = now;
            self.record_run(JobId(id.job), RunPhase::Running, now);
        }
        match report {
            Report::Checkpoint(checkpoint) => self.checkpointed(id, checkpoint, now),
            Report::Fault(fault) => self.device_reported(JobId(id.job), rank, *fault, now),
            _ => {}
        }
    }

    /// A rank says that a GPU failed it, and ends. Others that miss it may have ended sooner: then that was why.
    fn device_reported(&mut self, job: JobId, rank: u32, fault: FaultReport, now: Time) {
        let run = self.run(job);
        let is_of_run = run.members.values().any(|member| member.ranks.contains(&rank));
        if !is_of_run || run.fault.is_some() {
            return;
        }
        run.fault = Some((rank, fault));
        let ends_for = run.verdict.reason.as_ref().filter(|_| run.is_stopping() && run.stops_as.is_none());
        if ends_for.is_some_and(|reason| reason.code == reason::RANK_FAILED) {
            self.device_failed(job, now);
        }
    }

    /// Somebody who read a run's output knows what a step should take.
    pub fn planned(&mut self, run: RunId, rank: u32, plan: Report, now: Time) {
        self.reported(run, rank, plan, now);
    }

    /// Somebody who watches a job says what slows or stops it.
    pub fn diagnosed(&mut self, job: JobId, what: String, now: Time) {
        self.note_job(job, what, now);
    }

    fn checkpointed(&mut self, id: RunId, checkpoint: Checkpoint, now: Time) {
        let job = JobId(id.job);
        let newest = self.jobs.get(&job).and_then(|live| live.row.life.checkpoint.as_ref());
        let is_older = newest.is_some_and(|newest| newest.step >= checkpoint.step);
        let is_too_large = checkpoint.step > LARGEST_STEP;
        if is_older || is_too_large || self.runs.get(&job).is_none_or(|run| !run.is_known_as(id)) {
            return;
        }
        self.note_job(job, format!("checkpoint at step {}", checkpoint.step), now);
        self.change(job, now, |life| {
            life.checkpoint = Some(checkpoint);
            life.charges.restarts = 0;
        });
        self.blame.progressed(job);
        self.news.push_back(Event::Checkpointed(job));
    }

    /// Starts the tasks of a step on the nodes of the run from which it is asked for.
    pub(crate) fn start_step(&mut self, node: NodeId, request: &StepRequest) {
        let job = JobId(request.run.job);
        if self.run_on(node, request.run).is_none_or(|run| run.phase != LaunchPhase::Running) {
            return;
        }
        let tasks_per_node = self.jobs.get(&job).map_or(1, |live| live.job.gang.roles[0].tasks_per_node);
        let names: Vec<(NodeId, String)> = self.runs[&job]
            .members
            .keys()
            .map(|node| (*node, self.nodes[node.0 as usize].name.clone()))
            .filter(|(_, name)| request.nodes.is_empty() || request.nodes.contains(name))
            .collect();
        let layout = layout(request, names.len() as u32, tasks_per_node);
        if names.is_empty() || layout.world() > MOST_TASKS {
            return;
        }
        let run = self.run(job);
        let number = run.steps;
        run.steps += 1;
        let nodes: Vec<String> =
            names.iter().take(layout.iter().len()).map(|(_, name)| name.clone()).collect();
        for (index, ((node, _), tasks)) in names.iter().zip(layout.iter()).enumerate() {
            let step = NodeStep {
                run: request.run,
                number,
                node_index: index as u32,
                node_count: nodes.len() as u32,
                nodes: nodes.clone(),
                tasks: tasks.collect(),
                task_count: layout.world(),
                arguments: request.arguments.clone(),
                environment: request.environment.clone(),
                directory: request.directory.clone(),
                reply: request.reply.clone(),
            };
            self.send(*node, ToAgent::Step(Box::new(step)));
        }
    }
}

/// Which tasks each of the nodes gets: as in Slurm, in blocks, the first nodes one more.
fn layout(request: &StepRequest, available: u32, tasks_per_node: u32) -> RankBlocks {
    let per_node = request.tasks_per_node;
    let wanted = request.node_count.or(request.tasks.map(|tasks| match per_node {
        Some(per_node) => tasks.div_ceil(per_node.max(1)),
        None => tasks.min(available),
    }));
    let nodes = wanted.unwrap_or(available).clamp(1, available.max(1));
    let tasks =
        request.tasks.unwrap_or(nodes.saturating_mul(per_node.unwrap_or(tasks_per_node).max(1))).max(nodes);
    RankBlocks::spread(tasks, nodes)
}
