//! The jobs that have not ended, and what follows from them: those of a user, and how many are in which state.

use std::collections::BTreeMap;
use std::ops::{Bound, Index};
use std::sync::Arc;

use bedplate_blame::Program;
use bedplate_gangs::counted::{CountedMap, CountedSet};
use bedplate_gangs::{JobId, UserId};
use bedplate_job::{Job, Workload};

use crate::record::{JobRow, JobState, Life};

/// A job that has not ended.
#[derive(Debug, Clone)]
pub(crate) struct LiveJob {
    pub(crate) row: JobRow,
    pub(crate) job: Arc<Job>,
    pub(crate) user: UserId,
}

impl LiveJob {
    pub(crate) fn program(&self) -> Program {
        match &self.job.workload {
            Workload::Command { arguments } => Program::of(&arguments.join("\0")),
            Workload::Script { text } => Program::of(text),
            Workload::Native { kind, configuration } => Program::of(&format!("{kind}\0{configuration}")),
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct LiveJobs {
    by_id: CountedMap<JobId, LiveJob>,
    by_user: CountedSet<(UserId, JobId)>,
    by_state: BTreeMap<JobState, usize>,
}

impl LiveJobs {
    pub(crate) fn insert(&mut self, live: LiveJob) {
        let id = live.row.id;
        *self.by_state.entry(live.row.life.state).or_default() += 1;
        self.by_user.insert((live.user, id), ());
        self.by_id.insert(id, live);
    }

    pub(crate) fn remove(&mut self, job: JobId) -> Option<LiveJob> {
        let live = self.by_id.remove(&job)?;
        self.by_user.remove(&(live.user, job));
        self.leaves(live.row.life.state);
        Some(live)
    }

    /// Changes what is remembered about a job; tells the state that it had.
    pub(crate) fn change(
        &mut self,
        job: JobId,
        change: impl FnOnce(&mut Life),
    ) -> Option<(JobState, &LiveJob)> {
        let live = self.by_id.get_mut(&job)?;
        let before = live.row.life.state;
        change(&mut live.row.life);
        let after = live.row.life.state;
        if after != before {
            self.leaves(before);
            *self.by_state.entry(after).or_default() += 1;
        }
        Some((before, self.by_id.get(&job)?))
    }

    fn leaves(&mut self, state: JobState) {
        if let Some(count) = self.by_state.get_mut(&state) {
            *count -= 1;
        }
        self.by_state.retain(|_, count| *count > 0);
    }

    pub(crate) fn get(&self, job: &JobId) -> Option<&LiveJob> {
        self.by_id.get(job)
    }

    pub(crate) fn contains_key(&self, job: &JobId) -> bool {
        self.by_id.contains_key(job)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(crate) fn by_state(&self) -> &BTreeMap<JobState, usize> {
        &self.by_state
    }

    /// Those after a number, by number.
    pub(crate) fn after(&self, job: Option<JobId>) -> impl Iterator<Item = &LiveJob> {
        let from = job.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_id.range((from, Bound::Unbounded)).map(|(_, live)| live)
    }

    /// Those of a user after a number, by number.
    pub(crate) fn of_user(&self, user: UserId, after: Option<JobId>) -> impl Iterator<Item = &LiveJob> {
        let from = after.map_or(Bound::Included((user, JobId(0))), |job| Bound::Excluded((user, job)));
        let until = Bound::Included((user, JobId(u64::MAX)));
        self.by_user.range((from, until)).filter_map(|((_, job), ())| self.by_id.get(job))
    }
}

impl Index<&JobId> for LiveJobs {
    type Output = LiveJob;

    fn index(&self, job: &JobId) -> &LiveJob {
        self.get(job).expect("the job is live")
    }
}
