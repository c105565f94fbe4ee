//! A trace run through the scheduler: events in virtual time, decisions carried out.
//!
//! A start becomes an end after the job's own run time, stretched by placement and size; a stop frees the
//! nodes shortly after; a gang that comes back continues from its newest checkpoint and pays for a restart.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use bedplate_gangs::{
    Decision, Event, GangOutcome as Ended, JobId, Never, NodeOrder, NodeShare, Scheduler, Settings, Span,
    StopReason, Then, Time,
};
use bedplate_topology::{Cluster, NodeId};

use super::failures::FailureStream;
use super::live::{GangPace, JobPhase, LiveJob, WasteCause};
use super::workload::ReplayWorkload;
use super::{Ending, Estimates, Failures, JobSeries, ReplayPolicy, Trace};

/// The conditions of a replay.
#[derive(Debug, Clone)]
pub struct Replay {
    pub policy: ReplayPolicy,
    /// Rules that take the place of the policy's, which then only gives its name.
    pub site: Option<Settings>,
    pub estimates: Estimates,
    pub failures: Option<Failures>,
    pub seed: u64,
    /// The restart cost of a gang after an interruption, besides the lost work.
    pub restart: Span,
    /// The cost of an elastic gang's change of size.
    pub resize: Span,
    /// Standard deviation of the logarithm of the factor by which predicted rates are off. Jobs proceed by their own.
    pub prediction_error: f64,
    /// The number of largest jobs whose whole course is kept.
    pub largest: usize,
}

impl Replay {
    pub fn new(policy: ReplayPolicy) -> Self {
        Self {
            policy,
            site: None,
            estimates: Estimates::default(),
            failures: None,
            seed: 0,
            restart: Span::seconds(1350),
            resize: Span::minutes(1),
            prediction_error: 0.0,
            largest: 24,
        }
    }

    /// The rules of a site, as its file has them.
    pub fn of_site(site: Settings) -> Self {
        Self { site: Some(site), ..Self::new(ReplayPolicy::SITE) }
    }
}

/// How far a replay has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayProgress {
    pub ended: usize,
    pub jobs: usize,
    pub now: Time,
}

/// The outcome of a trace under a policy.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// One for each job of the trace, in its order.
    pub records: Vec<JobRecord>,
    pub series: JobSeries,
    pub largest: Vec<JobTimeline>,
    pub gpus: u32,
    pub window: Span,
    /// When the last job ended.
    pub makespan: Span,
    /// GPU milliseconds held in the window of submissions.
    pub held_in_window: f64,
    pub preemptions: u64,
    pub swaps: u64,
    pub requeues: u64,
    pub resizes: u64,
    pub node_failures: u64,
    /// Why jobs were refused, each reason with the number of jobs.
    pub rejections: BTreeMap<String, usize>,
    pub events: u64,
}

/// The outcome of one job.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobRecord {
    pub first_start: Option<Time>,
    pub ended: Option<Time>,
    pub end: End,
    pub starts: u32,
    /// Stops and swaps after which it continued.
    pub interruptions: u32,
    /// GPU milliseconds: held, and of those lost to each cause.
    pub held: f64,
    pub lost_to_failures: f64,
    pub lost_to_preemption: f64,
    pub lost_to_resizing: f64,
    /// GPU milliseconds held for work that was kept, without the cost of slow placements and large sizes.
    pub useful: f64,
    /// Work done and kept, in milliseconds of the job's own run time.
    pub done: f64,
}

/// How a job left the replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum End {
    /// It had not ended when the replay did.
    #[default]
    Open,
    /// It did all its work.
    Worked,
    /// It ran into the limit its user had set.
    TimedOut,
    /// It was interrupted too often.
    GivenUp,
    /// The cluster can never run it.
    Rejected,
}

/// The course of one job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobTimeline {
    /// Its place in the trace.
    pub job: usize,
    pub segments: Vec<Segment>,
}

/// A time with a fixed number of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub from: Time,
    pub until: Time,
    pub nodes: u32,
}

impl JobRecord {
    pub(crate) fn lose(&mut self, cause: WasteCause, gpu_ms: f64) {
        match cause {
            WasteCause::Failure => self.lost_to_failures += gpu_ms,
            WasteCause::Preemption => self.lost_to_preemption += gpu_ms,
            WasteCause::Resize => self.lost_to_resizing += gpu_ms,
        }
    }
}

/// Runs the trace on the cluster.
pub fn simulate(
    trace: &Trace,
    cluster: &Cluster,
    replay: &Replay,
    progress: &mut dyn FnMut(ReplayProgress),
) -> Outcome {
    let mut simulation = Simulation::new(trace, cluster, replay);
    simulation.play(progress);
    simulation.finish()
}

/// A stopped gang is gone after this, or after its grace where that is shorter.
const STOPPING: Span = Span::seconds(15);
/// A job interrupted this often is given up: it loses more than it achieves.
const MOST_INTERRUPTIONS: u32 = 100;
/// When nothing has started or ended for this long, nothing will.
const PATIENCE: Span = Span::days(400);
const PROGRESS_EVERY: u64 = 4096;

/// Something that happens unless an order comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Repaired(NodeId),
    /// The gang's processes are gone after a stop.
    Gone {
        index: usize,
        epoch: u32,
    },
    /// An elastic gang has left nodes.
    Left {
        index: usize,
    },
    Checkpoint {
        index: usize,
        epoch: u32,
    },
    /// The work is done.
    Done {
        index: usize,
        epoch: u32,
    },
}

struct Simulation<'a> {
    trace: &'a Trace,
    replay: &'a Replay,
    workload: ReplayWorkload<'a>,
    scheduler: Scheduler,
    now: Time,
    heap: BinaryHeap<Reverse<(Time, Due)>>,
    failures: Option<FailureStream>,
    next_submission: usize,
    live: BTreeMap<usize, LiveJob>,
    /// Which attempt of a job is in the scheduler: ids are never used twice.
    attempts: BTreeMap<usize, u64>,
    leaving: BTreeMap<usize, Vec<NodeId>>,
    /// Restart costs owed at the next start.
    owed: BTreeMap<usize, WasteCause>,
    epoch: u32,
    held: f64,
    held_since_sample: f64,
    open: usize,
    last_change: Time,
    /// Events for the scheduler at this time.
    inbox: Vec<Event>,
    courses: BTreeMap<usize, Vec<Segment>>,
    outcome: Outcome,
}

impl<'a> Simulation<'a> {
    fn new(trace: &'a Trace, cluster: &'a Cluster, replay: &'a Replay) -> Self {
        let (scheduler, workload) = ReplayWorkload::new(trace, cluster, replay);
        let stream = |failures| FailureStream::new(failures, cluster.node_count(), replay.seed);
        let window = trace.window();
        Self {
            trace,
            replay,
            workload,
            scheduler,
            now: Time::ZERO,
            heap: BinaryHeap::new(),
            failures: replay.failures.map(stream),
            next_submission: 0,
            live: BTreeMap::new(),
            attempts: BTreeMap::new(),
            leaving: BTreeMap::new(),
            owed: BTreeMap::new(),
            epoch: 0,
            held: 0.0,
            held_since_sample: 0.0,
            open: trace.jobs.len(),
            last_change: Time::ZERO,
            inbox: Vec::new(),
            courses: largest(trace, replay.largest).into_iter().map(|job| (job, Vec::new())).collect(),
            outcome: Outcome {
                records: vec![JobRecord::default(); trace.jobs.len()],
                series: JobSeries::over(window),
                largest: Vec::new(),
                gpus: cluster.gpu_count(),
                window,
                makespan: Span::ZERO,
                held_in_window: 0.0,
                preemptions: 0,
                swaps: 0,
                requeues: 0,
                resizes: 0,
                node_failures: 0,
                rejections: BTreeMap::new(),
                events: 0,
            },
        }
    }

    fn play(&mut self, progress: &mut dyn FnMut(ReplayProgress)) {
        let mut rounds = 0;
        while self.open > 0 {
            let Some(now) = self.next_time() else {
                break;
            };
            self.pass_time(now);
            self.gather();
            if self.inbox.is_empty() {
                self.inbox.push(Event::Tick);
            }
            let events = std::mem::take(&mut self.inbox);
            self.outcome.events += events.len() as u64;
            let decisions = self.scheduler.apply_all(events, now);
            decisions.into_iter().for_each(|decision| self.carry_out(decision));
            if now.since(self.last_change.max(Time::ZERO + self.outcome.window)) > PATIENCE {
                break;
            }
            rounds += 1;
            if rounds % PROGRESS_EVERY == 0 {
                let jobs = self.trace.jobs.len();
                progress(ReplayProgress { ended: jobs - self.open, jobs, now });
            }
        }
    }

    fn finish(mut self) -> Outcome {
        let now = self.now;
        let records = &mut self.outcome.records;
        self.live.iter_mut().for_each(|(index, live)| live.advance(&mut records[*index], now));
        let timelines = self.courses.into_iter().map(|(job, segments)| JobTimeline { job, segments });
        self.outcome.largest = timelines.collect();
        self.outcome
    }

    fn next_time(&self) -> Option<Time> {
        let submission = self.trace.jobs.get(self.next_submission).map(|job| job.submit);
        let due = self.heap.peek().map(|Reverse((time, _))| *time);
        let failure = self.failures.as_ref().and_then(FailureStream::peek);
        [submission, due, failure, self.scheduler.wakeup()]
            .into_iter()
            .flatten()
            .min()
            .map(|time| time.max(self.now))
    }

    /// Integrates what is held up to `now`, with samples on the way.
    fn pass_time(&mut self, now: Time) {
        let end = Time::ZERO + self.outcome.window;
        while self.now < now {
            let sample = self.outcome.series.next();
            let until = now.min(sample);
            let passed = until.since(self.now).0 as f64 * self.held;
            self.held_since_sample += passed;
            self.outcome.held_in_window += until.min(end).since(self.now).0 as f64 * self.held;
            self.now = until;
            if until == sample {
                self.outcome.series.take(&self.scheduler, self.held_since_sample);
                self.held_since_sample = 0.0;
            }
        }
    }

    /// Everything that happens at this time, as events for the scheduler.
    fn gather(&mut self) {
        while self.heap.peek().is_some_and(|Reverse((time, _))| *time <= self.now) {
            let Some(Reverse((_, due))) = self.heap.pop() else { break };
            self.happen(due);
        }
        while self.failures.as_ref().and_then(FailureStream::peek).is_some_and(|time| time <= self.now) {
            let Some(failure) = self.failures.as_mut().and_then(FailureStream::pop) else { break };
            self.outcome.node_failures += 1;
            self.inbox.push(Event::Node { node: failure.node, order: NodeOrder::Fail });
            self.heap.push(Reverse((failure.until, Due::Repaired(failure.node))));
        }
        while self.trace.jobs.get(self.next_submission).is_some_and(|job| job.submit <= self.now) {
            self.submit(self.next_submission);
            self.next_submission += 1;
        }
    }

    fn submit(&mut self, index: usize) {
        let request = self.workload.request(index, self.id(index));
        self.inbox.push(Event::Submit(Box::new(request)));
    }

    fn id(&self, index: usize) -> JobId {
        let attempt = self.attempts.get(&index).copied().unwrap_or(0);
        JobId(attempt * self.trace.jobs.len() as u64 + index as u64)
    }

    fn index(&self, job: JobId) -> usize {
        (job.0 % self.trace.jobs.len() as u64) as usize
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Repaired(node) => self.inbox.push(Event::Node { node, order: NodeOrder::Resume }),
            Due::Done { index, epoch } if self.is_current(index, epoch) => self.done(index),
            Due::Gone { index, epoch } if self.is_current(index, epoch) => self.gone(index),
            Due::Left { index } if self.live.contains_key(&index) => self.left(index),
            Due::Checkpoint { index, epoch } if self.is_current(index, epoch) => {
                self.inbox.push(Event::Checkpointed(self.id(index)));
                if let Some(live) = self.live.get_mut(&index) {
                    live.advance(&mut self.outcome.records[index], self.now);
                }
                self.watch_checkpoint(index);
            }
            _ => {}
        }
    }

    fn is_current(&self, index: usize, epoch: u32) -> bool {
        self.live.get(&index).is_some_and(|live| live.epoch == epoch)
    }

    fn done(&mut self, index: usize) {
        let job = &self.trace.jobs[index];
        let outcome = match job.ending {
            Ending::Completed => Ended::Succeeded,
            Ending::Cancelled => Ended::Cancelled,
            Ending::Failed => Ended::Failed,
        };
        self.inbox.push(Event::Ended { job: self.id(index), outcome });
        self.release(index);
        self.outcome.records[index].done = job.duration.0 as f64;
        self.close(index, End::Worked);
    }

    /// The nodes of a gang are free again.
    fn release(&mut self, index: usize) {
        let Some(mut live) = self.live.remove(&index) else {
            return;
        };
        live.advance(&mut self.outcome.records[index], self.now);
        self.leaving.remove(&index);
        self.held -= live.gpus;
        self.end_segment(index);
    }

    fn close(&mut self, index: usize, end: End) {
        let record = &mut self.outcome.records[index];
        record.end = end;
        record.ended = Some(self.now);
        self.outcome.makespan = self.outcome.makespan.max(self.now.since(Time::ZERO));
        self.open -= 1;
        self.last_change = self.now;
    }

    /// A stopped gang is gone: it comes back, or it is over.
    fn gone(&mut self, index: usize) {
        let Some(JobPhase::Stopping(then)) = self.live.get(&index).map(|live| live.phase) else {
            return;
        };
        self.inbox.push(Event::Ended { job: self.id(index), outcome: Ended::Failed });
        self.release(index);
        let has_own_limit = self.trace.jobs[index].time_limit.is_some();
        match then {
            Then::Requeue if self.is_hopeless(index) => self.inbox.push(Event::Cancel(self.id(index))),
            Then::Requeue => self.outcome.requeues += 1,
            Then::End(Ended::TimedOut) if has_own_limit => self.close(index, End::TimedOut),
            Then::End(_) | Then::Suspend => self.try_again(index),
        }
    }

    /// An assigned limit is never too short for undisturbed work, so a job that reaches it was disturbed and is
    /// submitted again.
    fn try_again(&mut self, index: usize) {
        if self.is_hopeless(index) {
            return self.close(index, End::GivenUp);
        }
        self.outcome.requeues += 1;
        *self.attempts.entry(index).or_insert(0) += 1;
        self.submit(index);
    }

    fn is_hopeless(&self, index: usize) -> bool {
        self.outcome.records[index].interruptions >= MOST_INTERRUPTIONS
    }

    fn left(&mut self, index: usize) {
        let Some(nodes) = self.leaving.remove(&index) else {
            return;
        };
        let before = self.live[&index].gpus;
        self.change(index, |live| {
            let rest = live.shares.iter().filter(|share| !nodes.contains(&share.node)).cloned().collect();
            live.set_shares(rest);
        });
        self.held += self.live[&index].gpus - before;
        self.inbox.push(Event::Left { job: self.id(index), nodes });
    }

    fn carry_out(&mut self, decision: Decision) {
        match decision {
            Decision::Start { job, shares, .. } => self.start(self.index(job), shares),
            Decision::Stop { job, grace, why, then } => self.stop(self.index(job), grace, why, then),
            Decision::Resume { job } => self.resume(self.index(job)),
            Decision::Shrink { job, nodes, grace, .. } => self.shrink(self.index(job), nodes, grace),
            Decision::Grow { job, shares } => self.grow(self.index(job), shares),
            Decision::GoOnWithout { .. } => unreachable!("no job of a trace survives the loss of a node"),
            Decision::Swap { job, lost, shares } => self.swap(self.index(job), &lost, shares),
            Decision::Reject { job, why } => self.reject(self.index(job), &why),
            Decision::Disown { .. } => unreachable!("a replay adopts no gangs"),
            Decision::Drop { job, .. } => self.close(self.index(job), End::GivenUp),
        }
    }

    fn reject(&mut self, index: usize, why: &Never) {
        *self.outcome.rejections.entry(why.to_string()).or_insert(0) += 1;
        self.close(index, End::Rejected);
    }

    fn start(&mut self, index: usize, shares: Vec<NodeShare>) {
        self.epoch += 1;
        let pace = self.pace(index, &shares);
        let job = &self.trace.jobs[index];
        let mut live = LiveJob::new(shares, job.gpu_share, pace, self.now, self.epoch);
        if let Some(cause) = self.owed.remove(&index) {
            live.pause(self.replay.restart, cause);
        }
        let record = &mut self.outcome.records[index];
        record.first_start.get_or_insert(self.now);
        record.starts += 1;
        self.held += live.gpus;
        self.last_change = self.now;
        self.live.insert(index, live);
        self.begin_segment(index);
        self.expect_end(index);
        self.watch_checkpoint(index);
    }

    /// The pace of a job on these nodes.
    fn pace(&self, index: usize, shares: &[NodeShare]) -> GangPace {
        self.workload.pace(index, shares.len() as u32, self.scheduler.slowdown_across(shares))
    }

    /// Changes a running gang after accounting for its work so far, and reschedules its end.
    fn change(&mut self, index: usize, change: impl FnOnce(&mut LiveJob)) {
        let Some(live) = self.live.get_mut(&index) else {
            return;
        };
        live.advance(&mut self.outcome.records[index], self.now);
        change(live);
        self.epoch += 1;
        live.epoch = self.epoch;
        let shares = std::mem::take(&mut self.live.get_mut(&index).expect("it was there").shares);
        let pace = self.pace(index, &shares);
        let live = self.live.get_mut(&index).expect("it was there");
        live.shares = shares;
        live.pace = pace;
        self.end_segment(index);
        if self.live[&index].phase == JobPhase::Running {
            self.begin_segment(index);
            self.expect_end(index);
            self.watch_checkpoint(index);
        }
    }

    fn expect_end(&mut self, index: usize) {
        let live = &self.live[&index];
        let ends = live.ends(&self.outcome.records[index], self.trace.jobs[index].duration);
        self.heap.push(Reverse((ends, Due::Done { index, epoch: live.epoch })));
    }

    /// The scheduler needs a gang's potential loss only where gangs may be preempted.
    fn watch_checkpoint(&mut self, index: usize) {
        let job = &self.trace.jobs[index];
        let may_be = self.replay.site.is_some() || self.trace.qos.name(job.qos) == "low";
        let is_victim = may_be && self.scheduler.settings().preemption.is_allowed;
        let Some(every) = job.checkpoint_every.filter(|_| is_victim) else {
            return;
        };
        let (live, record) = (&self.live[&index], &self.outcome.records[index]);
        // Work is a sum of rounded parts, so nearly done counts as done.
        let next = ((record.done + 1.0) / every.0 as f64).floor() + 1.0;
        let at = live.reaches(record, next * every.0 as f64);
        self.heap.push(Reverse((at, Due::Checkpoint { index, epoch: live.epoch })));
    }

    fn stop(&mut self, index: usize, grace: Span, why: StopReason, then: Then) {
        let cause = match why {
            StopReason::PreemptedBy(_) => WasteCause::Preemption,
            _ => WasteCause::Failure,
        };
        self.outcome.preemptions += u64::from(cause == WasteCause::Preemption);
        if then == Then::Suspend {
            return self.suspend(index);
        }
        let keeps_work =
            matches!(then, Then::End(Ended::TimedOut)) && self.trace.jobs[index].time_limit.is_some();
        let every = self.trace.jobs[index].checkpoint_every;
        let record = &mut self.outcome.records[index];
        let Some(live) = self.live.get_mut(&index) else {
            return;
        };
        live.advance(record, self.now);
        if !keeps_work {
            live.fall_back(record, every, cause);
            record.interruptions += 1;
            // One without a checkpoint starts from the beginning.
            if record.done > 0.0 {
                self.owed.insert(index, cause);
            }
        }
        self.epoch += 1;
        live.epoch = self.epoch;
        live.phase = JobPhase::Stopping(then);
        let gone = self.now + grace.min(STOPPING).max(Span(1));
        self.heap.push(Reverse((gone, Due::Gone { index, epoch: self.epoch })));
    }

    fn suspend(&mut self, index: usize) {
        let gpus = self.live.get(&index).map_or(0.0, |live| live.gpus);
        self.held -= gpus;
        self.change(index, |live| live.phase = JobPhase::Suspended);
    }

    fn resume(&mut self, index: usize) {
        let gpus = self.live.get(&index).map_or(0.0, |live| live.gpus);
        self.held += gpus;
        self.change(index, |live| live.phase = JobPhase::Running);
    }

    fn shrink(&mut self, index: usize, nodes: Vec<NodeId>, grace: Span) {
        self.outcome.resizes += 1;
        let resize = self.replay.resize;
        self.change(index, |live| live.pause(resize, WasteCause::Resize));
        self.leaving.insert(index, nodes);
        let left = self.now + grace.min(STOPPING).max(Span(1));
        self.heap.push(Reverse((left, Due::Left { index })));
    }

    fn grow(&mut self, index: usize, shares: Vec<NodeShare>) {
        self.outcome.resizes += 1;
        let resize = self.replay.resize;
        let before = self.live.get(&index).map_or(0.0, |live| live.gpus);
        self.change(index, |live| {
            let all = live.shares.iter().cloned().chain(shares).collect();
            live.set_shares(all);
            live.pause(resize, WasteCause::Resize);
        });
        self.held += self.live.get(&index).map_or(0.0, |live| live.gpus) - before;
    }

    fn swap(&mut self, index: usize, lost: &[NodeId], shares: Vec<NodeShare>) {
        self.outcome.swaps += 1;
        let (restart, every) = (self.replay.restart, self.trace.jobs[index].checkpoint_every);
        if let Some(live) = self.live.get_mut(&index) {
            let record = &mut self.outcome.records[index];
            live.advance(record, self.now);
            live.fall_back(record, every, WasteCause::Failure);
            record.interruptions += 1;
        }
        self.last_change = self.now;
        if self.is_hopeless(index) {
            self.inbox.push(Event::Cancel(self.id(index)));
        }
        self.change(index, |live| {
            let kept = live.shares.iter().filter(|share| !lost.contains(&share.node)).cloned();
            live.set_shares(kept.chain(shares).collect());
            live.pause(restart, WasteCause::Failure);
        });
    }

    fn begin_segment(&mut self, index: usize) {
        let Some(course) = self.courses.get_mut(&index) else {
            return;
        };
        let nodes = self.live[&index].shares.len() as u32;
        course.push(Segment { from: self.now, until: Time::NEVER, nodes });
    }

    fn end_segment(&mut self, index: usize) {
        let open = self.courses.get_mut(&index).and_then(|course| course.last_mut());
        if let Some(segment) = open.filter(|segment| segment.until == Time::NEVER) {
            segment.until = self.now;
        }
    }
}

/// The jobs with the most work.
fn largest(trace: &Trace, count: usize) -> Vec<usize> {
    let mut jobs: Vec<usize> = (0..trace.jobs.len()).collect();
    jobs.sort_by(|a, b| trace.jobs[*b].gpu_time().total_cmp(&trace.jobs[*a].gpu_time()).then(a.cmp(b)));
    jobs.truncate(count);
    jobs
}
