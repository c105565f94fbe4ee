//! What comes due by time alone, except the ends of runs, which [`Jobs`](crate::jobs::Jobs) keeps.

use std::collections::BTreeSet;

use bedplate_topology::NodeId;

use crate::{JobId, Time};

#[derive(Debug, Clone, Default)]
pub(crate) struct Calendar {
    /// When jobs that may not begin yet may.
    pub(crate) begins: Dates<JobId>,
    /// When elastic gangs should have left nodes.
    pub(crate) departures: Dates<JobId>,
    /// When gangs must leave nodes that close.
    pub(crate) evictions: Dates<(JobId, NodeId)>,
    alarms: [Option<Time>; 3],
}

/// A time at which the scheduler looks again.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Alarm {
    /// A node closes or opens.
    Closure,
    /// A gang that may not be moved yet, or may not move others yet, may.
    Preemption,
    /// An elastic gang may grow again.
    Growth,
}

impl Calendar {
    /// The next time at which anything is due.
    pub(crate) fn next(&self) -> Option<Time> {
        let dates = [self.begins.next(), self.departures.next(), self.evictions.next()];
        self.alarms.into_iter().chain(dates).flatten().min()
    }

    pub(crate) fn set(&mut self, alarm: Alarm, at: Option<Time>) {
        self.alarms[alarm as usize] = at;
    }

    pub(crate) fn get(&self, alarm: Alarm) -> Option<Time> {
        self.alarms[alarm as usize]
    }

    pub(crate) fn is_due(&self, alarm: Alarm, now: Time) -> bool {
        self.get(alarm).is_some_and(|time| time <= now)
    }
}

/// Things with the time at which each is due.
#[derive(Debug, Clone)]
pub(crate) struct Dates<T>(BTreeSet<(Time, T)>);

impl<T> Default for Dates<T> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<T: Ord> Dates<T> {
    pub(crate) fn add(&mut self, at: Time, what: T) {
        self.0.insert((at, what));
    }

    fn next(&self) -> Option<Time> {
        self.0.first().map(|(time, _)| *time)
    }

    /// Takes out the first that is due.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<T> {
        let is_due = self.next()? <= now;
        is_due.then(|| self.0.pop_first()).flatten().map(|(_, what)| what)
    }

    #[cfg(test)]
    pub(crate) fn contains(&self, what: &T) -> bool {
        self.0.iter().any(|(_, each)| each == what)
    }
}
