//! Jobs that wait for others: for given jobs, or for those of the same name and user.

use std::collections::VecDeque;
use std::sync::Arc;

use bedplate_job::DependencyKind;

use crate::counted::{CountedMap, CountedSet};
use crate::{GangDependency, GangOutcome, GangRequest, JobId, Never, UserId, Wait};

/// Jobs that a wait names; those after them are there without being named.
const MOST_NAMED: usize = 16;

#[derive(Debug, Clone, Default)]
pub(crate) struct Dependencies {
    /// How jobs ended.
    finished: CountedMap<JobId, GangOutcome>,
    /// How many dependencies of live jobs name a job.
    awaited: CountedMap<JobId, u32>,
    /// Jobs whose outcome is of no interest but to those that await it.
    forgotten: CountedSet<JobId>,
    /// Which jobs wait for a job that has not ended, and how, by the job that they wait for.
    dependents: CountedMap<(JobId, JobId), Vec<DependencyKind>>,
    /// The same by the job that waits.
    waits_for: CountedSet<(JobId, JobId)>,
    /// Jobs that have ended and whose dependents have not all been looked at.
    ended: VecDeque<(JobId, GangOutcome)>,
    /// Jobs of one name and user, and whether they run only one at a time.
    namesakes: CountedMap<(UserId, Arc<str>), CountedMap<JobId, bool>>,
}

impl Dependencies {
    pub(crate) fn outcome(&self, job: JobId) -> Option<GangOutcome> {
        self.finished.get(&job).copied()
    }

    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (JobId, GangOutcome)> {
        self.finished.iter().map(|(job, outcome)| (*job, *outcome))
    }

    /// Jobs that live jobs depend on.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = JobId> {
        self.awaited.keys().copied()
    }

    pub(crate) fn enter(&mut self, request: &GangRequest) {
        let job = request.id;
        if !request.name.is_empty() {
            let is_singleton = request.dependencies.iter().any(|each| each.kind == DependencyKind::Singleton);
            self.namesakes.or_default((request.user, request.name.clone())).insert(job, is_singleton);
        }
        for dependency in &request.dependencies {
            for on in &dependency.jobs {
                *self.awaited.or_default(*on) += 1;
                if !self.finished.contains_key(on) {
                    self.dependents.or_default((*on, job)).push(dependency.kind);
                    self.waits_for.insert((job, *on), ());
                }
            }
        }
    }

    /// Notes how a job ended; [`next_ready`](Self::next_ready) says who need not wait for it any more.
    pub(crate) fn know(&mut self, job: JobId, outcome: GangOutcome) {
        self.finished.insert(job, outcome);
        self.ended.push_back((job, outcome));
    }

    /// Notes how a job ended that was entered, and returns the one of its name whose turn it is now.
    pub(crate) fn end(&mut self, request: &GangRequest, outcome: GangOutcome) -> Option<JobId> {
        self.know(request.id, outcome);
        for on in request.dependencies.iter().flat_map(|dependency| &dependency.jobs) {
            self.dependents.remove(&(*on, request.id));
            self.waits_for.remove(&(request.id, *on));
            self.no_longer_awaits(*on);
        }
        self.next_namesake(request)
    }

    /// Whether jobs have ended of whose dependents not all have been looked at.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Looks at the next job that waited for one that has ended: it is returned when it waits for no other, or in vain.
    pub(crate) fn next_ready(&mut self) -> Option<JobId> {
        let (job, outcome) = *self.ended.front()?;
        let next = self.dependents.range((job, JobId(0))..=(job, JobId(u64::MAX))).next();
        let Some(waits) = next.map(|((_, waits), _)| *waits) else {
            self.ended.pop_front();
            return None;
        };
        let kinds = self.dependents.remove(&(job, waits)).unwrap_or_default();
        self.waits_for.remove(&(waits, job));
        let is_in_vain = kinds.iter().any(|kind| in_vain(job, *kind, outcome).is_some());
        (is_in_vain || self.waits_for(waits).next().is_none()).then_some(waits)
    }

    /// Of the jobs of this name that run one at a time, the one whose turn it is now.
    fn next_namesake(&mut self, ended: &GangRequest) -> Option<JobId> {
        let key = (ended.user, ended.name.clone());
        let namesakes = self.namesakes.get_mut(&key)?;
        let was_first = namesakes.first().is_some_and(|(first, _)| *first == ended.id);
        namesakes.remove(&ended.id);
        let next =
            namesakes.first().filter(|(_, is_singleton)| was_first && **is_singleton).map(|(next, _)| *next);
        if namesakes.is_empty() {
            self.namesakes.remove(&key);
        }
        next
    }

    fn no_longer_awaits(&mut self, on: JobId) {
        let Some(count) = self.awaited.get_mut(&on) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.awaited.remove(&on);
            if self.forgotten.remove(&on).is_some() {
                self.finished.remove(&on);
            }
        }
    }

    /// Drops the outcome of a job, at once or when no live job awaits it any more.
    pub(crate) fn forget(&mut self, job: JobId) {
        if self.awaited.contains_key(&job) {
            if self.finished.contains_key(&job) {
                self.forgotten.insert(job, ());
            }
        } else {
            self.finished.remove(&job);
        }
    }

    /// The jobs that a job still waits for.
    fn waits_for(&self, job: JobId) -> impl Iterator<Item = JobId> {
        self.waits_for.range((job, JobId(0))..=(job, JobId(u64::MAX))).map(|((_, on), ())| *on)
    }

    /// What a job waits for that waited for others when it was looked at.
    pub(crate) fn wait_now(&self, request: &GangRequest, then: &Wait) -> Wait {
        let now = match then {
            Wait::Dependency { .. } => {
                let on: Vec<JobId> = self.waits_for(request.id).take(MOST_NAMED).collect();
                (!on.is_empty()).then_some(Wait::Dependency { on })
            }
            Wait::Singleton { .. } => self.behind(request),
            _ => None,
        };
        now.unwrap_or_else(|| then.clone())
    }

    fn behind(&self, request: &GangRequest) -> Option<Wait> {
        let namesakes = self.namesakes.get(&(request.user, request.name.clone()))?;
        let (behind, _) = namesakes.first().filter(|(first, _)| **first < request.id)?;
        Some(Wait::Singleton { behind: *behind })
    }

    /// What a job still waits for; an error when that can never come.
    pub(crate) fn unmet(&self, request: &GangRequest) -> Result<Option<Wait>, Never> {
        let mut on = Vec::new();
        for dependency in &request.dependencies {
            if dependency.kind == DependencyKind::Singleton {
                if let Some(wait) = self.behind(request) {
                    return Ok(Some(wait));
                }
            } else {
                on.extend(self.unfinished(dependency)?);
            }
        }
        on.truncate(MOST_NAMED);
        Ok((!on.is_empty()).then_some(Wait::Dependency { on }))
    }

    fn unfinished(&self, dependency: &GangDependency) -> Result<Vec<JobId>, Never> {
        let mut unfinished = Vec::new();
        for on in &dependency.jobs {
            match self.finished.get(on) {
                None => unfinished.push(*on),
                Some(outcome) => in_vain(*on, dependency.kind, *outcome).map_or(Ok(()), Err)?,
            }
        }
        Ok(unfinished)
    }
}

/// Why a job can never run that waits for another which ended like this.
fn in_vain(on: JobId, kind: DependencyKind, outcome: GangOutcome) -> Option<Never> {
    match (outcome, kind) {
        (GangOutcome::Succeeded, DependencyKind::AfterNotOk) => Some(Never::DependencySucceeded { on }),
        (GangOutcome::Succeeded, _) | (_, DependencyKind::AfterAny | DependencyKind::AfterNotOk) => None,
        (_, _) => Some(Never::DependencyFailed { on }),
    }
}
