//! A control plane that goes on where another one stopped.
//!
//! Runs that were running or suspended go on: their ranks live in the agents, which come back by themselves. Runs that
//! were being prepared are called off, and their jobs wait again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bedplate_diag::Reason;
use bedplate_gangs::{
    Adopted, AdoptedState, ArrayTask, Event, GangRequest, History, JobId, NodeOrder, NodeShare, Settings,
    Span, Then as After, Time, UsageRecord,
};
use bedplate_job::{Job, RankBlocks};
use bedplate_topology::{Cluster, NodeId};

use crate::ControlRules;
use crate::arrivals::ArrayArrival;
use crate::control::{Control, outcome_of};
use crate::live::LiveJob;
use crate::node::Presence;
use crate::reason;
use crate::record::{ArrivingRow, HeldShare, JobRow, JobState, Joined, Record, Restored, RunPhase, RunRow};
use crate::run::{LaunchPhase, ManagedRun, MemberState};
use crate::submit::earliest_start;

impl Control {
    /// Rebuilds what the journal remembers. Jobs whose text cannot be read any more come back with the reason.
    pub fn restore(
        cluster: Cluster,
        settings: Settings,
        rules: ControlRules,
        restored: Restored,
        now: Time,
    ) -> (Self, Vec<(JobId, String)>) {
        let now = now.max(restored.latest);
        let mut control = Self::new(cluster, settings, rules, now);
        control.next_job = restored.next_job.max(1);
        control.remember_nodes(&restored, now);
        control.remember_ended(&restored);
        control.remember_shares(&restored);
        control.learn_again(&restored.runtime_samples);
        let ended: Vec<JobId> = restored.ended.iter().map(|row| row.id).collect();
        let known: BTreeSet<JobId> =
            restored.jobs.iter().map(|row| row.id).chain(ended.iter().copied()).collect();
        let unreadable = control.remember_jobs(restored.jobs, restored.runs, &known, now);
        for row in restored.arriving {
            control.remember_arrival(row, &known);
        }
        control.settle(now);
        ended.into_iter().for_each(|job| control.scheduler.forget(job));
        (control, unreadable)
    }

    fn remember_ended(&mut self, restored: &Restored) {
        self.names.set_ended_count(restored.ended_count);
        for row in &restored.ended {
            self.names.add_ended(row);
            self.news.push_back(Event::Known { job: row.id, outcome: outcome_of(row.state) });
        }
    }

    /// What jobs took before says how long those that wait will, as before the restart.
    fn learn_again(&mut self, runtime_samples: &[JobRow]) {
        // Tasks of an array share their text in memory, and it is read once.
        let mut jobs: BTreeMap<*const u8, Option<Job>> = BTreeMap::new();
        for row in runtime_samples {
            let (Some(started), Some(ended)) = (row.life.started_ms, row.life.ended_ms) else { continue };
            let read = || Job::from_toml(&row.text, "journal").ok();
            let Some(job) = jobs.entry(row.text.as_ptr()).or_insert_with(read) else { continue };
            let user = self.user_id(&row.user);
            let (cluster, settings) = (self.scheduler.cluster(), self.scheduler.settings());
            if let Ok(request) = GangRequest::from_job(row.id, job, user, cluster, settings) {
                let (request, ran) = (Box::new(request), Span(ended.saturating_sub(started)));
                self.news.push_back(Event::Ran { request, ran, ended: Time(ended) });
            }
        }
    }

    /// Every node may come back as if nothing had happened; until then its runs count as running.
    fn remember_nodes(&mut self, restored: &Restored, now: Time) {
        let until = now + self.rules.rejoin;
        for row in &restored.nodes {
            let Some(id) = self.scheduler.cluster().find_node(&row.name) else {
                continue;
            };
            let node = &mut self.nodes[id.0 as usize];
            node.address = row.address.clone();
            node.drained = row.drained.clone();
            node.incarnation = row.incarnation;
            (node.acknowledged_ms, node.found_out) = (row.acknowledged_ms, row.found_out);
            node.presence = Presence::Expected { until };
            self.blame.restore_losses(id, row.losses.clone());
            // Gangs may stand on it; new ones come once its agent does.
            self.news.push_back(Event::Node { node: id, order: NodeOrder::Drain });
        }
    }

    /// The shell listens from now on. Until then agents were refused, by which they know that nobody decides and let their ranks live; so
    /// their time to come back begins here, however long the start took.
    pub fn listens(&mut self, now: Time) {
        let until = self.advance(now) + self.rules.rejoin;
        for node in &mut self.nodes {
            if let Presence::Expected { until: before } = &mut node.presence {
                *before = until;
            }
        }
    }

    fn remember_jobs(
        &mut self,
        rows: Vec<JobRow>,
        runs: Vec<RunRow>,
        known: &BTreeSet<JobId>,
        now: Time,
    ) -> Vec<(JobId, String)> {
        let mut unreadable = Vec::new();
        let mut runs: BTreeMap<u64, RunRow> = runs.into_iter().map(|row| (row.run.job, row)).collect();
        for row in rows {
            let id = row.id;
            match Job::from_toml(&row.text, "journal") {
                Ok(job) => self.remember_job(row, Arc::new(job), runs.remove(&id.0), known, now),
                Err(why) => {
                    self.next_job = self.next_job.max(id.0 + 1);
                    unreadable.push((id, why.to_string()));
                }
            }
        }
        unreadable
    }

    fn remember_job(
        &mut self,
        row: JobRow,
        job: Arc<Job>,
        run: Option<RunRow>,
        known: &BTreeSet<JobId>,
        now: Time,
    ) {
        let id = row.id;
        self.names.add(&row);
        let user = self.user_id(&row.user);
        let (cluster, settings) = (self.scheduler.cluster(), self.scheduler.settings());
        let request = GangRequest::from_job(id, &job, user, cluster, settings);
        let array = row.array.map(|place| ArrayTask {
            array: place.array,
            at_once: job.policy.array.as_ref().and_then(|array| array.at_once),
        });
        let history = History { restarts: row.life.restarts, ..History::since(row.submitted) };
        let is_held = row.life.is_held;
        let begin = earliest_start(&job, row.submitted);
        let live = LiveJob { row, job, user };
        let avoid = self.restore_charges(&live);
        self.jobs.insert(live);
        match request {
            Ok(request) => {
                let mut request = GangRequest { array, is_held, begin, history: Some(history), ..request };
                self.scheduler.let_avoid(&mut request, avoid);
                // What is in the history no more had ended when the job was submitted, and in a way that let it in.
                for dependency in &mut request.dependencies {
                    dependency.jobs.retain(|on| known.contains(on));
                }
                self.remember_run(request, run, now);
            }
            // The cluster or its rules have changed: it cannot run here any more.
            Err(why) => self.end_job(id, JobState::Rejected, Some(Reason::of(&why)), now),
        }
    }

    /// The tasks of an array that were not recorded come now.
    fn remember_arrival(&mut self, row: ArrivingRow, known: &BTreeSet<JobId>) {
        let ArrivingRow { first, next } = row;
        let Ok(job) = Job::from_toml(&first.text, "journal") else { return };
        let indices = job.array_indices().unwrap_or_default();
        self.next_job = self.next_job.max(first.id.0 + indices.len() as u64);
        let user = self.user_id(&first.user);
        let (cluster, settings) = (self.scheduler.cluster(), self.scheduler.settings());
        let Ok(mut request) = GangRequest::from_job(first.id, &job, user, cluster, settings) else {
            // As those that were recorded: it cannot run here any more.
            return self.output.records.push(Record::Arriving { array: first.id, next: None });
        };
        for dependency in &mut request.dependencies {
            dependency.jobs.retain(|on| known.contains(on));
        }
        let at_once = job.policy.array.as_ref().and_then(|array| array.at_once);
        let array = Some(ArrayTask { array: first.id, at_once });
        let request = GangRequest { array, begin: earliest_start(&job, first.submitted), ..request };
        let recorded = (next.0 - first.id.0) as usize;
        self.arrivals.push(ArrayArrival {
            request,
            indices,
            job: Arc::new(job),
            text: first.text,
            user: first.user,
            submitted: first.submitted,
            recorded,
            told: recorded,
        });
    }

    /// A run whose ranks may be alive is adopted; any other is over.
    fn remember_run(&mut self, request: GangRequest, row: Option<RunRow>, now: Time) {
        let job = request.id;
        let has_ranks = |row: &&RunRow| matches!(row.phase, RunPhase::Running | RunPhase::Suspended);
        let kept = row.as_ref().filter(has_ranks).and_then(|row| {
            let shares: Option<Vec<NodeShare>> =
                row.shares.iter().map(|share| self.known_share(share)).collect();
            Some((row.clone(), shares?))
        });
        let Some((row, shares)) = kept else {
            let ordered = row.as_ref().and_then(|row| row.stops_as).filter(|state| state.is_final());
            if let Some(row) = row {
                let reason = Some(reason::control_restarted());
                let row = RunRow { phase: RunPhase::Ended, ended: Some(now), reason, ..row };
                self.output.records.push(Record::Run(row));
            }
            if let Some(state) = ordered {
                self.news.push_back(Event::Known { job, outcome: outcome_of(state) });
                return self.end_job(job, state, None, now);
            }
            self.change(job, now, |life| life.state = JobState::Waiting);
            return self.news.push_back(Event::Submit(Box::new(request)));
        };
        let is_suspended = row.phase == RunPhase::Suspended && row.stops_as.is_none();
        let adopted_state = match row.stops_as {
            None if is_suspended => AdoptedState::Suspended,
            None => AdoptedState::Runs,
            Some(JobState::Waiting) => AdoptedState::Stops(After::Requeue),
            Some(state) => AdoptedState::Stops(After::End(outcome_of(state))),
        };
        // Its nodes are taken until its end is reported, however late that is.
        let grace = if row.stops_as.is_some() { self.grace_of(job) } else { Span::ZERO };
        let ends = row.ends.max(now + grace + Span::seconds(1));
        let adopted = Adopted {
            state: adopted_state,
            ends: Some(ends),
            charged: is_suspended.then_some(now),
            ..Adopted::new(request, shares.clone(), row.started)
        };
        self.news.push_back(Event::Adopt(Box::new(adopted)));
        let ranks = RankBlocks::of_gang(&self.jobs[&job].job, shares.iter().map(|share| share.role));
        let joined: Vec<(NodeId, Joined)> = shares
            .iter()
            .zip(&row.shares)
            .filter_map(|(share, record)| Some((share.node, record.joined?)))
            .collect();
        let mut run = ManagedRun::new(row.run, shares, &ranks, now);
        run.rejoin(row.began, joined);
        run.master_port = row.master_port;
        run.started = row.started;
        run.running = Some(row.running.unwrap_or(now).max(now));
        run.stops_as = row.stops_as;
        run.history = row.steps.map(|steps| *steps).unwrap_or_default();
        run.phase = if is_suspended { LaunchPhase::Suspended } else { LaunchPhase::Running };
        if is_suspended {
            self.suspended.insert(job);
        }
        run.members.values_mut().for_each(|member| member.state = MemberState::Running);
        if let Some(state) = row.stops_as {
            run.phase = LaunchPhase::Stopping { since: now, grace: self.grace_of(job) };
            run.verdict.outcome = state.is_final().then(|| outcome_of(state));
            run.verdict.reason = row.reason;
        }
        self.keep_run(job, run);
    }

    fn known_share(&self, share: &HeldShare) -> Option<NodeShare> {
        let node = self.scheduler.cluster().find_node(&share.node)?;
        Some(NodeShare { node, role: share.role, devices: share.devices })
    }

    fn remember_shares(&mut self, restored: &Restored) {
        for row in &restored.shares {
            let Some(account) = self.scheduler.settings().accounts.find(&row.account) else {
                continue;
            };
            let user = self.user_id(&row.user);
            let (gpu_ms, faded, at) = (row.gpu_ms, row.faded, row.at);
            self.news.push_back(Event::Used(UsageRecord { account, user, gpu_ms, faded, at }));
        }
    }
}
