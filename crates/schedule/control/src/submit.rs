//! What users and operators want: jobs submitted, cancelled, held; nodes drained and resumed.

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_diag::Reason;
use bedplate_gangs::{ArrayTask, Decision, Event, GangRequest, JobId, NodeOrder, Time};
use bedplate_job::{Begin, Job};
use bedplate_topology::NodeId;

use crate::arrivals::ArrayArrival;
use crate::control::{Control, Notice, outcome_of};
use crate::live::LiveJob;
use crate::reason;
use crate::record::{ArrayPlace, JobRow, JobState, Life, Record};

/// Jobs, tasks of arrays among them, that one job may depend on: two arrays of the largest size.
const MOST_AWAITED: usize = 20_000;

/// A job and who wants it.
#[derive(Debug, Clone, PartialEq)]
pub struct Submission {
    pub user: String,
    pub job: Job,
    /// The same key by the same user is the same job: a client that heard no answer may ask again.
    pub key: Option<String>,
    /// What the journal knows of jobs that its dependencies name and that are not known here any more.
    pub past: Past,
}

/// Jobs that have ended and how, by the name that was asked for.
pub type Past = BTreeMap<String, Vec<(JobId, JobState)>>;

impl Submission {
    pub fn new(user: impl Into<String>, job: Job) -> Self {
        Self { user: user.into(), job, key: None, past: Past::new() }
    }

    /// The key as it is recorded: each user has keys of their own.
    pub fn recorded_key(user: &str, key: &str) -> String {
        format!("{user}/{key}")
    }
}

/// What all tasks of an array have in common.
#[derive(Clone, Copy)]
pub(crate) struct NewJob<'a> {
    pub(crate) user: &'a str,
    pub(crate) job: &'a Arc<Job>,
    pub(crate) text: &'a Arc<str>,
    pub(crate) submitted: Time,
}

/// What people call a job: `12`, the task `12_3` of an array, or all tasks of the array 12.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobName {
    pub id: JobId,
    pub index: Option<u32>,
}

impl JobName {
    pub fn read(text: &str) -> Option<Self> {
        match text.split_once('_') {
            Some((array, index)) => {
                Some(Self { id: JobId(array.parse().ok()?), index: Some(index.parse().ok()?) })
            }
            None => Some(Self { id: JobId(text.parse().ok()?), index: None }),
        }
    }
}

/// The numbers that a submission got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    pub first: JobId,
    pub count: u32,
    /// It had been submitted before under the same key.
    pub is_old: bool,
}

/// What may be wanted of a job or a node that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientOrder {
    Cancel(JobId),
    Hold(JobId),
    Release(JobId),
    Requeue(JobId),
    Drain { node: String, reason: String },
    Resume { node: String },
}

/// Why a submission or an order is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum OrderRefusal {
    /// By the rules of the scheduler.
    #[error("{why}")]
    Never { why: Reason },
    #[error("it depends on job {on}, and there is no such job")]
    UnknownDependency { on: String },
    #[error("it depends on more than {most} jobs")]
    TooManyDependencies { most: usize },
    #[error("there is no {job}")]
    NoSuchJob { job: JobId },
    #[error("{job} has ended: {}", state.name())]
    HasEnded { job: JobId, state: JobState },
    #[error("{job} does not run")]
    DoesNotRun { job: JobId },
    #[error("there is no node `{node}`")]
    NoSuchNode { node: String },
}

impl OrderRefusal {
    /// The same as plain data.
    pub fn reason(&self) -> Reason {
        match self {
            OrderRefusal::Never { why } => why.clone(),
            other => Reason::of(other),
        }
    }
}

impl Control {
    /// Takes a job in, or says why it can never run here.
    pub fn submit(&mut self, submission: Submission, now: Time) -> Result<Accepted, OrderRefusal> {
        let now = self.advance(now);
        let Submission { user, mut job, key, past } = submission;
        let key = key.map(|key| Submission::recorded_key(&user, &key));
        if let Some((first, count)) = key.as_ref().and_then(|key| self.names.of_key(key)) {
            let count = self.arrivals.count(first).unwrap_or(count);
            return Ok(Accepted { first, count, is_old: true });
        }
        self.let_awaited_arrive(&job, now);
        let past = self.resolve_dependencies(&mut job, &past)?;
        let request = self.request(&job, &user, now)?;
        let first = request.id;
        let indices = job.array_indices().unwrap_or_default();
        let count = indices.len().max(1) as u32;
        self.next_job = first.0 + u64::from(count);
        let text: Arc<str> = job.to_toml().into();
        let job = Arc::new(job);
        // The rest of a large array comes later.
        let at_once = u64::from(count).min(self.rules.array_slice.max(1) as u64);
        let requests = (0..at_once).map(|task| GangRequest { id: JobId(first.0 + task), ..request.clone() });
        let known = past.iter().map(|(job, state)| Event::Known { job: *job, outcome: outcome_of(*state) });
        let submitted = requests.map(|request| Event::Submit(Box::new(request)));
        let mut decisions = self.scheduler.apply_all(known.chain(submitted), now);
        past.iter().for_each(|(job, _)| self.scheduler.forget(*job));
        let refusal = rejection(&decisions, first);
        decisions.retain(|decision| !matches!(decision, Decision::Reject { job, .. } if *job >= first));
        if refusal.is_none() {
            let new = NewJob { user: &user, job: &job, text: &text, submitted: now };
            for task in 0..at_once {
                let array =
                    indices.get(task as usize).map(|index| ArrayPlace { array: first, index: *index });
                let key = key.clone().filter(|_| task == 0);
                self.keep(JobId(first.0 + task), array, key, &new, now);
            }
            if at_once < u64::from(count) {
                let next = Some(JobId(first.0 + at_once));
                self.output.records.push(Record::Arriving { array: first, next });
                let (recorded, told) = (at_once as usize, at_once as usize);
                self.arrivals.push(ArrayArrival {
                    request,
                    indices,
                    job,
                    text,
                    user,
                    submitted: now,
                    recorded,
                    told,
                });
            }
        }
        // The same cycle may have decided about other jobs.
        for decision in decisions {
            self.carry_out(decision, now);
        }
        self.settle(now);
        if let Some(why) = refusal {
            (first.0..first.0 + at_once).for_each(|job| self.scheduler.forget(JobId(job)));
            return Err(OrderRefusal::Never { why });
        }
        Ok(Accepted { first, count, is_old: false })
    }

    pub(crate) fn keep(
        &mut self,
        id: JobId,
        array: Option<ArrayPlace>,
        key: Option<String>,
        new: &NewJob<'_>,
        now: Time,
    ) {
        let NewJob { user, job, text, submitted } = *new;
        let row = JobRow {
            id,
            array,
            user: user.to_string(),
            name: job.name.clone(),
            account: job.policy.account.clone().unwrap_or_else(|| "root".into()),
            submitted,
            key,
            text: text.clone(),
            life: Life { is_held: job.policy.is_held, ..Life::default() },
        };
        self.names.add(&row);
        self.output.notices.push(Notice::Job { job: id.0, state: JobState::Waiting, at_ms: now.0 });
        self.output.records.push(Record::Submitted(row.clone()));
        let user = self.user_id(user);
        self.jobs.insert(LiveJob { row, job: job.clone(), user });
    }

    /// What the job asks for, or the first task of its array.
    fn request(&mut self, job: &Job, user: &str, now: Time) -> Result<GangRequest, OrderRefusal> {
        let user = self.user_id(user);
        let first = JobId(self.next_job);
        let request =
            GangRequest::from_job(first, job, user, self.scheduler.cluster(), self.scheduler.settings())
                .map_err(|why| OrderRefusal::Never { why: Reason::of(&why) })?;
        let array = job.policy.array.as_ref().map(|array| ArrayTask { array: first, at_once: array.at_once });
        Ok(GangRequest { begin: earliest_start(job, now), array, ..request })
    }

    /// The scheduler must know what a job depends on.
    fn let_awaited_arrive(&mut self, job: &Job, now: Time) {
        if !self.has_arrivals() {
            return;
        }
        let names = job.policy.dependencies.iter().flat_map(|dependency| &dependency.jobs);
        for name in names.filter_map(|name| JobName::read(name)) {
            self.let_arrive_whole(name.id, now);
        }
        self.settle(now);
    }

    /// Dependencies name jobs by number, tasks of arrays as `12_3`, and whole arrays by their first number. Returns those
    /// that ended a while ago.
    fn resolve_dependencies(
        &self,
        job: &mut Job,
        past: &Past,
    ) -> Result<Vec<(JobId, JobState)>, OrderRefusal> {
        let mut ended = Vec::new();
        let mut left = MOST_AWAITED;
        for dependency in &mut job.policy.dependencies {
            let mut jobs = Vec::new();
            for name in &dependency.jobs {
                let unknown = || OrderRefusal::UnknownDependency { on: name.clone() };
                let past = past.get(name).map_or(&[][..], Vec::as_slice);
                let mut found = self.find_jobs(name);
                if found.is_empty() {
                    found.extend(past.iter().map(|(job, _)| *job));
                }
                if found.is_empty() {
                    return Err(unknown());
                }
                left = left
                    .checked_sub(found.len())
                    .ok_or(OrderRefusal::TooManyDependencies { most: MOST_AWAITED })?;
                // Of an array, some tasks may have ended long before others.
                for job in found.iter().filter(|job| !self.is_known(**job)) {
                    ended.push(*past.iter().find(|(known, _)| known == job).ok_or_else(unknown)?);
                }
                jobs.extend(found.into_iter().map(|id| id.0.to_string()));
            }
            dependency.jobs = jobs;
        }
        Ok(ended)
    }

    /// The jobs that a name means, of those that have not ended or ended lately.
    pub fn find_jobs(&self, name: &str) -> Vec<JobId> {
        let Some(JobName { id, index }) = JobName::read(name) else {
            return Vec::new();
        };
        match (self.names.tasks(id, index), index) {
            (Some(tasks), _) => tasks,
            (None, None) if self.is_known(id) => vec![id],
            _ => Vec::new(),
        }
    }

    /// Whether a job lives or ended lately.
    fn is_known(&self, job: JobId) -> bool {
        self.jobs.contains_key(&job) || self.names.ended(job).is_some()
    }

    /// Carries out an order, or says why it cannot be. `by` is kept in the history.
    pub fn order(&mut self, order: ClientOrder, by: &str, now: Time) -> Result<(), OrderRefusal> {
        let mut answers = self.order_all([order], by, now);
        answers.pop().expect("there is an answer to each order")
    }

    /// Carries out many orders and lets the scheduler decide once about all of them.
    pub fn order_all(
        &mut self,
        orders: impl IntoIterator<Item = ClientOrder>,
        by: &str,
        now: Time,
    ) -> Vec<Result<(), OrderRefusal>> {
        let now = self.advance(now);
        let answers = orders.into_iter().map(|order| self.take_order(order, by, now)).collect();
        self.settle(now);
        answers
    }

    fn take_order(&mut self, order: ClientOrder, by: &str, now: Time) -> Result<(), OrderRefusal> {
        match order {
            ClientOrder::Cancel(job) => {
                self.let_arrive_until(job, now);
                self.order_job(job, Event::Cancel(job), format!("cancelled by {by}"), now)?;
                if let Some(run) = self.runs.get_mut(&job) {
                    run.stops_as = Some(JobState::Cancelled);
                    self.record_order(job, now);
                }
            }
            ClientOrder::Hold(job) => {
                self.let_arrive_until(job, now);
                self.order_job(job, Event::Hold(job), format!("held by {by}"), now)?;
                self.change(job, now, |life| life.is_held = true);
            }
            ClientOrder::Release(job) => {
                self.let_arrive_until(job, now);
                self.order_job(job, Event::Release(job), format!("released by {by}"), now)?;
                self.change(job, now, |life| life.is_held = false);
            }
            ClientOrder::Requeue(job) => {
                self.live(job)?;
                if !self.runs.contains_key(&job) {
                    return Err(OrderRefusal::DoesNotRun { job });
                }
                self.order_job(job, Event::Requeue(job), format!("requeued by {by}"), now)?;
            }
            ClientOrder::Drain { node, reason } => {
                let node = self.node(&node)?;
                // It stays out whatever becomes of a finding that took it out before.
                self.nodes[node.0 as usize].found_out = None;
                self.drain(node, reason::drained_by(&reason, by), now);
            }
            ClientOrder::Resume { node } => {
                let node = self.node(&node)?;
                self.undrain(node, now);
            }
        }
        Ok(())
    }

    /// Starts nothing any more and sends what runs back to the queue, or to its end where it may not come back.
    pub fn close(&mut self, by: &str, now: Time) {
        let now = self.advance(now);
        self.is_closing = true;
        let nodes = (0..self.nodes.len()).map(|at| NodeId(at as u32));
        self.news.extend(nodes.map(|node| Event::Node { node, order: NodeOrder::Drain }));
        self.settle(now);
        let running: Vec<JobId> = self.runs.keys().copied().collect();
        let order = |job: &JobId| match self.jobs.get(job) {
            Some(live) if live.job.policy.is_requeued => ClientOrder::Requeue(*job),
            _ => ClientOrder::Cancel(*job),
        };
        let orders: Vec<ClientOrder> = running.iter().map(order).collect();
        self.order_all(orders, by, now);
    }

    fn order_job(&mut self, job: JobId, event: Event, note: String, now: Time) -> Result<(), OrderRefusal> {
        self.live(job)?;
        self.note_job(job, note, now);
        self.news.push_back(event);
        Ok(())
    }

    fn live(&self, job: JobId) -> Result<(), OrderRefusal> {
        match self.names.ended(job) {
            _ if self.jobs.contains_key(&job) => Ok(()),
            Some(state) => Err(OrderRefusal::HasEnded { job, state }),
            None => Err(OrderRefusal::NoSuchJob { job }),
        }
    }

    fn node(&self, name: &str) -> Result<NodeId, OrderRefusal> {
        let found = self.scheduler.cluster().find_node(name);
        found.ok_or_else(|| OrderRefusal::NoSuchNode { node: name.to_string() })
    }
}

fn rejection(decisions: &[Decision], job: JobId) -> Option<Reason> {
    decisions.iter().find_map(|decision| match decision {
        Decision::Reject { job: rejected, why } if *rejected == job => Some(Reason::of(why)),
        _ => None,
    })
}

/// When a job that was submitted then may begin.
pub(crate) fn earliest_start(job: &Job, submitted: Time) -> Time {
    let seconds = |begin: &Begin| begin.unix_seconds(submitted.0 as f64 / 1000.0);
    job.policy.begin.as_ref().map_or(Time::ZERO, |begin| Time((seconds(begin).max(0.0) * 1000.0) as u64))
}
