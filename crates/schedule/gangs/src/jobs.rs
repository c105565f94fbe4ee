//! Every job that has not ended, and the lists that follow from their states.
//!
//! Only this file changes a job's state, its place in the queue or the end of its run, so the queue, the
//! suspended gangs, the elastic ones and the ends of runs always agree with the jobs.

use std::collections::BTreeSet;
use std::ops::{Bound, Index};

use bedplate_topology::NodeId;

use crate::counted::CountedMap;
use crate::priority::Rank;
use crate::queue::{LimitGroup, Queue, Standing};
use crate::view::RequestClass;
use crate::{GangRequest, JobId, NodeShare, Priority, Span, Then, Time, Wait};

#[derive(Debug, Clone, Default)]
pub(crate) struct Jobs {
    live: CountedMap<JobId, JobEntry>,
    queue: Queue,
    suspended: BTreeSet<JobId>,
    /// Running gangs that may change their size.
    elastic: BTreeSet<JobId>,
    /// When the time of each running gang is up.
    ends: BTreeSet<(Time, JobId)>,
    /// For how many waiting gangs a gang stops.
    making_room: CountedMap<JobId, u32>,
    /// How often a run began, ended or changed.
    changes: u64,
}

/// One live job. Others only see it; it changes through [`Jobs`].
#[derive(Debug, Clone)]
pub(crate) struct JobEntry {
    pub(crate) request: GangRequest,
    pub(crate) submitted: Time,
    pub(crate) state: EntryState,
    pub(crate) priority: Priority,
    pub(crate) rank: Rank,
    /// One per role.
    pub(crate) classes: Vec<RequestClass>,
    /// Why it did not start when it was last tried.
    pub(crate) wait: Wait,
    /// Restarts after failures and losses, not after preemption.
    pub(crate) restarts: u32,
    /// When it last came back to the queue.
    pub(crate) returned: Time,
    /// Gangs that stop for it.
    pub(crate) victims: Vec<JobId>,
}

#[derive(Debug, Clone)]
pub(crate) enum EntryState {
    /// Not in the queue yet: held, too early, or waiting for other jobs.
    Blocked,
    Queued,
    Running(Box<GangRun>),
    /// Stopped in place: its GPUs are free, its place is remembered.
    Suspended(Box<GangRun>),
}

#[derive(Debug, Clone)]
pub(crate) struct GangRun {
    pub(crate) shares: Vec<NodeShare>,
    pub(crate) started: Time,
    /// When its time is up.
    ends: Time,
    /// Since when work would be lost: the start or the newest checkpoint.
    pub(crate) safe_at: Time,
    /// Set once it was told to stop.
    pub(crate) stopping: Option<Then>,
    /// Nodes it was told to leave.
    pub(crate) leaving: Vec<NodeId>,
    pub(crate) resized: Time,
    /// Up to when its GPU time has been booked.
    pub(crate) charged: Time,
}

impl Jobs {
    /// One job that does not run, alone.
    pub(crate) fn alone(entry: JobEntry) -> Self {
        let mut jobs = Self::default();
        if entry.is_queued() {
            jobs.queue.insert(entry.standing());
        }
        jobs.live.insert(entry.request.id, entry);
        jobs
    }

    pub(crate) fn get(&self, job: JobId) -> Option<&JobEntry> {
        self.live.get(&job)
    }

    pub(crate) fn run(&self, job: JobId) -> Option<&GangRun> {
        self.get(job)?.run()
    }

    /// All live jobs, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (JobId, &JobEntry)> {
        self.live.iter().map(|(job, entry)| (*job, entry))
    }

    /// All live jobs after one, by number.
    pub(crate) fn after(&self, job: Option<JobId>) -> impl Iterator<Item = (JobId, &JobEntry)> {
        let from = job.map_or(Bound::Unbounded, Bound::Excluded);
        self.live.range((from, Bound::Unbounded)).map(|(job, entry)| (*job, entry))
    }

    pub(crate) fn count(&self) -> usize {
        self.live.len()
    }

    /// Those that wait for nothing but resources.
    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn suspended(&self) -> &BTreeSet<JobId> {
        &self.suspended
    }

    /// Running gangs that may change their size.
    pub(crate) fn elastic(&self) -> &BTreeSet<JobId> {
        &self.elastic
    }

    /// When the time of each running gang is up, the next first.
    pub(crate) fn ends(&self) -> &BTreeSet<(Time, JobId)> {
        &self.ends
    }

    /// Whether any job waits for a decision.
    pub(crate) fn is_any_waiting(&self) -> bool {
        !self.queue.is_empty() || !self.suspended.is_empty()
    }

    /// Grows whenever a run begins, ends or changes.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Adds a job that is neither in the queue nor runs yet.
    pub(crate) fn enter(&mut self, entry: JobEntry) {
        debug_assert!(entry.is_blocked(), "a new job is in no list");
        self.count_victims(&entry.victims.clone());
        self.live.insert(entry.request.id, entry);
    }

    /// Forgets a blocked job.
    pub(crate) fn remove(&mut self, job: JobId) -> JobEntry {
        let entry = self.live.remove(&job).expect("a job ends once");
        debug_assert!(entry.is_blocked(), "a job that ends is in no list");
        self.discount_victims(&entry.victims);
        entry
    }

    /// Changes what a job that is not queued asks for.
    pub(crate) fn revise(&mut self, job: JobId, request: GangRequest, classes: Vec<RequestClass>) {
        let entry = self.entry_mut(job);
        debug_assert!(!entry.is_queued(), "the queue is ordered by what its jobs ask for");
        (entry.request, entry.classes) = (request, classes);
    }

    pub(crate) fn enqueue(&mut self, job: JobId) {
        let entry = self.live.get_mut(&job).expect("the job is live");
        entry.state = EntryState::Queued;
        entry.wait = Wait::NotTriedYet;
        self.queue.insert(entry.standing());
    }

    pub(crate) fn dequeue(&mut self, job: JobId) {
        let entry = self.live.get_mut(&job).expect("the job is live");
        if entry.is_queued() {
            entry.state = EntryState::Blocked;
            self.queue.remove(entry.standing());
        }
    }

    /// Puts the queue in the order of new priorities.
    pub(crate) fn reorder(&mut self, rank: impl Fn(&JobEntry) -> (Priority, Rank)) {
        let waiting: Vec<JobId> = self.queue.iter().collect();
        self.queue.clear();
        for job in waiting {
            let entry = self.live.get_mut(&job).expect("queued jobs are live");
            let before = entry.rank;
            (entry.priority, entry.rank) = rank(entry);
            self.queue.change_turn(before, entry.rank, job);
            self.queue.insert(entry.standing());
        }
    }

    /// Puts one queued job where its new priority has it.
    pub(crate) fn place_anew(&mut self, job: JobId, rank: impl Fn(&JobEntry) -> (Priority, Rank)) {
        let entry = self.live.get_mut(&job).expect("queued jobs are live");
        self.queue.remove(entry.standing());
        (entry.priority, entry.rank) = rank(entry);
        self.queue.insert(entry.standing());
    }

    pub(crate) fn begin_run(&mut self, job: JobId, run: GangRun) {
        self.changes += 1;
        self.ends.insert((run.ends, job));
        let entry = self.entry_mut(job);
        entry.state = EntryState::Running(Box::new(run));
        if entry.request.elastic().is_some() {
            self.elastic.insert(job);
        }
    }

    /// Takes the run of a running job, which is blocked then.
    pub(crate) fn end_run(&mut self, job: JobId) -> Option<GangRun> {
        let entry = self.live.get_mut(&job).filter(|entry| entry.run().is_some())?;
        let EntryState::Running(run) = std::mem::replace(&mut entry.state, EntryState::Blocked) else {
            return None;
        };
        self.changes += 1;
        self.ends.remove(&(run.ends, job));
        self.elastic.remove(&job);
        Some(*run)
    }

    pub(crate) fn suspend(&mut self, job: JobId, run: GangRun) {
        self.suspended.insert(job);
        let entry = self.entry_mut(job);
        entry.state = EntryState::Suspended(Box::new(run));
        entry.wait = Wait::Suspended;
    }

    /// Takes the run of a suspended job, which is blocked then.
    pub(crate) fn end_suspension(&mut self, job: JobId) -> Option<GangRun> {
        let entry = self.live.get_mut(&job).filter(|_| self.suspended.remove(&job))?;
        match std::mem::replace(&mut entry.state, EntryState::Blocked) {
            EntryState::Suspended(run) => Some(*run),
            _ => None,
        }
    }

    /// Changes a run in any way but its end.
    pub(crate) fn run_mut(&mut self, job: JobId) -> Option<&mut GangRun> {
        let EntryState::Running(run) = &mut self.live.get_mut(&job)?.state else {
            return None;
        };
        self.changes += 1;
        Some(run)
    }

    /// Changes when the time of a running gang is up.
    pub(crate) fn set_end(&mut self, job: JobId, ends: Time) -> &GangRun {
        let run = self.run_mut(job).expect("it runs");
        let before = std::mem::replace(&mut run.ends, ends);
        self.ends.remove(&(before, job));
        self.ends.insert((ends, job));
        self.run(job).expect("it runs")
    }

    pub(crate) fn set_held(&mut self, job: JobId, is_held: bool) {
        self.entry_mut(job).request.is_held = is_held;
    }

    pub(crate) fn set_wait(&mut self, job: JobId, wait: Wait) {
        self.entry_mut(job).wait = wait;
    }

    pub(crate) fn set_victims(&mut self, job: JobId, victims: Vec<JobId>) {
        self.count_victims(&victims);
        let before = std::mem::replace(&mut self.entry_mut(job).victims, victims);
        self.discount_victims(&before);
    }

    fn count_victims(&mut self, victims: &[JobId]) {
        victims.iter().for_each(|victim| *self.making_room.or_default(*victim) += 1);
    }

    fn discount_victims(&mut self, victims: &[JobId]) {
        for victim in victims {
            if let Some(count) = self.making_room.get_mut(victim) {
                *count -= 1;
                if *count == 0 {
                    self.making_room.remove(victim);
                }
            }
        }
    }

    /// Whether a gang stops for another one that still waits.
    pub(crate) fn makes_room(&self, job: JobId) -> bool {
        self.making_room.contains_key(&job)
    }

    pub(crate) fn set_returned(&mut self, job: JobId, now: Time) {
        self.entry_mut(job).returned = now;
    }

    pub(crate) fn count_restart(&mut self, job: JobId) {
        self.entry_mut(job).restarts += 1;
    }

    fn entry_mut(&mut self, job: JobId) -> &mut JobEntry {
        self.live.get_mut(&job).expect("the job is live")
    }
}

impl Index<JobId> for Jobs {
    type Output = JobEntry;

    fn index(&self, job: JobId) -> &JobEntry {
        self.get(job).expect("the job is live")
    }
}

impl JobEntry {
    pub(crate) fn standing(&self) -> Standing<'_> {
        let (rank, job, classes) = (self.rank, self.request.id, &self.classes[..]);
        Standing { rank, job, classes, group: self.limit_group() }
    }

    pub(crate) fn limit_group(&self) -> LimitGroup {
        let GangRequest { user, account, qos, array, .. } = self.request;
        let array = array.filter(|task| task.at_once.is_some()).map(|task| task.array);
        LimitGroup { user, account, qos, array }
    }

    pub(crate) fn run(&self) -> Option<&GangRun> {
        match &self.state {
            EntryState::Running(run) => Some(run),
            _ => None,
        }
    }

    pub(crate) fn is_queued(&self) -> bool {
        matches!(self.state, EntryState::Queued)
    }

    pub(crate) fn is_blocked(&self) -> bool {
        matches!(self.state, EntryState::Blocked)
    }
}

impl GangRun {
    /// A run that begins now, or began earlier elsewhere.
    pub(crate) fn new(shares: Vec<NodeShare>, started: Time, ends: Time) -> Self {
        Self {
            shares,
            started,
            ends,
            safe_at: started,
            stopping: None,
            leaving: Vec::new(),
            resized: started,
            charged: started,
        }
    }

    /// The run as it goes on after a suspension: with the time that it had left.
    pub(crate) fn resumed(self, now: Time) -> Self {
        Self { ends: now + self.time_left(), charged: now, ..self }
    }

    /// What a suspended gang had left when it was suspended.
    pub(crate) fn time_left(&self) -> Span {
        self.ends.since(self.charged)
    }

    pub(crate) fn ends(&self) -> Time {
        self.ends
    }

    pub(crate) fn nodes(&self) -> u32 {
        self.shares.len() as u32
    }

    pub(crate) fn gpus(&self) -> u64 {
        self.shares.iter().map(|share| u64::from(share.gpus())).sum()
    }

    pub(crate) fn node_ids(&self) -> Vec<u32> {
        self.shares.iter().map(|share| share.node.0).collect()
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.stopping.is_some() || !self.leaving.is_empty()
    }
}
