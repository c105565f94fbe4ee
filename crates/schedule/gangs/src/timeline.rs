//! What is free on one node from now on, as a step function of time.
//!
//! Bookings are taken from and given back to it, in any order. It knows amounts, not who holds them; the
//! caller keeps every booking and gives back exactly what it took. A node out of service is one that has more
//! than its capacity taken from it, so the free amount may lie below zero; nothing fits there.

use crate::{Amount, Span, Time};

/// Free amounts by time: each step lasts until the next one begins, the last one forever.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Timeline {
    /// Ascending; never empty once made.
    steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    from: Time,
    free: Free,
}

/// An amount that may lie below zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Free {
    gpus: i32,
    cpus: i32,
    memory_mib: i64,
}

impl Free {
    fn covers(self, need: Amount) -> bool {
        self.gpus >= i32::from(need.gpus)
            && self.cpus >= i32::from(need.cpus)
            && self.memory_mib >= i64::from(need.memory_mib)
    }

    fn changed(self, amount: Amount, sign: i32) -> Self {
        Self {
            gpus: self.gpus + sign * i32::from(amount.gpus),
            cpus: self.cpus + sign * i32::from(amount.cpus),
            memory_mib: self.memory_mib + i64::from(sign) * i64::from(amount.memory_mib),
        }
    }
}

/// When something can start on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StartWindow {
    pub(crate) start: Time,
    /// The last instant at which it can start without a gap.
    pub(crate) latest: Time,
    /// GPUs that stay free beside it throughout.
    pub(crate) spare_gpus: u16,
}

impl Clone for Timeline {
    fn clone(&self) -> Self {
        Self { steps: self.steps.clone() }
    }

    /// Keeps the memory: timelines are copied in every cycle.
    fn clone_from(&mut self, source: &Self) {
        self.steps.clone_from(&source.steps);
    }
}

impl Timeline {
    pub(crate) fn new(capacity: Amount) -> Self {
        let nothing = Free { gpus: 0, cpus: 0, memory_mib: 0 };
        Self { steps: vec![Step { from: Time::ZERO, free: nothing.changed(capacity, 1) }] }
    }

    /// Takes an amount from `from` up to `until`.
    pub(crate) fn take(&mut self, from: Time, until: Time, amount: Amount) {
        self.change(from, until, amount, -1);
    }

    /// Gives back what was taken.
    pub(crate) fn give(&mut self, from: Time, until: Time, amount: Amount) {
        self.change(from, until, amount, 1);
    }

    fn change(&mut self, from: Time, until: Time, amount: Amount, sign: i32) {
        if from >= until {
            return;
        }
        let first = self.split(from);
        let end = self.split(until);
        for step in &mut self.steps[first..end] {
            step.free = step.free.changed(amount, sign);
        }
        self.merge(end);
        self.merge(first);
    }

    /// The index of the step that begins at `at`, which is made when there is none.
    fn split(&mut self, at: Time) -> usize {
        let behind = self.steps.partition_point(|step| step.from < at);
        if self.steps.get(behind).is_none_or(|step| step.from != at) {
            let free = self.steps[behind.saturating_sub(1)].free;
            self.steps.insert(behind, Step { from: at, free });
        }
        behind
    }

    /// Joins a step with the one before it when nothing changes between them.
    fn merge(&mut self, index: usize) {
        if index > 0 && index < self.steps.len() && self.steps[index].free == self.steps[index - 1].free {
            self.steps.remove(index);
        }
    }

    /// Forgets what lies before `now`.
    pub(crate) fn forget_before(&mut self, now: Time) {
        let current = self.steps.partition_point(|step| step.from <= now).saturating_sub(1);
        self.steps.drain(..current);
    }

    /// The line from `now` on; lines that differ only in the past give the same.
    #[cfg(test)]
    pub(crate) fn since(&self, now: Time) -> Self {
        let mut line = self.clone();
        line.forget_before(now);
        line.steps[0].from = now.max(line.steps[0].from);
        line
    }

    /// GPUs that are free at a time; below zero where the node is out of service.
    pub(crate) fn gpus_at(&self, at: Time) -> i64 {
        let index = self.steps.partition_point(|step| step.from <= at).saturating_sub(1);
        self.steps[index].free.gpus.into()
    }

    /// The first time at or after `after` from which `need` is free for `length` without a gap.
    pub(crate) fn earliest(&self, after: Time, need: Amount, length: Span) -> StartWindow {
        let mut index = self.steps.partition_point(|step| step.from <= after).saturating_sub(1);
        while index < self.steps.len() {
            if !self.steps[index].free.covers(need) {
                index += 1;
                continue;
            }
            let start = self.steps[index].from.max(after);
            let (end, least) = self.gap_from(index, need, start + length);
            if end >= start + length {
                return StartWindow {
                    start,
                    latest: (end - length).max(start),
                    spare_gpus: (least - i32::from(need.gpus)) as u16,
                };
            }
            index = self.steps.partition_point(|step| step.from < end);
        }
        StartWindow { start: Time::NEVER, latest: Time::NEVER, spare_gpus: 0 }
    }

    /// The window that begins exactly at `at`, where there is one.
    pub(crate) fn window_at(&self, at: Time, need: Amount, length: Span) -> Option<StartWindow> {
        let index = self.steps.partition_point(|step| step.from <= at).saturating_sub(1);
        if !self.steps[index].free.covers(need) {
            return None;
        }
        let (end, least) = self.gap_from(index, need, at + length);
        (end >= at + length).then(|| StartWindow {
            start: at,
            latest: (end - length).max(at),
            spare_gpus: (least - i32::from(need.gpus)) as u16,
        })
    }

    /// Until when `need` stays free from a step on, and the fewest GPUs free up to `counted`.
    fn gap_from(&self, index: usize, need: Amount, counted: Time) -> (Time, i32) {
        let mut least = self.steps[index].free.gpus;
        for step in &self.steps[index + 1..] {
            if !step.free.covers(need) {
                return (step.from, least);
            }
            if step.from < counted {
                least = least.min(step.free.gpus);
            }
        }
        (Time::NEVER + Span::FOREVER, least)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn gpus(count: u16) -> Amount {
        Amount::gpus(count)
    }

    #[test]
    fn a_window_begins_where_enough_is_free_for_long_enough() {
        let mut line = Timeline::new(gpus(8));
        line.take(Time(0), Time(10), gpus(8));
        line.take(Time(15), Time(30), gpus(4));
        let find = |need, length| line.earliest(Time(0), gpus(need), Span(length)).start;
        assert_eq!(find(8, 5), Time(10));
        assert_eq!(find(4, 50), Time(10));
        assert_eq!(find(8, 6), Time(30));
        assert_eq!(find(9, 1), Time::NEVER);
        assert_eq!(line.earliest(Time(0), gpus(8), Span(2)).latest, Time(13));
        assert_eq!(line.earliest(Time(0), gpus(3), Span(8)).spare_gpus, 1);
    }

    #[test]
    fn giving_back_restores_the_line() {
        let mut line = Timeline::new(gpus(8));
        line.take(Time(5), Time(10), gpus(3));
        line.take(Time(7), Time(12), gpus(5));
        line.give(Time(5), Time(10), gpus(3));
        line.give(Time(7), Time(12), gpus(5));
        assert_eq!(line, Timeline::new(gpus(8)));
    }

    proptest! {
        /// Against an array with one cell per millisecond.
        #[test]
        fn windows_agree_with_counting(
            bookings in prop::collection::vec((0u64..60, 1u64..30, 1u16..4), 0..12),
            need in 1u16..9, length in 1u64..20, after in 0u64..80,
        ) {
            let mut line = Timeline::new(gpus(8));
            let mut cells = [8u16; 300];
            for (from, length, count) in bookings {
                let range = from as usize..(from + length) as usize;
                if cells[range.clone()].iter().all(|free| *free >= count) {
                    cells[range].iter_mut().for_each(|free| *free -= count);
                    line.take(Time(from), Time(from + length), gpus(count));
                }
            }
            let fits = |at: usize| cells[at..at + length as usize].iter().all(|free| *free >= need);
            let expected = (after as usize..250).find(|at| fits(*at));
            let found = line.earliest(Time(after), gpus(need), Span(length));
            prop_assert_eq!(expected.map_or(Time::NEVER, |at| Time(at as u64)), found.start);
            if let Some(at) = expected {
                prop_assert!(line.window_at(found.start, gpus(need), Span(length)) == Some(found));
                let last = (at..250).take_while(|at| fits(*at)).last().unwrap_or(at) as u64;
                prop_assert!(found.latest == Time(last) || found.latest >= Time(249));
                let spare = cells[at..at + length as usize].iter().min().expect("not empty") - need;
                prop_assert_eq!(spare, found.spare_gpus);
            }
        }
    }
}
