//! The life of a job: submitted, admitted, started, stopped, ended, come back.

use std::collections::VecDeque;

use bedplate_topology::NodeId;

use crate::entry::{Entry, Run, State};
use crate::fleet::Booking;
use crate::priority::{Rank, priority};
use crate::scheduler::{Claim, SHORTEST_GRACE, Scheduler};
use crate::{
    Decision, DependencyKind, History, JobId, Never, NodeShare, Outcome, Request, Span, StartReason,
    StopReason, Then, Time, Wait,
};

impl Scheduler {
    pub(crate) fn submit(&mut self, request: Request, now: Time) {
        let job = request.id;
        if let Some(why) = self.submitted_before(job).or_else(|| self.never(&request)) {
            return self.refuse(job, why, now);
        }
        self.cadence.is_urgent |= request.history.is_some();
        self.enter(request, now);
        self.admit(job, now);
    }

    pub(crate) fn submitted_before(&self, job: JobId) -> Option<Never> {
        let is_known = self.jobs.contains_key(&job) || self.finished.contains_key(&job);
        is_known.then(|| Never::Malformed { what: format!("{job} has been submitted before") })
    }

    pub(crate) fn refuse(&mut self, job: JobId, why: Never, now: Time) {
        self.decisions.push(Decision::Reject { job, why });
        if !self.jobs.contains_key(&job) {
            self.know(job, Outcome::Cancelled, now);
        }
    }

    /// Notes how a job ended that is not here, for those who wait for it.
    pub(crate) fn know(&mut self, job: JobId, outcome: Outcome, now: Time) {
        if self.submitted_before(job).is_none() {
            self.finished.insert(job, outcome);
            let waiting = self.dependents.remove(&job).unwrap_or_default();
            self.admit_all(waiting.into(), now);
        }
    }

    /// Writes a job down that is neither in the queue nor runs yet.
    pub(crate) fn enter(&mut self, mut request: Request, now: Time) {
        let job = request.id;
        let history = request.history.take().unwrap_or_else(|| History::since(now));
        let submitted = history.submitted.min(now);
        let classes = self.classes_of(&request);
        let fair_share = self.fair_shares.factor(request.account, request.user);
        let priority = priority(&request, &self.settings, self.scales, fair_share, submitted, now);
        let rank = Rank::new(&request, &self.settings, priority.total(), submitted);
        if !request.name.is_empty() {
            let key = (request.user, request.name.clone());
            self.namesakes.entry(key.clone()).or_default().insert(job);
            if request.dependencies.iter().any(|each| each.kind == DependencyKind::Singleton) {
                self.singletons.entry(key).or_default().insert(job);
            }
        }
        for dependency in &request.dependencies {
            dependency.jobs.iter().for_each(|on| self.dependents.entry(*on).or_default().push(job));
        }
        let entry = Entry {
            submitted,
            state: State::Blocked,
            priority,
            rank,
            classes,
            wait: Wait::NotTriedYet,
            restarts: history.restarts,
            returned: history.returned,
            victims: history.victims,
            request,
        };
        self.jobs.insert(job, entry);
        if let Some(asked) = self.quota_asked(job).filter(|_| history.has_claim) {
            self.claims.insert(job, Claim { kind: asked.kind, gpus: asked.gpus });
        }
    }

    /// Moves a job that is not running into the queue, or says what it waits for.
    pub(crate) fn admit(&mut self, job: JobId, now: Time) {
        self.admit_all([job].into(), now);
    }

    /// Admits what is blocked of these, and whoever waited for those that turn out never to run.
    fn admit_all(&mut self, mut jobs: VecDeque<JobId>, now: Time) {
        while let Some(job) = jobs.pop_front() {
            if !self.jobs.get(&job).is_some_and(|entry| matches!(entry.state, State::Blocked)) {
                continue;
            }
            match self.blocked_by(job, now) {
                Ok(None) => self.enqueue(job),
                Ok(Some(wait)) => {
                    if let Wait::NotBefore { begin } = wait {
                        self.begins.insert((begin, job));
                    }
                    self.entry_mut(job).wait = wait;
                }
                Err(why) => {
                    self.decisions.push(Decision::Reject { job, why });
                    jobs.extend(self.forget(job, Outcome::Cancelled));
                }
            }
        }
    }

    fn enqueue(&mut self, job: JobId) {
        let entry = self.jobs.get_mut(&job).expect("it is live");
        entry.state = State::Queued;
        entry.wait = Wait::NotTriedYet;
        self.queue.insert(entry.rank, job, &entry.classes);
        self.arrivals.push(job);
        self.cadence.is_stale = true;
    }

    pub(crate) fn dequeue(&mut self, job: JobId) {
        let entry = &self.jobs[&job];
        self.claims.remove(&job);
        self.queue.remove(entry.rank, job, &entry.classes);
        self.unreserve(job);
    }

    /// Takes a job out of the queue that does not start: what it was promised is free for others.
    fn withdraw(&mut self, job: JobId) {
        if let Some(reservation) = self.reservations.get(&job) {
            self.freed.extend(reservation.nodes.iter().map(|reserved| reserved.node));
        }
        self.dequeue(job);
        self.cadence.is_stale = true;
    }

    pub(crate) fn cancel(&mut self, job: JobId, now: Time) {
        match self.jobs.get(&job).map(|entry| &entry.state) {
            None => {}
            Some(State::Running(_)) => {
                self.stop(job, StopReason::Cancelled, Then::End(Outcome::Cancelled), now)
            }
            Some(State::Suspended(_)) => {
                self.forget_suspended(job, now);
                self.drop_waiting(job, now);
            }
            Some(State::Blocked | State::Queued) => self.drop_waiting(job, now),
        }
    }

    fn drop_waiting(&mut self, job: JobId, now: Time) {
        if self.jobs[&job].is_queued() {
            self.withdraw(job);
        }
        self.decisions.push(Decision::Drop { job, outcome: Outcome::Cancelled });
        self.finish(job, Outcome::Cancelled, now);
    }

    pub(crate) fn hold(&mut self, job: JobId) {
        let Some(entry) = self.jobs.get_mut(&job) else {
            return;
        };
        entry.request.is_held = true;
        if entry.is_queued() {
            self.withdraw(job);
            self.entry_mut(job).state = State::Blocked;
        }
        let entry = self.entry_mut(job);
        if matches!(entry.state, State::Blocked) {
            entry.wait = Wait::Held;
        }
    }

    pub(crate) fn release(&mut self, job: JobId, now: Time) {
        let Some(entry) = self.jobs.get_mut(&job) else {
            return;
        };
        entry.request.is_held = false;
        if matches!(entry.state, State::Blocked) {
            self.admit(job, now);
        }
    }

    pub(crate) fn checkpointed(&mut self, job: JobId, now: Time) {
        if let Some(run) = self.jobs.get_mut(&job).and_then(Entry::run_mut) {
            run.safe_at = now;
        }
    }

    /// Tells a running gang to stop. A second order while it stops changes only what comes then.
    pub(crate) fn stop(&mut self, job: JobId, why: StopReason, then: Then, now: Time) {
        let Some(entry) = self.jobs.get_mut(&job) else {
            return;
        };
        let grace = entry.request.grace;
        let lost_node = matches!(why, StopReason::NodeLost(_));
        let Some(run) = entry.run_mut() else {
            return;
        };
        self.runners = None;
        let was_stopping = run.stopping.is_some();
        let keeps_end = matches!(run.stopping, Some(Then::End(_)));
        if !keeps_end {
            run.stopping = Some(then);
        }
        if was_stopping {
            return;
        }
        if lost_node {
            entry.restarts += 1;
        }
        self.decisions.push(Decision::Stop { job, grace, why, then });
        self.rebook(job, now + grace.max(SHORTEST_GRACE), now);
    }

    /// Changes when a running gang's time is up, on all its nodes.
    pub(crate) fn rebook(&mut self, job: JobId, ends: Time, now: Time) {
        let run = self.jobs.get_mut(&job).and_then(Entry::run_mut).expect("it runs");
        self.ends.remove(&(run.ends, job));
        run.ends = ends;
        self.ends.insert((ends, job));
        for node in run.node_ids() {
            self.fleet.rebook_until(node, job, ends, now);
        }
        self.cadence.is_stale = true;
    }

    pub(crate) fn ended(&mut self, job: JobId, outcome: Outcome, now: Time) {
        let Some(run) = self.take_run(job, now) else {
            return;
        };
        let entry = self.entry_mut(job);
        let retries_left = entry.restarts < entry.request.retries;
        match run.stopping {
            Some(Then::End(stopped)) => self.finish(job, stopped, now),
            Some(Then::Requeue) => {
                // Whoever it made room for goes first; a full cycle keeps that order.
                self.cadence.is_urgent = true;
                self.come_back(job, now);
            }
            Some(Then::Suspend) | None if outcome == Outcome::Failed && retries_left => {
                entry.restarts += 1;
                self.come_back(job, now);
            }
            Some(Then::Suspend) | None => self.finish(job, outcome, now),
        }
    }

    /// Frees all that a running gang holds.
    pub(crate) fn take_run(&mut self, job: JobId, now: Time) -> Option<Box<Run>> {
        self.charge(job, now);
        self.runners = None;
        let entry = self.jobs.get_mut(&job)?;
        entry.run()?;
        let State::Running(run) = std::mem::replace(&mut entry.state, State::Blocked) else {
            return None;
        };
        self.ends.remove(&(run.ends, job));
        self.elastic_running.remove(&job);
        for share in &run.shares {
            self.fleet.release(share.node.0, job, now);
            self.freed.insert(share.node);
        }
        let gpus = run.gpus();
        self.ledger.end(&self.jobs[&job].request, gpus);
        self.give_quota(job, gpus);
        self.cadence.is_stale = true;
        Some(run)
    }

    pub(crate) fn come_back(&mut self, job: JobId, now: Time) {
        let entry = self.entry_mut(job);
        entry.returned = now;
        entry.state = State::Blocked;
        self.admit(job, now);
    }

    /// Books the GPU time of a running gang up to now.
    pub(crate) fn charge(&mut self, job: JobId, now: Time) {
        let half_life = self.settings.weights.half_life;
        let Some(entry) = self.jobs.get_mut(&job) else {
            return;
        };
        let (account, user) = (entry.request.account, entry.request.user);
        let Some(run) = entry.run_mut() else {
            return;
        };
        let gpu_ms = u128::from(now.since(run.charged).0) * u128::from(run.gpus());
        run.charged = now;
        self.usage.add(account, user, gpu_ms, now, half_life);
    }

    /// The job is over; those who waited for it are looked at again.
    pub(crate) fn finish(&mut self, job: JobId, outcome: Outcome, now: Time) {
        let waiting = self.forget(job, outcome);
        self.admit_all(waiting.into(), now);
    }

    /// Keeps nothing of a job but how it ended, and says who waited for it.
    fn forget(&mut self, job: JobId, outcome: Outcome) -> Vec<JobId> {
        let entry = self.jobs.remove(&job).expect("a job ends once");
        self.finished.insert(job, outcome);
        let mut waiting = self.dependents.remove(&job).unwrap_or_default();
        let key = (entry.request.user, entry.request.name.clone());
        if let Some(namesakes) = self.namesakes.get_mut(&key) {
            namesakes.remove(&job);
            if namesakes.is_empty() {
                self.namesakes.remove(&key);
            }
        }
        if let Some(singletons) = self.singletons.get_mut(&key) {
            singletons.remove(&job);
            waiting.extend(singletons.iter().copied());
            if singletons.is_empty() {
                self.singletons.remove(&key);
            }
        }
        waiting
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
        let run = Run {
            shares: shares.clone(),
            started: now,
            ends,
            safe_at: now,
            stopping: None,
            leaving: Vec::new(),
            resized: now,
            charged: now,
        };
        self.count_running(job, run);
        self.entry_mut(job).victims.clear();
        self.decisions.push(Decision::Start { job, shares, why });
        self.watch_closures(job);
    }

    /// A gang that holds its nodes from now on counts wherever running gangs are counted.
    pub(crate) fn count_running(&mut self, job: JobId, run: Run) {
        self.runners = None;
        self.ends.insert((run.ends, job));
        let gpus = run.gpus();
        self.ledger.start(&self.jobs[&job].request, gpus);
        self.take_quota(job, gpus);
        if self.jobs[&job].request.elastic().is_some() {
            self.elastic_running.insert(job);
        }
        self.entry_mut(job).state = State::Running(Box::new(run));
    }

    pub(crate) fn booking(&self, job: JobId, role: usize, node: u32, from: Time, until: Time) -> Booking {
        let entry = &self.jobs[&job];
        let amount =
            entry.classes[role].need_on(self.fleet.capacity(node)).expect("the node is large enough");
        let asked = &entry.request.roles[role];
        Booking { job, amount, gpus: asked.per_node.gpus, from, until, devices: 0, share: asked.gpu_share }
    }

    /// How long a gang may take with so many nodes: longer than its limit when it is smaller than asked for.
    pub(crate) fn planned_length(&self, job: JobId, nodes: u32) -> Span {
        let request = &self.jobs[&job].request;
        let asked = request.nodes();
        if nodes >= asked { request.time_limit } else { request.time_limit.times(1.0 / request.speed(nodes)) }
    }

    pub(crate) fn entry_mut(&mut self, job: JobId) -> &mut Entry {
        self.jobs.get_mut(&job).expect("the job is live")
    }
}
