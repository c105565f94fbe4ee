//! Jobs that wait for others: for given jobs, or for those of the same name and user.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bedplate_job::DependencyKind;

use crate::{GangDependency, GangOutcome, GangRequest, JobId, Never, UserId, Wait};

#[derive(Debug, Clone, Default)]
pub(crate) struct Dependencies {
    /// How jobs ended.
    finished: BTreeMap<JobId, GangOutcome>,
    /// How many dependencies of live jobs name a job.
    awaited: BTreeMap<JobId, u32>,
    /// Jobs whose outcome is of no interest but to those that await it.
    forgotten: BTreeSet<JobId>,
    /// Which jobs wait for a job.
    dependents: BTreeMap<JobId, Vec<JobId>>,
    namesakes: BTreeMap<(UserId, Arc<str>), BTreeSet<JobId>>,
    /// Those of them that run only one at a time.
    singletons: BTreeMap<(UserId, Arc<str>), BTreeSet<JobId>>,
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
            let key = (request.user, request.name.clone());
            self.namesakes.entry(key.clone()).or_default().insert(job);
            if request.dependencies.iter().any(|each| each.kind == DependencyKind::Singleton) {
                self.singletons.entry(key).or_default().insert(job);
            }
        }
        for dependency in &request.dependencies {
            for on in &dependency.jobs {
                self.dependents.entry(*on).or_default().push(job);
                *self.awaited.entry(*on).or_default() += 1;
            }
        }
    }

    /// Notes how a job ended that was never entered, and returns the jobs that waited for it.
    pub(crate) fn know(&mut self, job: JobId, outcome: GangOutcome) -> Vec<JobId> {
        self.finished.insert(job, outcome);
        self.dependents.remove(&job).unwrap_or_default()
    }

    /// Notes how a job ended, and returns the jobs that waited for it.
    pub(crate) fn end(&mut self, request: &GangRequest, outcome: GangOutcome) -> Vec<JobId> {
        let mut waiting = self.know(request.id, outcome);
        let key = (request.user, request.name.clone());
        remove_from(&mut self.namesakes, &key, request.id);
        waiting.extend(remove_from(&mut self.singletons, &key, request.id));
        for on in request.dependencies.iter().flat_map(|dependency| &dependency.jobs) {
            self.no_longer_awaits(*on);
        }
        waiting
    }

    fn no_longer_awaits(&mut self, on: JobId) {
        let Some(count) = self.awaited.get_mut(&on) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.awaited.remove(&on);
            if self.forgotten.remove(&on) {
                self.finished.remove(&on);
            }
        }
    }

    /// Drops the outcome of a job, at once or when no live job awaits it any more.
    pub(crate) fn forget(&mut self, job: JobId) {
        if self.awaited.contains_key(&job) {
            self.forgotten.extend(self.finished.contains_key(&job).then_some(job));
        } else {
            self.finished.remove(&job);
        }
    }

    /// What a job still waits for; an error when that can never come.
    pub(crate) fn unmet(&self, request: &GangRequest) -> Result<Option<Wait>, Never> {
        let mut on = Vec::new();
        for dependency in &request.dependencies {
            if dependency.kind == DependencyKind::Singleton {
                let namesakes = self.namesakes.get(&(request.user, request.name.clone()));
                if let Some(behind) =
                    namesakes.and_then(|jobs| jobs.first()).filter(|first| **first < request.id)
                {
                    return Ok(Some(Wait::Singleton { behind: *behind }));
                }
            } else {
                on.extend(self.unfinished(dependency)?);
            }
        }
        Ok((!on.is_empty()).then_some(Wait::Dependency { on }))
    }

    fn unfinished(&self, dependency: &GangDependency) -> Result<Vec<JobId>, Never> {
        let mut unfinished = Vec::new();
        for on in &dependency.jobs {
            match (self.finished.get(on), dependency.kind) {
                (None, _) => unfinished.push(*on),
                (Some(GangOutcome::Succeeded), DependencyKind::AfterNotOk) => {
                    return Err(Never::DependencySucceeded { on: *on });
                }
                (Some(GangOutcome::Succeeded), _)
                | (Some(_), DependencyKind::AfterAny | DependencyKind::AfterNotOk) => {}
                (Some(_), _) => return Err(Never::DependencyFailed { on: *on }),
            }
        }
        Ok(unfinished)
    }
}

/// Removes a job from a set under a key, and the key with the last of its jobs; returns the others.
fn remove_from<K: Ord>(sets: &mut BTreeMap<K, BTreeSet<JobId>>, key: &K, job: JobId) -> Vec<JobId> {
    let Some(jobs) = sets.get_mut(key) else {
        return Vec::new();
    };
    jobs.remove(&job);
    let others: Vec<JobId> = jobs.iter().copied().collect();
    if others.is_empty() {
        sets.remove(key);
    }
    others
}
