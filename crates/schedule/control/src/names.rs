//! Which jobs a name or a key means.
//!
//! Jobs that have not ended are known, and those that ended within [`REMEMBERED`]: longer than any record takes to
//! reach the disk. What ended before is asked of the journal, so that memory does not grow with history.

use std::collections::VecDeque;

use bedplate_gangs::counted::CountedMap;
use bedplate_gangs::{JobId, Span, Time};

use crate::record::{ArrayPlace, EndedRow, JobRow, JobState};

const REMEMBERED: Span = Span::minutes(1);

#[derive(Debug, Clone, Default)]
pub(crate) struct JobNames {
    keys: CountedMap<String, JobId>,
    arrays: CountedMap<JobId, Tasks>,
    ended: CountedMap<JobId, JobState>,
    /// In the order of their ends.
    lately: VecDeque<Ended>,
    ended_count: u64,
}

/// The tasks of an array; all of them are kept for as long as one is known.
#[derive(Debug, Clone, Default)]
struct Tasks {
    by_index: CountedMap<u32, JobId>,
    known: u32,
}

#[derive(Debug, Clone)]
struct Ended {
    at: Time,
    job: JobId,
    key: Option<String>,
    array: Option<JobId>,
}

impl JobNames {
    /// A job that has not ended.
    pub(crate) fn add(&mut self, row: &JobRow) {
        if let Some(place) = row.array {
            self.add_task(row.id, place).known += 1;
        }
        if let Some(key) = &row.key {
            self.keys.insert(key.clone(), row.id);
        }
    }

    /// A task that ended long ago, of an array whose others have not.
    pub(crate) fn add_ended(&mut self, row: &EndedRow) {
        if let Some(place) = row.array {
            self.add_task(row.id, place);
        }
    }

    fn add_task(&mut self, job: JobId, place: ArrayPlace) -> &mut Tasks {
        let tasks = self.arrays.or_default(place.array);
        tasks.by_index.insert(place.index, job);
        tasks
    }

    pub(crate) fn end(&mut self, row: &JobRow, state: JobState, now: Time) {
        self.ended_count += 1;
        self.ended.insert(row.id, state);
        let array = row.array.map(|place| place.array);
        self.lately.push_back(Ended { at: now, job: row.id, key: row.key.clone(), array });
    }

    /// Forgets jobs that ended a while ago, so many at a time, and says which.
    pub(crate) fn forget_old(&mut self, now: Time, most: usize) -> Vec<JobId> {
        let mut forgotten = Vec::new();
        while forgotten.len() < most
            && let Some(old) = self.lately.pop_front_if(|ended| now.since(ended.at) >= REMEMBERED)
        {
            self.ended.remove(&old.job);
            if let Some(key) = &old.key {
                self.keys.remove(key);
            }
            if let Some(array) = old.array {
                self.forget_task(array);
            }
            forgotten.push(old.job);
        }
        forgotten
    }

    fn forget_task(&mut self, array: JobId) {
        if let Some(tasks) = self.arrays.get_mut(&array) {
            tasks.known = tasks.known.saturating_sub(1);
            if tasks.known == 0 {
                self.arrays.remove(&array);
            }
        }
    }

    /// The first job of a key, and how many there are.
    pub(crate) fn of_key(&self, key: &str) -> Option<(JobId, u32)> {
        let first = *self.keys.get(&key.to_owned())?;
        Some((first, self.arrays.get(&first).map_or(1, |tasks| tasks.by_index.len() as u32)))
    }

    pub(crate) fn ended(&self, job: JobId) -> Option<JobState> {
        self.ended.get(&job).copied()
    }

    /// Jobs that have ended, those included that only the journal remembers.
    pub(crate) fn ended_count(&self) -> u64 {
        self.ended_count
    }

    pub(crate) fn set_ended_count(&mut self, count: u64) {
        self.ended_count = count;
    }

    /// The tasks of an array: all, or the one of an index.
    pub(crate) fn tasks(&self, array: JobId, index: Option<u32>) -> Option<Vec<JobId>> {
        let tasks = &self.arrays.get(&array)?.by_index;
        Some(match index {
            Some(index) => tasks.get(&index).into_iter().copied().collect(),
            None => tasks.values().copied().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Life;

    fn row(id: u64, array: Option<(u64, u32)>, key: Option<&str>) -> JobRow {
        JobRow {
            id: JobId(id),
            array: array.map(|(array, index)| ArrayPlace { array: JobId(array), index }),
            user: "ada".into(),
            name: "job".into(),
            account: "root".into(),
            submitted: Time::ZERO,
            key: key.map(str::to_owned),
            text: "".into(),
            life: Life::default(),
        }
    }

    #[test]
    fn what_ended_a_while_ago_leaves_nothing_behind() {
        let mut names = JobNames::default();
        let rows = [row(1, None, Some("ada/k")), row(2, Some((2, 0)), None), row(3, Some((2, 1)), None)];
        rows.iter().for_each(|row| names.add(row));
        for (row, second) in rows.iter().zip([0, 10, 100]) {
            names.end(row, JobState::Succeeded, Time::seconds(second));
        }
        assert_eq!(names.forget_old(Time::seconds(59), 9), []);
        assert_eq!(names.of_key("ada/k"), Some((JobId(1), 1)));
        assert_eq!(names.forget_old(Time::seconds(70), 9), [JobId(1), JobId(2)]);
        assert_eq!(names.of_key("ada/k"), None);
        assert_eq!(names.tasks(JobId(2), None), Some(vec![JobId(2), JobId(3)]), "one is still known");
        assert_eq!(names.forget_old(Time::seconds(160), 9), [JobId(3)]);
        let JobNames { keys, arrays, ended, lately, ended_count } = names;
        assert!(keys.is_empty() && arrays.is_empty() && ended.is_empty() && lately.is_empty());
        assert_eq!(ended_count, 3);
    }
}
