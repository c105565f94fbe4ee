//! The life of a job: submitted, admitted, started, stopped, ended, come back.

use bedplate_topology::NodeId;

use crate::fleet::Booking;
use crate::jobs::{EntryState, GangRun, JobEntry};
use crate::priority::Rank;
use crate::scheduler::{SHORTEST_GRACE, Scheduler};
use crate::{
    Decision, GangOutcome, GangRequest, History, JobId, Never, NodeShare, Span, StartReason, StopReason,
    Then, Time, Wait,
};

/// Jobs that are looked at after one event: the end of one may let in, or end, as many as were ever submitted.
const MOST_ADMITTED: usize = 1_000;

impl Scheduler {
    pub(crate) fn submit(&mut self, request: GangRequest, now: Time) {
        let job = request.id;
        if let Some(why) = self.submitted_before(job).or_else(|| self.never(&request)) {
            return self.refuse(job, why, now);
        }
        if request.history.is_some() {
            self.news.plan_is_wrong();
        }
        self.enter(request, now);
        self.admit(job, now);
    }

    pub(crate) fn submitted_before(&self, job: JobId) -> Option<Never> {
        let is_known = self.jobs.get(job).is_some() || self.outcome(job).is_some();
        is_known.then(|| Never::Malformed { what: format!("{job} has been submitted before") })
    }

    pub(crate) fn refuse(&mut self, job: JobId, why: Never, now: Time) {
        self.decisions.push(Decision::Reject { job, why });
        if self.jobs.get(job).is_none() {
            self.know(job, GangOutcome::Cancelled, now);
        }
    }

    /// Notes how a job ended that is not here, for the jobs that wait for it.
    pub(crate) fn know(&mut self, job: JobId, outcome: GangOutcome, now: Time) {
        if self.submitted_before(job).is_none() {
            self.dependencies.know(job, outcome);
            self.admit_some(now);
        }
    }

    /// Records a job that is neither in the queue nor runs yet.
    pub(crate) fn enter(&mut self, mut request: GangRequest, now: Time) {
        let job = request.id;
        let history = request.history.take().unwrap_or_else(|| History::since(now));
        let submitted = history.submitted.min(now);
        let classes = self.classes_of(&request);
        let (priority, rank) = self.accounting.rank(&request, submitted, &self.settings, now);
        self.dependencies.enter(&request);
        if let Some(asked) = self.accounting.asked(&request).filter(|_| history.has_claim) {
            self.accounting.claim(job, asked);
        }
        self.jobs.enter(JobEntry {
            submitted,
            state: EntryState::Blocked,
            priority,
            rank,
            classes,
            wait: Wait::NotTriedYet,
            restarts: history.restarts,
            returned: history.returned,
            victims: history.victims,
            request,
        });
    }

    /// Where a job would stand in the queue.
    pub(crate) fn rank_at(&self, job: JobId, now: Time) -> Rank {
        let entry = &self.jobs[job];
        self.accounting.rank(&entry.request, entry.submitted, &self.settings, now).1
    }

    /// Moves a job that is not running into the queue, or says what it waits for.
    pub(crate) fn admit(&mut self, job: JobId, now: Time) {
        self.admitting.push_back(job);
        self.admit_some(now);
    }

    /// Admits what is to be admitted, and jobs that waited for others that have ended; the rest at the next event where it is
    /// more than is done at a time.
    pub(crate) fn admit_some(&mut self, now: Time) {
        self.admitted = now;
        for _ in 0..MOST_ADMITTED {
            let next = self.admitting.pop_front();
            if next.is_none() && !self.dependencies.has_ended() {
                return;
            }
            let Some(job) = next.or_else(|| self.dependencies.next_ready()) else {
                continue;
            };
            if !self.jobs.get(job).is_some_and(JobEntry::is_blocked) {
                continue;
            }
            match self.blocked_by(job, now) {
                Ok(None) => {
                    self.jobs.enqueue(job);
                    self.news.job_came(job);
                }
                Ok(Some(wait)) => {
                    if let Wait::NotBefore { begin } = wait {
                        self.calendar.begins.add(begin, job);
                    }
                    self.jobs.set_wait(job, wait);
                }
                Err(why) => {
                    self.decisions.push(Decision::Reject { job, why });
                    self.close(job, GangOutcome::Cancelled);
                }
            }
        }
    }

    fn dequeue(&mut self, job: JobId) {
        self.accounting.drop_claim(job);
        self.jobs.dequeue(job);
        self.reservations.withdraw(job, &mut self.fleet);
    }

    /// Takes a job out of the queue that does not start: what it had reserved is free for others.
    fn withdraw(&mut self, job: JobId) {
        for reserved in self.reservations.get(job).into_iter().flat_map(|reservation| &reservation.nodes) {
            self.news.node_freed(reserved.node);
        }
        self.dequeue(job);
        self.news.plan_is_stale();
    }

    /// Ends a job for good, whatever state it is in.
    pub(crate) fn end(&mut self, job: JobId, why: StopReason, outcome: GangOutcome, now: Time) {
        match self.jobs.get(job).map(|entry| &entry.state) {
            None => {}
            Some(EntryState::Running(_)) => self.stop(job, why, Then::End(outcome), now),
            Some(EntryState::Suspended(_)) => {
                self.forget_suspended(job, now);
                self.drop_waiting(job, outcome, now);
            }
            Some(EntryState::Blocked | EntryState::Queued) => self.drop_waiting(job, outcome, now),
        }
    }

    fn drop_waiting(&mut self, job: JobId, outcome: GangOutcome, now: Time) {
        if self.jobs[job].is_queued() {
            self.withdraw(job);
        }
        self.decisions.push(Decision::Drop { job, outcome });
        self.finish(job, outcome, now);
    }

    /// Changes where and when a job may start next. A queued job is not changed: it has been looked at as it is.
    pub(crate) fn postpone(&mut self, job: JobId, until: Time, avoid: &[NodeId]) {
        let Some(entry) = self.jobs.get(job).filter(|entry| !entry.is_queued()) else {
            return;
        };
        let mut request = entry.request.clone();
        request.begin = request.begin.max(until);
        self.let_avoid(&mut request, avoid.to_vec());
        let classes = self.classes_of(&request);
        self.jobs.revise(job, request, classes);
    }

    /// Lets a request avoid these nodes too, unless it cannot do without them: it would wait for ever.
    pub fn let_avoid(&mut self, request: &mut GangRequest, nodes: Vec<NodeId>) {
        let before = request.filter.avoid.clone();
        request.filter.avoid.extend(nodes.into_iter().filter(|node| !before.contains(node)));
        if self.beyond_nodes(request).is_some() {
            request.filter.avoid = before;
        }
    }

    pub(crate) fn hold(&mut self, job: JobId) {
        if self.jobs.get(job).is_none() {
            return;
        }
        self.jobs.set_held(job, true);
        if self.jobs[job].is_queued() {
            self.withdraw(job);
        }
        if self.jobs[job].is_blocked() {
            self.jobs.set_wait(job, Wait::Held);
        }
    }

    pub(crate) fn release(&mut self, job: JobId, now: Time) {
        if self.jobs.get(job).is_some() {
            self.jobs.set_held(job, false);
            self.admit(job, now);
        }
    }

    pub(crate) fn checkpointed(&mut self, job: JobId, now: Time) {
        if let Some(run) = self.jobs.run_mut(job) {
            run.safe_at = now;
        }
    }

    /// Tells a running gang to stop. A second order while it stops changes only what comes then.
    pub(crate) fn stop(&mut self, job: JobId, why: StopReason, then: Then, now: Time) {
        let Some(run) = self.jobs.run_mut(job) else {
            return;
        };
        let was_stopping = run.stopping.is_some();
        let keeps_end = matches!(run.stopping, Some(Then::End(_)));
        if !keeps_end {
            run.stopping = Some(then);
        }
        if was_stopping {
            return;
        }
        if matches!(why, StopReason::NodeLost(_)) {
            self.jobs.count_restart(job);
        }
        let grace = self.jobs[job].request.grace;
        self.decisions.push(Decision::Stop { job, grace, why, then });
        self.rebook(job, now + grace.max(SHORTEST_GRACE), now);
    }

    /// Changes when a running gang's time is up, on all its nodes.
    pub(crate) fn rebook(&mut self, job: JobId, ends: Time, now: Time) {
        for node in self.jobs.set_end(job, ends).node_ids() {
            self.fleet.rebook_until(node, job, ends, now);
        }
        self.news.plan_is_stale();
    }

    pub(crate) fn ended(&mut self, job: JobId, outcome: GangOutcome, now: Time) {
        let Some(run) = self.take_run(job, now) else {
            return;
        };
        let entry = &self.jobs[job];
        let retries_left = entry.restarts < entry.request.retries;
        let is_retried = matches!(run.stopping, None | Some(Then::Suspend))
            && outcome == GangOutcome::Failed
            && retries_left;
        if !is_retried {
            self.learn(job, &run, now);
        }
        match run.stopping {
            Some(Then::End(stopped)) => self.finish(job, stopped, now),
            Some(Then::Requeue) => {
                // The gang for which it made room goes first; a full cycle keeps that order. Others who are sent back
                // could call for one as often as their users like.
                if self.jobs.makes_room(job) {
                    self.news.plan_is_wrong();
                }
                self.come_back(job, now);
            }
            Some(Then::Suspend) | None if is_retried => {
                self.jobs.count_restart(job);
                self.come_back(job, now);
            }
            Some(Then::Suspend) | None => self.finish(job, outcome, now),
        }
    }

    /// Notes how long a gang took that was neither interrupted before nor is now.
    fn learn(&mut self, job: JobId, run: &GangRun, now: Time) {
        let entry = &self.jobs[job];
        let is_over =
            matches!(run.stopping, None | Some(Then::End(GangOutcome::Cancelled | GangOutcome::TimedOut)));
        if is_over && entry.returned == entry.submitted {
            self.accounting.learn(&entry.request, now.since(run.started), now);
        }
    }

    /// Frees all that a running gang holds.
    pub(crate) fn take_run(&mut self, job: JobId, now: Time) -> Option<GangRun> {
        self.charge(job, now);
        let run = self.jobs.end_run(job)?;
        for share in &run.shares {
            self.fleet.release(share.node.0, job, now);
            self.news.node_freed(share.node);
        }
        self.accounting.end(&self.jobs[job].request, run.gpus());
        Some(run)
    }

    pub(crate) fn come_back(&mut self, job: JobId, now: Time) {
        self.jobs.set_returned(job, now);
        self.admit(job, now);
    }

    /// Books the GPU time of a running gang up to now.
    pub(crate) fn charge(&mut self, job: JobId, now: Time) {
        let Some(run) = self.jobs.run_mut(job) else {
            return;
        };
        let gpu_ms = u128::from(now.since(run.charged).0) * u128::from(run.gpus());
        run.charged = now;
        self.accounting.charge(&self.jobs[job].request, gpu_ms, &self.settings, now);
    }

    /// The job is over; jobs that waited for it may enter the queue.
    pub(crate) fn finish(&mut self, job: JobId, outcome: GangOutcome, now: Time) {
        self.close(job, outcome);
        self.admit_some(now);
    }

    /// Keeps nothing of a job but how it ended.
    fn close(&mut self, job: JobId, outcome: GangOutcome) {
        let entry = self.jobs.remove(job);
        let next = self.dependencies.end(&entry.request, outcome);
        self.admitting.extend(next);
    }

    /// Starts a gang on nodes that are free for it.
    pub(crate) fn start(&mut self, job: JobId, nodes: &[Vec<u32>], now: Time, why: StartReason) {
        self.dequeue(job);
        let limit = self.planned_length(job, nodes.iter().map(|role| role.len() as u32).sum());
        let ends = now + limit;
        let mut shares = Vec::new();
        for (role, nodes) in nodes.iter().enumerate() {
            for node in nodes {
                let devices = self.fleet.book(*node, self.booking(job, role, *node, now, ends));
                shares.push(NodeShare { node: NodeId(*node), role: role as u16, devices });
            }
        }
        self.count_running(job, GangRun::new(shares.clone(), now, ends));
        self.jobs.set_victims(job, Vec::new());
        self.decisions.push(Decision::Start { job, shares, why });
        self.watch_closures(job);
    }

    /// A gang that holds its nodes from now on counts wherever running gangs are counted.
    pub(crate) fn count_running(&mut self, job: JobId, run: GangRun) {
        self.accounting.start(&self.jobs[job].request, run.gpus());
        self.jobs.begin_run(job, run);
    }

    pub(crate) fn booking(&self, job: JobId, role: usize, node: u32, from: Time, until: Time) -> Booking {
        let entry = &self.jobs[job];
        let amount =
            entry.classes[role].need_on(self.fleet.capacity(node)).expect("the node is large enough");
        let asked = &entry.request.roles[role];
        Booking { job, amount, gpus: asked.per_node.gpus, from, until, devices: 0, share: asked.gpu_share }
    }

    /// How long a gang may take on `nodes` nodes: longer than its limit when it is smaller than asked for.
    pub(crate) fn planned_length(&self, job: JobId, nodes: u32) -> Span {
        let request = &self.jobs[job].request;
        request.time_limit.times(1.0 / request.limit_speed(nodes).min(1.0))
    }
}
