//! Arrays that are too large for one turn: their tasks are recorded, and then made known to the scheduler, a slice at a time, users in turn.
//!
//! An array is taken in with its first slice, and with each slice it is recorded how far it is. So the rest comes whatever happens, after a
//! restart too, and everybody else is served in between.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bedplate_gangs::{Event, GangRequest, JobId, Time, UserId};
use bedplate_job::Job;

use crate::control::Control;
use crate::record::{ArrayPlace, Record};
use crate::submit::NewJob;

/// An array of which not all tasks are there.
#[derive(Debug, Clone)]
pub(crate) struct ArrayArrival {
    /// Of the first task; those of the others follow from it.
    pub(crate) request: GangRequest,
    pub(crate) indices: Vec<u32>,
    pub(crate) job: Arc<Job>,
    pub(crate) text: Arc<str>,
    pub(crate) user: String,
    pub(crate) submitted: Time,
    /// Tasks that have been recorded, and those of them that the scheduler knows.
    pub(crate) recorded: usize,
    pub(crate) told: usize,
}

impl ArrayArrival {
    pub(crate) fn first(&self) -> JobId {
        self.request.id
    }

    fn number(&self, task: usize) -> JobId {
        JobId(self.first().0 + task as u64)
    }

    fn has(&self, job: JobId) -> bool {
        (self.first()..self.number(self.indices.len())).contains(&job)
    }

    fn is_there(&self) -> bool {
        self.told == self.indices.len()
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Arrivals {
    by_user: BTreeMap<UserId, VecDeque<ArrayArrival>>,
    /// Whose turn was last.
    last: Option<UserId>,
}

impl Arrivals {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_user.is_empty()
    }

    pub(crate) fn push(&mut self, arrival: ArrayArrival) {
        self.by_user.entry(arrival.request.user).or_default().push_back(arrival);
    }

    /// The array whose task a job is, and whose array that is.
    fn find(&self, job: JobId) -> Option<(UserId, &ArrayArrival)> {
        let all = self.by_user.iter().flat_map(|(user, arrays)| arrays.iter().map(|array| (*user, array)));
        all.into_iter().find(|(_, array)| array.has(job))
    }

    /// How many tasks an array has that is not there.
    pub(crate) fn count(&self, array: JobId) -> Option<u32> {
        self.find(array).map(|(_, arrival)| arrival.indices.len() as u32)
    }

    /// The oldest array of the user whose turn it is.
    fn next(&mut self) -> Option<ArrayArrival> {
        let from = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.by_user.range((from, Bound::Unbounded)).next().or_else(|| self.by_user.iter().next());
        let user = *next?.0;
        self.last = Some(user);
        self.take(user, 0)
    }

    fn take(&mut self, user: UserId, at: usize) -> Option<ArrayArrival> {
        let arrays = self.by_user.get_mut(&user)?;
        let taken = arrays.remove(at);
        if arrays.is_empty() {
            self.by_user.remove(&user);
        }
        taken
    }

    /// Goes on where it was taken from.
    fn put_back(&mut self, arrival: ArrayArrival, at: usize) {
        let arrays = self.by_user.entry(arrival.request.user).or_default();
        arrays.insert(at.min(arrays.len()), arrival);
    }
}

impl Control {
    /// Whether an array, or that of a task, is not there as a whole.
    pub fn is_arriving(&self, job: JobId) -> bool {
        self.arrivals.find(job).is_some()
    }

    /// Whether [`take_in`](Self::take_in) has something to do.
    pub fn has_arrivals(&self) -> bool {
        !self.arrivals.is_empty()
    }

    /// Takes in the next slice of an array. To be called again and again while [there are some](Self::has_arrivals), but not faster than the disk takes
    /// what follows from it.
    pub fn take_in(&mut self, now: Time) {
        let now = self.advance(now);
        let Some(mut arrival) = self.arrivals.next() else { return };
        self.take_in_some(&mut arrival, self.rules.array_slice.max(1), now);
        if !arrival.is_there() {
            self.arrivals.put_back(arrival, 0);
        }
        self.settle(now);
    }

    /// What is to happen to jobs happens to those that the scheduler knows: the array of a task comes as far as that task.
    pub(crate) fn let_arrive_until(&mut self, job: JobId, now: Time) {
        let Some((user, arrival)) = self.arrivals.find(job) else { return };
        let (first, tasks) = (arrival.first(), (job.0 - arrival.first().0) as usize + 1);
        let arrays = &self.arrivals.by_user[&user];
        let at = arrays.iter().position(|array| array.first() == first).expect("it was just found");
        let mut arrival = self.arrivals.take(user, at).expect("it was just found");
        while arrival.told < tasks {
            let missing = tasks - arrival.recorded.min(tasks);
            self.take_in_some(&mut arrival, if missing > 0 { missing } else { tasks }, now);
        }
        if !arrival.is_there() {
            self.arrivals.put_back(arrival, at);
        }
    }

    /// The same for all of its tasks.
    pub(crate) fn let_arrive_whole(&mut self, job: JobId, now: Time) {
        if let Some((_, arrival)) = self.arrivals.find(job) {
            self.let_arrive_until(arrival.number(arrival.indices.len() - 1), now);
        }
    }

    /// Records tasks, or tells the scheduler of those that are recorded.
    pub(crate) fn take_in_some(&mut self, arrival: &mut ArrayArrival, most: usize, now: Time) {
        let count = arrival.indices.len();
        if arrival.recorded < count {
            let until = count.min(arrival.recorded + most);
            for task in arrival.recorded..until {
                self.record_task(arrival, task, now);
            }
            arrival.recorded = until;
            let next = (until < count).then(|| arrival.number(until));
            self.output.records.push(Record::Arriving { array: arrival.first(), next });
            return;
        }
        let until = count.min(arrival.told + most);
        for task in arrival.told..until {
            let request = GangRequest { id: arrival.number(task), ..arrival.request.clone() };
            self.news.push_back(Event::Submit(Box::new(request)));
        }
        arrival.told = until;
    }

    fn record_task(&mut self, arrival: &ArrayArrival, task: usize, now: Time) {
        let ArrayArrival { user, job, text, .. } = arrival;
        let array = Some(ArrayPlace { array: arrival.first(), index: arrival.indices[task] });
        let new = NewJob { user, job, text, submitted: arrival.submitted };
        self.keep(arrival.number(task), array, None, &new, now);
    }
}

#[cfg(test)]
mod tests {
    use bedplate_gangs::{RoleRequest, Span};
    use bedplate_job::{Gang, Role, Workload};

    use super::*;

    fn arrival(first: u64, user: u32, tasks: u32) -> ArrayArrival {
        let job = Job::new("array", Workload::command(["true"]), Gang::of(Role::named(Role::ONLY)));
        let request = GangRequest::new(JobId(first), RoleRequest::new(1, 1));
        ArrayArrival {
            request: GangRequest { user: UserId(user), time_limit: Span::hours(1), ..request },
            indices: (0..tasks).collect(),
            job: Arc::new(job),
            text: "".into(),
            user: "ada".into(),
            submitted: Time::ZERO,
            recorded: 1,
            told: 1,
        }
    }

    #[test]
    fn users_take_turns_and_the_arrays_of_one_come_in_order() {
        let mut arrivals = Arrivals::default();
        [(1, 1), (11, 1), (21, 2)]
            .into_iter()
            .for_each(|(first, user)| arrivals.push(arrival(first, user, 10)));
        let mut firsts = Vec::new();
        for _ in 0..5 {
            let next = arrivals.next().expect("there are some");
            firsts.push(next.first().0);
            arrivals.put_back(next, 0);
        }
        assert_eq!(firsts, [1, 21, 1, 21, 1]);
        assert_eq!((arrivals.count(JobId(15)), arrivals.count(JobId(31))), (Some(10), None));
        let second = arrivals.take(UserId(1), 1).expect("it is there");
        assert_eq!(second.first(), JobId(11));
        arrivals.put_back(second, 1);
        assert_eq!(
            arrivals.by_user[&UserId(1)].iter().map(|array| array.first().0).collect::<Vec<_>>(),
            [1, 11]
        );
    }
}
